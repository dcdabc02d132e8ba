"""A vLLM server's health, one real token, and its counters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from orchestrator.engines.base import Health, Progress
from orchestrator.engines.reply import fetch
from orchestrator.engines.vllm.metrics import Samples, read_metrics

if TYPE_CHECKING:
    import httpx

_MOVING = ("iteration_tokens_total_sum", "generation_tokens_total", "prompt_tokens_total")
_NO_SUCH_ENDPOINT = (404, 405, 501)


async def health(client: httpx.AsyncClient, base_url: str) -> Health:
    """One GET /health: refused until the server is up, then 200. Needs no key.

    200 says only that the front-end runs: a frozen engine core answers so too
    (vLLM 0.33.0 vllm/v1/engine/async_llm.py:1129). 503 means that the engine core is gone.
    """
    import httpx

    try:
        status, body = await fetch(client, "GET", f"{base_url}/health")
    except httpx.ConnectError as e:
        return Health("refused", str(e))
    except httpx.TimeoutException as e:
        return Health("timeout", type(e).__name__)
    except (httpx.HTTPError, ValueError) as e:
        return Health("sick", f"{type(e).__name__}: {e}")
    if status == 200:
        return Health("ok")
    if status in (401, 403):
        return Health("unauthorized", f"HTTP {status}")
    said = _error_message(body)
    if status == 503 and not said:
        said = "the engine core is dead"
    return Health("sick", f"HTTP {status}: {said}")


async def prove(client: httpx.AsyncClient, base_url: str, served_model: str) -> str:
    """One greedy token from /v1/completions, which needs no chat template; its text, which may be empty.

    Where there is no such endpoint, one from /v1/chat/completions. Raises httpx.HTTPError where there was no
    answer, ValueError where the answer holds no token.
    """
    common: dict[str, Any] = {"model": served_model, "max_tokens": 1, "temperature": 0}
    status, body = await fetch(
        client, "POST", f"{base_url}/v1/completions", json={**common, "prompt": "Say yes."}
    )
    if status in _NO_SUCH_ENDPOINT and not _names_a_model(body):
        messages = [{"role": "user", "content": "Say yes."}]
        status, body = await fetch(
            client, "POST", f"{base_url}/v1/chat/completions", json={**common, "messages": messages}
        )
    if status != 200:
        raise ValueError(f"HTTP {status}: {_error_message(body)}")
    try:
        data = json.loads(body)
        choice, tokens = data["choices"][0], data["usage"]["completion_tokens"]
        if not isinstance(tokens, int) or tokens < 1:
            raise ValueError(f"completion_tokens is {tokens!r}")
        message = choice.get("message")
        if message is None:
            return str(choice["text"])
        return str(
            message.get("content") or message.get("reasoning") or message.get("reasoning_content") or ""
        )
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(f"no completion in the answer ({type(e).__name__}: {e})") from None


async def progress(client: httpx.AsyncClient, base_url: str) -> Progress | None:
    """Tokens of all steps, prompts and answers, summed over engines and API servers, with the requests that
    run and wait. None where the counters cannot be read, as with --disable-log-stats.

    A frozen engine core leaves both still: the counters no longer move and `num_requests_running` may be 0
    with a request in it.
    """
    samples = await metrics(client, base_url)
    return None if samples is None else read_progress(samples)


def read_progress(samples: Samples) -> Progress | None:
    """Progress out of /metrics; None where no counter of tokens is in it."""
    moving = [samples.total(name) for name in _MOVING]
    if all(m is None for m in moving):
        return None
    running, waiting = samples.total("num_requests_running"), samples.total("num_requests_waiting")
    return Progress(
        tokens=sum(m or 0.0 for m in moving),
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
    )


async def metrics(client: httpx.AsyncClient, base_url: str) -> Samples | None:
    """`/metrics`, which needs no key; None where the engine does not answer."""
    import httpx

    try:
        status, body = await fetch(client, "GET", f"{base_url}/metrics")
    except (httpx.HTTPError, ValueError):
        return None
    return read_metrics(body.decode("utf-8", "replace")) if status == 200 else None


def _names_a_model(body: bytes) -> bool:
    """Whether a 404 speaks of the model rather than of the path: vLLM answers both with 404."""
    try:
        return bool(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _error_message(body: bytes) -> str:
    """vLLM's own error object, FastAPI's `detail`, or the text as it is."""
    try:
        data = json.loads(body)
        said = data.get("error", data.get("detail"))
        return str(said["message"] if isinstance(said, dict) else said)[:300]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return body[:200].decode("utf-8", "replace").strip()
