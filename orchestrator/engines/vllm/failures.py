"""The first cause in a whole log, and the phase that a log's end shows. The texts are in `failures.yaml`."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.engines.base import Exit, Failure, Retry
from orchestrator.engines.vllm.start_log import log_facts

_LIMIT_CHARS = 8 << 20
_EVIDENCE_CHARS = 400
_PHASES = (
    (
        "warm-up",
        re.compile(
            r"KV cache size:|[Cc]apturing CUDA graph|Graph capturing finished|[Ww]arming up|init engine \("
            r"|Starting vLLM server|Application startup complete"
        ),
    ),
    # with --enforce-eager it says that it does without: "disabling torch.compile"
    (
        "compile",
        re.compile(r"(?<!disabling )torch\.compile|[Cc]ompiling a graph|Dynamo bytecode|backends\.py:\d+\]"),
    ),
    ("fetch", re.compile(r"Downloading|Fetching \d+ files|Time spent downloading weights")),
    (
        "load",
        re.compile(
            r"Starting to load model|Loading (?:safetensors|weights|pt)|Model loading took|non-default args"
        ),
    ),
)
_READY = re.compile(r"^.*Application startup complete\.\s*$", re.MULTILINE)
_ASKED_TO_STOP = re.compile(r"^.*\[shutdown\] API server: shutdown triggered.*$", re.MULTILINE)
# the parent's last word; it then leaves, or was seen not to
_NEVER_READY = re.compile(r"^.*Engine core initialization failed\. See root cause above.*$", re.MULTILINE)
# lines that repeat what a client or the command line wrote
_QUOTED = re.compile(r"^.*(?:Received request |non-default args: |with config: model=).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Outcome:
    message: str
    remedy: str
    retry: Retry


@dataclass(frozen=True, slots=True)
class _Signature:
    """One row. `at_start` is what holds where the server never became ready; `after` must stand before it."""

    pattern: re.Pattern[str]
    after: re.Pattern[str] | None
    failure_class: str
    outcome: _Outcome
    at_start: _Outcome


@dataclass(frozen=True, slots=True)
class _Signatures:
    causes: tuple[_Signature, ...]
    generic: tuple[_Signature, ...]
    signals: dict[int, _Signature]


def classify(log: str, exit: Exit) -> Failure:
    """The class of the earliest line that names a cause; else the earliest that only says that something
    failed; else the signal; else "exited". "Engine core initialization failed. See root cause above" is
    never a class.

    The evidence is the line that matched, else how the process ended. What was logged before the server
    became ready is no cause of a later end, and what was logged after it was asked to stop is none of any:
    a clean stop ends with EngineDeadError. vLLM leaves with 0 when its engine core is killed.
    """
    if len(log) > 2 * _LIMIT_CHARS:
        log = log[:_LIMIT_CHARS] + "\n" + log[-_LIMIT_CHARS:]
    known = _signatures()
    ready = _READY.search(log)
    text = log[ready.end() :] if ready is not None else log
    asked = _ASKED_TO_STOP.search(text)
    if asked is not None:
        text = text[: asked.start()]
    text = _QUOTED.sub("", text)
    for group in (known.causes, known.generic):
        hits = [
            (text.rfind("\n", 0, m.start()), i, m)
            for i, s in enumerate(group)
            if (m := s.pattern.search(text)) is not None
            and (s.after is None or s.after.search(text, 0, m.start()) is not None)
        ]
        if hits:
            _, index, match = min(hits, key=lambda hit: hit[:2])
            return _of_line(group[index], match, text, log, ready is not None)
    if asked is not None and exit.signal is None:
        end = log.find("\n", log.find(asked[0]))
        evidence = asked[0].strip() if end else ""
        return _failure(known.signals[15], known.signals[15].outcome, {}, evidence)
    return _of_exit(known, exit, ready is not None)


def phase(log: str) -> str:
    """fetch, load, compile or warm-up: whichever the log spoke of last; "load" before it said anything."""
    for line in reversed(log[-_LIMIT_CHARS:].splitlines()):
        for name, pattern in _PHASES:
            if pattern.search(line):
                return name
    return "load"


def fatal_line(log: str) -> str | None:
    """The line with which a start gives up, where the log holds it: the process was seen to live on."""
    found = _NEVER_READY.search(log)
    return found[0].strip() if found else None


def _of_line(signature: _Signature, match: re.Match[str], text: str, log: str, started: bool) -> Failure:
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    evidence = " ".join(line.strip() for line in text[begin : end if end >= 0 else len(text)].splitlines())
    groups = match.groupdict()
    # of alternatives in one row only one speaks; where none does, the log does not say
    spoken = any(groups.values())
    words = {k: " ".join((v or "").replace("Value error, ", "").split()) for k, v in groups.items()}
    if groups and not spoken:
        words[next(iter(words))] = "the log does not say what"
    args = log_facts(log[: 1 << 16]).get("args") or {}
    words.setdefault("model", str(args.get("model") or "named"))
    words.setdefault("port", str(args.get("port") or "8000"))
    return _failure(signature, signature.outcome if started else signature.at_start, words, evidence)


def _of_exit(known: _Signatures, exit: Exit, started: bool) -> Failure:
    last_words = "`llmserve logs` has its last words"
    if exit.signal is None:
        if exit.code is None:
            said = "the engine ended, and nobody saw how"
            return Failure("exited", said, "no exit record", last_words, "backoff")
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
    """Only the words that are known are filled in: a remedy may hold YAML in braces."""
    for name, word in words.items():
        text = text.replace("{" + name + "}", word)
    return text.rstrip(": ")


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
        after = re.compile(row["after"], re.MULTILINE) if "after" in row else None
        return _Signature(pattern, after, row["class"], outcome(row), outcome(row | row.get("at_start", {})))

    return _Signatures(
        tuple(signature(r) for r in data["causes"]),
        tuple(signature(r) for r in data["generic"]),
        {int(n): signature(r) for n, r in data["signals"].items()},
    )
