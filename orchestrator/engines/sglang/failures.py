"""The first cause in a whole log, and the phase that a log's end shows. The texts are in `failures.yaml`.

A process killed by signal 9 is no proof of a want of memory: SGLang ends its own tree with it whatever
went wrong, and the cause stands above (sglang 0.5.23, srt/entrypoints/engine.py).
"""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.engines.base import Exit, Failure, Retry

_LIMIT_CHARS = 8 << 20
_EVIDENCE_CHARS = 400
_PHASES = (
    ("warm-up", re.compile(r"Uvicorn running|Application startup|fired up and ready|Prefill batch")),
    ("compile", re.compile(r"^\[[^]]*\] .*(?:Capture .*begin|autotun|DeepGEMM|torch\.compile)|^Capturing ")),
    (
        "load",
        re.compile(r"Load weight|loading shards|Loading .*checkpoint|KV Cache is allocated|Memory pool"),
    ),
    ("fetch", re.compile(r"Fetching \d+ files|Downloading|download_dir=")),
)
_READY = re.compile(r"^.*The server is fired up and ready to roll!?.*$", re.MULTILINE)
_GAVE_UP = re.compile(r"^.* hit an exception: Traceback", re.MULTILINE)
# the resolved arguments, requests as they were written, and the access log hold what users wrote
_QUOTED = re.compile(
    r"^.*(?:server_args=|Receive: obj=|Finish: obj=|INFO: +\S+ - \"|--\w[\w-]* [A-Z_]+\]).*$", re.MULTILINE
)
_NOISE = re.compile(r"^.*(?:UserWarning|Ignore import error|warnings\.warn).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Outcome:
    message: str
    remedy: str
    retry: Retry


@dataclass(frozen=True, slots=True)
class _Signature:
    """One row. `at_start` is what holds where the server never became ready."""

    pattern: re.Pattern[str]
    failure_class: str
    outcome: _Outcome
    at_start: _Outcome
    fatal: bool


@dataclass(frozen=True, slots=True)
class _Signatures:
    causes: tuple[_Signature, ...]
    exceptions: tuple[_Signature, ...]
    generic: tuple[_Signature, ...]
    signals: dict[int, _Signature]


def classify(log: str, exit: Exit) -> Failure:
    """The class of the earliest line that names a cause; else what the traceback of the process that gave up
    ends with; else the earliest line that only says that something failed; else the signal; else "exited".

    The evidence is the line that matched, else how the process ended. What was logged before the server
    became ready is no cause of a later end.
    """
    known = _signatures()
    text, started = _since_ready(log)
    gave_up = _GAVE_UP.search(text)
    traceback = text if gave_up is None else text[gave_up.start() :]
    for group, where in ((known.causes, text), (known.exceptions, traceback), (known.generic, text)):
        hit = _earliest(group, where)
        if hit is not None:
            signature, match = hit
            outcome = signature.outcome if started else signature.at_start
            words = {k: (v or "").strip() for k, v in match.groupdict().items()}
            return _failure(signature, outcome, words, _line(where, match))
    return _of_exit(known, exit, started)


def fatal_line(log: str) -> str | None:
    """The log line after which this process will never serve (again) although it lives, or None.

    SGLang with its port taken loads the whole model and then hangs for minutes (sglang 0.5.23,
    srt/entrypoints/http_server.py); with a dead child it holds still for up to 60 s.
    """
    text, _ = _since_ready(log)
    known = _signatures()
    hit = _earliest([s for s in known.causes + known.generic if s.fatal], text)
    return None if hit is None else _line(text, hit[1])[:_EVIDENCE_CHARS]


def phase(log: str) -> str:
    """fetch, load, compile or warm-up: whichever the log spoke of last; "load" before it said anything."""
    for line in reversed(log[-_LIMIT_CHARS:].splitlines()):
        if _QUOTED.match(line) or _NOISE.match(line):
            continue
        for name, pattern in _PHASES:
            if pattern.search(line):
                return name
    return "load"


def _since_ready(log: str) -> tuple[str, bool]:
    """What can hold a cause, and whether the server had become ready before it."""
    if len(log) > 2 * _LIMIT_CHARS:
        log = log[:_LIMIT_CHARS] + "\n" + log[-_LIMIT_CHARS:]
    ready = _READY.search(log)
    text = log if ready is None else log[ready.end() :]
    return _NOISE.sub("", _QUOTED.sub("", text)), ready is not None


def _earliest(
    group: tuple[_Signature, ...] | list[_Signature], text: str
) -> tuple[_Signature, re.Match[str]] | None:
    hits = [
        (text.rfind("\n", 0, m.start()), i, m)
        for i, s in enumerate(group)
        if (m := s.pattern.search(text)) is not None
    ]
    if not hits:
        return None
    _, index, match = min(hits, key=lambda hit: hit[:2])
    return group[index], match


def _line(text: str, match: re.Match[str]) -> str:
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    return text[begin : end if end >= 0 else len(text)].strip()


def _of_exit(known: _Signatures, exit: Exit, started: bool) -> Failure:
    last_words = "`llmserve logs` has its last words"
    if exit.signal is None:
        if exit.code is None:
            return Failure(
                "exited", "the engine ended, and nobody saw how", "no exit record", last_words, "backoff"
            )
        how = "ended by itself, as if it had been asked to" if exit.code == 0 else f"ended with {exit.code}"
        return Failure("exited", f"the engine {how}", f"exited with {exit.code}", last_words, "backoff")
    evidence = f"killed by {_signal_name(exit.signal)}"
    signature = known.signals.get(exit.signal)
    if signature is None:
        said = f"the engine was ended by {_signal_name(exit.signal)}"
        return Failure("crash", said, evidence, last_words, "backoff")
    return _failure(signature, signature.outcome if started else signature.at_start, {}, evidence)


def _failure(signature: _Signature, outcome: _Outcome, words: Mapping[str, str], evidence: str) -> Failure:
    return Failure(
        signature.failure_class,
        _filled(outcome.message, words)[:_EVIDENCE_CHARS],
        evidence[:_EVIDENCE_CHARS],
        _filled(outcome.remedy, words),
        outcome.retry,
    )


def _filled(text: str, words: Mapping[str, str]) -> str:
    """The words a match found; an empty one takes what leads up to it along (": ", " at x ")."""
    for name, word in words.items():
        if word:
            text = text.replace("{" + name + "}", word)
        else:
            text = re.sub(
                r"(?:: | at mem_fraction_static |(?<=SGLang stopped): )?\{" + name + r"\}", "", text
            )
    return text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@functools.cache
def _signatures() -> _Signatures:
    import yaml

    text = (Path(__file__).parent / "failures.yaml").read_text(encoding="utf-8")
    data = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))

    def outcome(row: Mapping[str, Any]) -> _Outcome:
        return _Outcome(row["message"], row["remedy"], row["retry"])

    def signature(row: dict[str, Any]) -> _Signature:
        pattern = re.compile(row.get("match", ""), re.MULTILINE)
        at_start = outcome(row | row.get("at_start", {}))
        return _Signature(pattern, row["class"], outcome(row), at_start, row.get("fatal", False))

    return _Signatures(
        tuple(signature(r) for r in data["causes"]),
        tuple(signature(r) for r in data["exceptions"]),
        tuple(signature(r) for r in data["generic"]),
        {int(n): signature(r) for n, r in data["signals"].items()},
    )
