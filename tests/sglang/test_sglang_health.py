from collections.abc import Callable

import httpx
import pytest

from orchestrator.engines.sglang import health, stop

URL = "http://127.0.0.1:1"
Handler = Callable[[httpx.Request], httpx.Response]
TOKEN = {"choices": [{"message": {"content": ":"}}], "usage": {"completion_tokens": 1}}
NO_TEMPLATE = {"object": "error", "message": "the tokenizer's chat template is missing", "code": 400}


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
        (answering(503), "loading"),
        (answering(401), "unauthorized"),
        (answering(500, content=b"\xff\xfe"), "sick"),
        (answering(200, content=b"x" * (9 << 20)), "sick"),
    ],
)
async def test_each_answer_is_one_state(handler: Handler, state: str) -> None:
    async with client(handler) as c:
        assert (await health.health(c, URL)).state == state


def test_a_503_at_once_is_a_start_and_one_after_the_wait_for_a_token_is_sick() -> None:
    assert health.judged(503, b"", 0.01).state == "loading"
    late = health.judged(503, b"", 20.0)
    assert (late.state, late.detail) == ("sick", "no token came for 20 s")


async def test_health_waits_longer_than_sglang_waits_for_its_own_token() -> None:
    asked: list[object] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.extensions["timeout"]["read"])
        return httpx.Response(200)

    async with client(handler) as c:
        await health.health(c, URL)
    assert asked == [health.HEALTH_TIMEOUT_S]
    assert health.HEALTH_TIMEOUT_S > 20


async def test_one_token_is_proof() -> None:
    async with client(answering(200, json=TOKEN)) as c:
        assert await health.prove(c, URL, "tiny") == ":"


@pytest.mark.parametrize("said", [NO_TEMPLATE, NO_TEMPLATE | {"message": "unexpected '%'"}])
async def test_a_model_that_cannot_chat_is_proved_by_a_completion(said: dict[str, object]) -> None:
    paths: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        if request.url.path.endswith("chat/completions"):
            return httpx.Response(400, json=said)
        return httpx.Response(200, json={"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}})

    async with client(handler) as c:
        assert await health.prove(c, URL, "base") == "a"
    assert paths == ["/v1/chat/completions", "/v1/completions"]


@pytest.mark.parametrize(
    "handler",
    [
        answering(503, content=b""),
        answering(400, json={"object": "error", "message": "too long"}),
        answering(200, json=TOKEN | {"usage": {"completion_tokens": 0}}),
        answering(200, json={"choices": []}),
        answering(200, json=[]),
        answering(200, content=b"<html>"),
    ],
)
async def test_anything_less_is_none(handler: Handler) -> None:
    async with client(handler) as c:
        with pytest.raises(ValueError, match=r"."):
            await health.prove(c, URL, "tiny")


async def test_progress_is_the_tokens_of_the_real_counters(busy: str, idle: str) -> None:
    async with client(answering(200, text=busy)) as c:
        seen = await health.progress(c, URL)
    # realtime 51 + 1084 + 54, prompt 47, generated 9, chunks 900
    assert seen is not None
    assert (seen.tokens, seen.running, seen.waiting) == (2145.0, 3, 0)
    after = health.read_progress(idle)
    assert after is not None
    assert after.tokens > seen.tokens
    assert (after.running, after.waiting) == (0, 0)


def test_a_request_the_scheduler_has_not_counted_yet_runs(busy: str) -> None:
    stale = "\n".join(
        line.replace(" 3.0", " 0.0") if line.startswith("sglang:num_running_reqs") else line
        for line in busy.splitlines()
    )
    seen = health.read_progress(stale)
    assert seen is not None
    assert seen.running == 3


def test_attention_ranks_add_up_and_the_tensor_ranks_of_one_repeat_it() -> None:
    rows = [
        'sglang:prompt_tokens_total{model_name="m"} 5.0',
        'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 4.0',
        'sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 4.0',
        'sglang:num_running_reqs{dp_rank="1",tp_rank="2"} 3.0',
        'sglang:num_queue_reqs{dp_rank="0",tp_rank="0"} 1.0',
        'sglang:num_queue_reqs{dp_rank="1",tp_rank="2"} 2.0',
    ]
    seen = health.read_progress("\n".join(rows))
    assert seen is not None
    assert (seen.running, seen.waiting) == (7, 3)


@pytest.mark.parametrize(
    "handler",
    [
        answering(404, json={"detail": "Not Found"}),
        answering(200, text="sglang:fwd_occupancy{} NaN\npython_info 1\n"),
        raising(httpx.ReadTimeout("slow")),
    ],
)
async def test_without_counters_nothing_is_known(handler: Handler) -> None:
    async with client(handler) as c:
        assert await health.progress(c, URL) is None


def test_the_work_is_waited_for_before_the_first_signal() -> None:
    assert stop.RECIPE.wait_idle
    assert [s.signal for s in stop.RECIPE.steps] == [2, 2]
