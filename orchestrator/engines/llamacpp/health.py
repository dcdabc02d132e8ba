"""llama-server's health, one real token, and its counters."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from orchestrator.engines.base import Health, Progress
from orchestrator.engines.reply import fetch

if TYPE_CHECKING:
    import httpx

_MOVING = ("n_decode_total", "prompt_tokens_total", "tokens_predicted_total")
_SAMPLE = re.compile(r"^llamacpp:(\w+)(?:\{[^}]*\})?\s+([0-9.eE+-]+)\s*$", re.MULTILINE)


async def health(client: httpx.AsyncClient, base_url: str) -> Health:
    """One GET /health: refused, then 503 "Loading model", then 200. Needs no key."""
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
    message = _error_message(body)
    if status == 503 and "loading" in message.lower():
        return Health("loading", message)
    return Health("sick", f"HTTP {status}: {message}")


async def prove(client: httpx.AsyncClient, base_url: str, served_model: str) -> str:
    """One greedy token from /v1/chat/completions; its text, which may be empty (a token need not show).

    Raises httpx.HTTPError where there was no answer, ValueError where the answer holds no token.
    """
    request = {
        "model": served_model,
        "messages": [{"role": "user", "content": "Say yes."}],
        "max_tokens": 1,
        "temperature": 0,
        "cache_prompt": False,
    }
    status, body = await fetch(client, "POST", f"{base_url}/v1/chat/completions", json=request)
    if status != 200:
        raise ValueError(f"HTTP {status}: {_error_message(body)}")
    try:
        data = json.loads(body)
        message = data["choices"][0]["message"]
        tokens = data["usage"]["completion_tokens"]
        text = message.get("content") or message.get("reasoning_content") or ""
        if not isinstance(tokens, int) or tokens < 1:
            raise ValueError(f"completion_tokens is {tokens!r}")
        return str(text)
    except (KeyError, IndexError, TypeError, AttributeError) as e:
        raise ValueError(f"no completion in the answer ({type(e).__name__}: {e})") from None


async def progress(client: httpx.AsyncClient, base_url: str) -> Progress | None:
    """The sum of decode steps, prompt tokens and generated tokens, with requests that run and wait."""
    samples = await metrics(client, base_url)
    if samples is None or not any(name in samples for name in _MOVING):
        return None
    running, waiting = samples.get("requests_processing"), samples.get("requests_deferred")
    return Progress(
        tokens=sum(samples.get(name, 0.0) for name in _MOVING),
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
    )


async def metrics(client: httpx.AsyncClient, base_url: str) -> dict[str, float] | None:
    """`/metrics` by name without the `llamacpp:` prefix; None where the engine does not answer."""
    import httpx

    try:
        status, body = await fetch(client, "GET", f"{base_url}/metrics")
    except (httpx.HTTPError, ValueError):
        return None
    return read_metrics(body.decode("utf-8", "replace")) if status == 200 else None


def read_metrics(text: str) -> dict[str, float]:
    """Prometheus text to figures; labelled samples of one name are summed, what is no number is skipped."""
    samples: dict[str, float] = {}
    for name, number in _SAMPLE.findall(text):
        try:
            samples[name] = samples.get(name, 0.0) + float(number)
        except ValueError:
            continue
    return samples


def _error_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError, RecursionError):
        return body[:200].decode("utf-8", "replace").strip()
