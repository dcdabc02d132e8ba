"""Failures that supervision itself sees; those that an engine's log tells are its own `failures` module's."""

from __future__ import annotations

from typing import Any

from orchestrator.engines.base import Failure
from orchestrator.errors import LlmserveError


def shown(failure: Failure | None, at: float | None = None) -> dict[str, Any] | None:
    """The contract's `last_failure`: `class, message, evidence, remedy`, and `at` (unix s) where known."""
    if failure is None:
        return None
    return {
        "class": failure.failure_class,
        "message": failure.message,
        "evidence": failure.evidence,
        "remedy": failure.remedy,
        "retry": failure.retry,
        "at": at,
    }


REBOOTED = Failure(
    "rebooted", "the machine was restarted while it ran", "the boot id changed", "llmserve restart", "never"
)
NEVER_STARTED = Failure(
    "never_started", "the daemon ended before the process was started", "", "llmserve restart", "backoff"
)
HUNG = Failure("hang", "no token moved within the deadline", "liveness probe", "llmserve logs", "backoff")


def port_taken(port: int, holder: str | None) -> Failure:
    """Somebody else listens on a port of ours: the engine need not be started to find out."""
    return Failure(
        "port_taken",
        f"port {port} is taken",
        f"held by {holder or 'nobody by now'}",
        "free it, then llmserve restart; or launch again with another --port",
        "once",
    )


def start_timeout(cap_s: float, refusal: str | None = None) -> Failure:
    """The profile's hard cap on a start is over; `refusal` is the engine's last answer to the proof."""
    return Failure(
        "start_timeout",
        f"not ready {cap_s:.0f} s after it was started",
        f"it answers, but not with a token: {refusal}" if refusal else "start cap",
        "raise it with --set supervision.start_cap_s=SECONDS",
        "never",
    )


def spawn_failed(error: Exception) -> Failure:
    """No shim came up."""
    said = error.message if isinstance(error, LlmserveError) else f"{type(error).__name__}: {error}"
    return Failure("spawn_failed", "the process could not be started", said, "llmserve logs", "backoff")


def program_missing(error: str) -> Failure:
    """The system would not run the program."""
    return Failure(
        "program_missing",
        "the engine's program could not be started",
        error,
        "llmserve engines list",
        "never",
    )
