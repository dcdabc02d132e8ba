"""The first cause in a whole log, and the phase that a log's end shows. The texts are in `failures.yaml`."""

from __future__ import annotations

import functools
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.engines.base import Exit, Failure, Retry

_LIMIT_CHARS = 8 << 20
_EVIDENCE_CHARS = 400
_PHASES = (
    ("warm-up", re.compile(r"warming up|model loaded|listening on|all slots are idle")),
    ("load", re.compile(r"loading model|load_tensors|llama_model_load|n_ctx_slot|fitting params")),
    ("fetch", re.compile(r"common_download|downloading from|curl_perform")),
)


@dataclass(frozen=True, slots=True)
class _Signature:
    pattern: re.Pattern[str]
    failure_class: str
    message: str
    remedy: str
    retry: Retry


@dataclass(frozen=True, slots=True)
class _Signatures:
    causes: tuple[_Signature, ...]
    generic: tuple[_Signature, ...]
    signals: dict[int, _Signature]


def classify(log: str, exit: Exit) -> Failure:
    """The class of the earliest line that names a cause; else the earliest that only says that something
    failed; else the signal; else "exited". "exiting due to model loading error" is never a class."""
    if len(log) > 2 * _LIMIT_CHARS:
        log = log[:_LIMIT_CHARS] + "\n" + log[-_LIMIT_CHARS:]
    known = _signatures()
    for group in (known.causes, known.generic):
        hits = [(m.start(), i, m) for i, s in enumerate(group) if (m := s.pattern.search(log))]
        if hits:
            _, index, match = min(hits, key=lambda hit: hit[:2])
            return _failure(group[index], match, log)
    evidence = _last_line(log)
    if exit.signal is not None:
        named = known.signals.get(exit.signal)
        if named is not None:
            return Failure(named.failure_class, named.message, evidence, named.remedy, named.retry)
        return Failure(
            "crash",
            f"the engine was ended by {_signal_name(exit.signal)}",
            evidence,
            "`llmserve logs` has its last words",
            "backoff",
        )
    how = "ended by itself, as if it had been asked to" if exit.code == 0 else f"ended with {exit.code}"
    return Failure("exited", f"the engine {how}", evidence, "`llmserve logs` has its last words", "backoff")


def phase(log: str) -> str:
    """fetch, load or warm-up: whichever the log spoke of last; "load" before it said anything."""
    tail = log[-_LIMIT_CHARS:]
    for line in reversed(tail.splitlines()):
        for name, pattern in _PHASES:
            if pattern.search(line):
                return name
    return "load"


def _failure(signature: _Signature, match: re.Match[str], log: str) -> Failure:
    groups = {k: (v or "?").strip() for k, v in match.groupdict().items()}
    end = log.find("\n", match.end())
    line = log[log.rfind("\n", 0, match.start()) + 1 : end if end >= 0 else len(log)]
    return Failure(
        signature.failure_class,
        signature.message.format(**groups)[:_EVIDENCE_CHARS],
        line.strip()[:_EVIDENCE_CHARS],
        signature.remedy,
        signature.retry,
    )


def _last_line(log: str) -> str:
    lines = [line for line in log[-4096:].splitlines() if line.strip()]
    return lines[-1].strip()[:_EVIDENCE_CHARS] if lines else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@functools.cache
def _signatures() -> _Signatures:
    import yaml

    text = (Path(__file__).parent / "failures.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)

    def row(entry: dict[str, Any]) -> _Signature:
        return _Signature(
            re.compile(entry.get("match", "")),
            entry["class"],
            entry["message"],
            entry["remedy"],
            entry["retry"],
        )

    return _Signatures(
        tuple(row(e) for e in data["causes"]),
        tuple(row(e) for e in data["generic"]),
        {int(n): row(e) for n, e in data["signals"].items()},
    )
