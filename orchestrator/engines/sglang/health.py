"""SGLang's health, one real token, and its counters.

What each endpoint means is from sglang 0.5.23, srt/entrypoints/http_server.py: the port opens only when the
scheduler is ready; `/health` then answers 503 at once while it warms up or drains, and otherwise generates a
token and waits for it up to 20 s (SGLANG_HEALTH_CHECK_TIMEOUT). Only `/health` moves what `/ready` says.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.engines.base import Health, Progress
from orchestrator.engines.reply import fetch

if TYPE_CHECKING:
    import httpx

HEALTH_TIMEOUT_S = 25.0
"""Above the 20 s after which `/health` itself says that no token came."""

_AT_ONCE_S = 1.0
# counters that only tokens move: the first by the step, the others when a request or a chunk of it is done
_MOVING = (
    "realtime_tokens_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "inter_token_latency_seconds_count",
)
_WORK = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/generate", "/encode")
_SAMPLE = re.compile(r"^sglang:(\w+)(?:\{([^}]*)\})?\s+(\S+)\s*$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of `/metrics`, its name without the `sglang:` prefix."""

    name: str
    labels: dict[str, str]
    value: float


async def health(client: httpx.AsyncClient, base_url: str) -> Health:
    """One GET /health. A 503 that comes at once is "loading" (warm-up, or draining: it takes no work either
    way); one that took its time is "sick": the scheduler gave no token. Needs no key."""
    import httpx

    began = time.monotonic()
    try:
        status, body = await fetch(client, "GET", f"{base_url}/health", timeout=HEALTH_TIMEOUT_S)
    except httpx.ConnectError as e:
        return Health("refused", str(e))
    except httpx.TimeoutException as e:
        return Health("timeout", type(e).__name__)
    except (httpx.HTTPError, ValueError) as e:
        return Health("sick", f"{type(e).__name__}: {e}")
    return judged(status, body, time.monotonic() - began)


def judged(status: int, body: bytes, took_s: float) -> Health:
    """What an answer of `/health` that took so long means."""
    if status == 200:
        return Health("ok")
    if status in (401, 403):
        return Health("unauthorized", f"HTTP {status}")
    if status == 503 and took_s < _AT_ONCE_S:
        return Health("loading", "warming up or draining")
    if status == 503:
        return Health("sick", f"no token came for {took_s:.0f} s")
    return Health("sick", f"HTTP {status}: {error_message(body)}")


async def prove(client: httpx.AsyncClient, base_url: str, served_model: str) -> str:
    """One greedy token from /v1/chat/completions, or from /v1/completions where chat refuses it, as without
    a template or with one that cannot be read; its text, which may be empty.

    Raises httpx.HTTPError where there was no answer, ValueError where the answer holds no token.
    """
    request: dict[str, Any] = {"model": served_model, "max_tokens": 1, "temperature": 0}
    chat = request | {"messages": [{"role": "user", "content": "Say yes."}]}
    status, body = await fetch(client, "POST", f"{base_url}/v1/chat/completions", json=chat)
    if status == 400:
        plain = request | {"prompt": "Say yes."}
        status, body = await fetch(client, "POST", f"{base_url}/v1/completions", json=plain)
    if status != 200:
        raise ValueError(f"HTTP {status}: {error_message(body)}")
    try:
        data = json.loads(body)
        choice, tokens = data["choices"][0], data["usage"]["completion_tokens"]
        message = choice.get("message") or {}
        text = message.get("content") or message.get("reasoning_content") or choice.get("text") or ""
        if not isinstance(tokens, int) or tokens < 1:
            raise ValueError(f"completion_tokens is {tokens!r}")
        return str(text)
    except (KeyError, IndexError, TypeError, AttributeError) as e:
        raise ValueError(f"no completion in the answer ({type(e).__name__}: {e})") from None


async def progress(client: httpx.AsyncClient, base_url: str) -> Progress | None:
    """Tokens and requests out of `/metrics`; None where it does not answer, or without --enable-metrics.

    A hung scheduler goes on answering here with figures that do not move.
    """
    import httpx

    try:
        status, body = await fetch(client, "GET", f"{base_url}/metrics")
    except (httpx.HTTPError, ValueError):
        return None
    return read_progress(body.decode("utf-8", "replace")) if status == 200 else None


def read_progress(text: str) -> Progress | None:
    """Prometheus text to a Progress; None where no token counter is in it.

    The scheduler refreshes its own gauges every 40 decode steps (--decode-log-interval), so what the HTTP
    front says is in flight counts as running too.
    """
    samples = list(read_metrics(text))
    moving = [s.value for s in samples if s.name in _MOVING]
    if not moving:
        return None
    running, waiting = _of_ranks(samples, "num_running_reqs"), _of_ranks(samples, "num_queue_reqs")
    active = [
        s.value for s in samples if s.name == "http_requests_active" and s.labels.get("endpoint") in _WORK
    ]
    if active:
        running = max(running or 0, int(sum(active)) - (waiting or 0))
    return Progress(tokens=sum(moving), running=running, waiting=waiting)


def read_metrics(text: str) -> Iterator[Sample]:
    """The `sglang:` samples of a Prometheus text; what is no finite number is skipped."""
    for name, labels, number in _SAMPLE.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        if value == value and abs(value) != float("inf"):
            yield Sample(name, dict(_LABEL.findall(labels)), value)


def error_message(body: bytes) -> str:
    """What an error answer says: `message` on top or below `error`, else its first words."""
    try:
        data = json.loads(body)
        return str(data.get("message") or data["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return body[:200].decode("utf-8", "replace").strip()


def _of_ranks(samples: list[Sample], name: str) -> int | None:
    """A gauge over the attention ranks; the tensor ranks of one repeat its figure."""
    ranks: dict[str, float] = defaultdict(float)
    for s in samples:
        if s.name == name and not s.labels.get("priority"):
            rank = s.labels.get("dp_rank", "")
            ranks[rank] = max(ranks[rank], s.value)
    return int(sum(ranks.values())) if ranks else None
