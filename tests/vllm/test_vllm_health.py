import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.registry import engine
from orchestrator.engines.vllm import health
from orchestrator.engines.vllm.metrics import read_metrics
from orchestrator.engines.vllm.stop import RECIPE

URL = "http://127.0.0.1:1"
METRICS = (Path(__file__).parent / "metrics-0.32.0.txt").read_text(encoding="utf-8")
COMPLETION = {"choices": [{"text": " yes"}], "usage": {"completion_tokens": 1}}
CHAT = {"choices": [{"message": {"content": None, "reasoning": "Hm"}}], "usage": {"completion_tokens": 1}}

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(handler))


def answering(status: int, **body: object) -> Handler:
    return lambda request: httpx.Response(status, **body)  # type: ignore[arg-type]


def raising(error: Exception) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    return handler


@pytest.mark.parametrize(
    ("handler", "state"),
    [
        (raising(httpx.ConnectError("no")), "refused"),
        (raising(httpx.ReadTimeout("slow")), "timeout"),
        (raising(httpx.RemoteProtocolError("gone")), "sick"),
        (answering(200), "ok"),
        (answering(503), "sick"),
        (answering(401, json={"error": "Unauthorized"}), "unauthorized"),
        (answering(500, content=b"\xff\xfe"), "sick"),
        (answering(200, content=b"x" * (9 << 20)), "sick"),
    ],
)
async def test_each_answer_is_one_state(handler: Handler, state: str) -> None:
    async with client(handler) as c:
        assert (await health.health(c, URL)).state == state


async def test_503_means_that_the_engine_core_is_gone() -> None:
    async with client(answering(503)) as c:
        assert "engine core is dead" in (await health.health(c, URL)).detail


async def test_one_token_without_a_chat_template_proves_a_server() -> None:
    asked: list[tuple[str, dict[str, object]]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json=COMPLETION)

    async with client(handler) as c:
        assert await health.prove(c, URL, "m") == " yes"
    assert [(path, body["max_tokens"], body["model"]) for path, body in asked] == [
        ("/v1/completions", 1, "m")
    ]


async def test_a_server_without_completions_is_proved_by_chat() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/completions":
            return httpx.Response(404, json={"detail": "Not Found"})
        return httpx.Response(200, json=CHAT)

    async with client(handler) as c:
        assert await health.prove(c, URL, "m") == "Hm"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, {"error": {"message": "The model `m` does not exist."}}, "does not exist"),
        (400, {"detail": "no"}, "no"),
        (500, {"error": {"message": "cannot schedule new futures after shutdown"}}, "HTTP 500"),
        (200, {"choices": [], "usage": {"completion_tokens": 1}}, "IndexError"),
        (200, {"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}, "completion_tokens is 0"),
        (200, [], "TypeError"),
    ],
)
async def test_an_answer_without_a_token_proves_nothing(status: int, body: object, said: str) -> None:
    async with client(answering(status, json=body)) as c:
        with pytest.raises(ValueError, match=said):
            await health.prove(c, URL, "m")


async def test_progress_is_what_a_real_server_counted() -> None:
    async with client(answering(200, text=METRICS)) as c:
        progress = await health.progress(c, URL)
    assert progress is not None
    # one request of 23 prompt tokens and 48 generated ones, in steps of 71 tokens
    assert (progress.tokens, progress.running, progress.waiting) == (142.0, 0, 0)


def test_several_engines_are_summed() -> None:
    text = "".join(
        f'vllm:generation_tokens_total{{engine="{i}",model_name="a}}b \\"c\\""}} {i}.0\n'
        f'vllm:num_requests_running{{engine="{i}",model_name="m"}} 2.0\n'
        for i in (1, 2)
    )
    progress = health.read_progress(read_metrics(text))
    assert progress is not None
    assert (progress.tokens, progress.running, progress.waiting) == (3.0, 4, None)


@pytest.mark.parametrize(
    "handler", [raising(httpx.ConnectError("no")), answering(500), answering(200, text="python_info 1.0\n")]
)
async def test_without_counters_there_is_no_progress(handler: Handler) -> None:
    async with client(handler) as c:
        assert await health.progress(c, URL) is None


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    read_metrics(text)
    read_metrics("vllm:x{" + text + "} 1\n")


def test_a_stop_waits_for_the_work_and_repeats_its_signal() -> None:
    assert RECIPE.wait_idle
    assert [s.signal for s in RECIPE.steps] == [15, 15, 15]
    assert sum(s.wait_s for s in RECIPE.steps) <= 30


async def test_the_engine_answers_through_its_contract() -> None:
    vllm = engine("vllm")
    assert (vllm.kind, vllm.formats[0]) == ("vllm", "safetensors")
    assert vllm.stop_recipe() is RECIPE
    async with client(answering(200)) as c:
        assert (await vllm.health(c, URL)).state == "ok"
