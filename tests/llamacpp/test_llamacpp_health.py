from collections.abc import Callable

import httpx
import pytest

from orchestrator.engines.llamacpp import facts, health
from orchestrator.engines.registry import engine, kinds
from orchestrator.errors import LlmserveError

URL = "http://127.0.0.1:1"
LOADING = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
METRICS = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 34
llamacpp:tokens_predicted_total 5
llamacpp:n_decode_total 7
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 3
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 1
"""

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
        (raising(httpx.ConnectTimeout("slow")), "timeout"),
        (raising(httpx.RemoteProtocolError("gone")), "sick"),
        (answering(503, json=LOADING), "loading"),
        (answering(200, json={"status": "ok"}), "ok"),
        (answering(401, json={}), "unauthorized"),
        (answering(503, json={"error": {"message": "no slot"}}), "sick"),
        (answering(500, content=b"\xff\xfe"), "sick"),
        (answering(503, content=b"[" * 100_000), "sick"),
        (answering(200, content=b"x" * (5 << 20)), "sick"),
    ],
)
async def test_each_answer_is_one_state(handler: Handler, state: str) -> None:
    async with client(handler) as c:
        assert (await health.health(c, URL)).state == state


async def test_one_token_is_proof_even_where_it_shows_nothing() -> None:
    body = {"choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 1}}
    async with client(answering(200, json=body)) as c:
        assert await health.prove(c, URL, "small") == ""


@pytest.mark.parametrize(
    "handler",
    [
        answering(503, json=LOADING),
        answering(200, json={"choices": [{"message": {"content": "hi"}}], "usage": {"completion_tokens": 0}}),
        answering(200, json={"choices": []}),
        answering(200, json=[]),
        answering(200, content=b"<html>"),
    ],
)
async def test_anything_less_is_none(handler: Handler) -> None:
    async with client(handler) as c:
        with pytest.raises(ValueError, match=r"."):
            await health.prove(c, URL, "small")


async def test_progress_is_every_token_and_step() -> None:
    async with client(answering(200, text=METRICS)) as c:
        seen = await health.progress(c, URL)
        assert seen is not None
        assert (seen.tokens, seen.running, seen.waiting) == (46, 1, 2)
        samples = await health.metrics(c, URL)
        assert samples is not None
        assert samples["spec_decode_num_accepted_tokens_per_pos_total"] == 4


@pytest.mark.parametrize(
    "handler", [answering(501, json={}), raising(httpx.ConnectError("no")), answering(200)]
)
async def test_no_counters_are_no_progress(handler: Handler) -> None:
    async with client(handler) as c:
        assert await health.progress(c, URL) is None


@pytest.mark.parametrize(
    "body",
    ["null", "[]", "[1]", '{"data": [{}, 3], "default_generation_settings": 4}', "{", "[" * 9999],
)
async def test_facts_survive_any_answer(body: str) -> None:
    async with client(answering(200, text=body)) as c:
        assert isinstance(await facts.facts(c, URL), dict)


def test_the_registry_knows_its_kinds() -> None:
    assert "llamacpp" in kinds()
    recipe = engine("llamacpp").stop_recipe()
    assert recipe.wait_idle
    assert [(s.signal, s.wait_s) for s in recipe.steps] == [(15, 2.0), (15, 2.0)]
    with pytest.raises(LlmserveError, match="no engine kind"):
        engine("ollama")
