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
from orchestrator.engines.llamacpp.embedded_args import EMBEDDED_MARK

_LIMIT_CHARS = 8 << 20
_EVIDENCE_CHARS = 400
_PHASES = (
    ("warm-up", re.compile(r"warming up|model loaded|listening on|all slots are idle")),
    ("load", re.compile(r"loading model|load_tensors|llama_model_load|n_ctx_slot|fitting params")),
    ("fetch", re.compile(r"common_download|downloading from|curl_perform")),
)
_READY = re.compile(r"^.* model loaded\s*$", re.MULTILINE)
# refusals of requests, which repeat what a client wrote
_QUOTED = re.compile(r"^.*(?:got exception: |\"error\":).*$", re.MULTILINE)


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
    signal: int | None
    outcome: _Outcome
    at_start: _Outcome


@dataclass(frozen=True, slots=True)
class _File:
    pattern: re.Pattern[str]
    what: str
    repair: str


@dataclass(frozen=True, slots=True)
class _Signatures:
    causes: tuple[_Signature, ...]
    generic: tuple[_Signature, ...]
    signals: dict[int, _Signature]
    files: tuple[_File, ...]


def classify(log: str, exit: Exit) -> Failure:
    """The class of the earliest line that names a cause; else the earliest that only says that something
    failed; else the signal; else "exited". "exiting due to model loading error" is never a class.

    The evidence is the line that matched, else how the process ended. What was logged before the server
    became ready is no cause of a later end.
    """
    if len(log) > 2 * _LIMIT_CHARS:
        log = log[:_LIMIT_CHARS] + "\n" + log[-_LIMIT_CHARS:]
    known = _signatures()
    ready = _READY.search(log)
    started = ready is not None
    text = _QUOTED.sub("", log[ready.end() :] if ready is not None else log)
    for group in (known.causes, known.generic):
        hits = [
            (text.rfind("\n", 0, m.start()), i, m)
            for i, s in enumerate(group)
            if s.signal in (None, exit.signal) and (m := s.pattern.search(text))
        ]
        if hits:
            _, index, match = min(hits, key=lambda hit: hit[:2])
            return _of_line(group[index], match, text, started)
    return _of_exit(known, exit, started, EMBEDDED_MARK in log[:4096])


def phase(log: str) -> str:
    """fetch, load or warm-up: whichever the log spoke of last; "load" before it said anything."""
    tail = log[-_LIMIT_CHARS:]
    for line in reversed(tail.splitlines()):
        for name, pattern in _PHASES:
            if pattern.search(line):
                return name
    return "load"


def _of_line(signature: _Signature, match: re.Match[str], text: str, started: bool) -> Failure:
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    lines = text[begin : end if end >= 0 else len(text)].splitlines()
    evidence = " ".join(line.strip() for line in lines)
    words = {k: (v or "").strip() or "the log does not say what" for k, v in match.groupdict().items()}
    outcome = signature.outcome if started else signature.at_start
    if "{file}" in outcome.message or "{repair}" in outcome.remedy:
        words |= _named_file(text[begin:])
    return _failure(signature, outcome, words, evidence)


def _of_exit(known: _Signatures, exit: Exit, started: bool, embedded: bool) -> Failure:
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
    another = {"another": "" if embedded else "with --engine embedded, or "}
    return _failure(signature, signature.outcome if started else signature.at_start, another, evidence)


def _named_file(text: str) -> dict[str, str]:
    """`file` and `repair`: the file that the log names from the cause's line on, and what mends it."""
    for row in _signatures().files:
        match = row.pattern.search(text)
        if match is not None:
            path = (match.groupdict().get("path") or "").strip()
            return {"file": row.what.format(path=path), "repair": row.repair}
    return {"file": "the model file", "repair": "check the model"}


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
        return _Signature(pattern, row["class"], row.get("signal"), outcome(row), at_start)

    return _Signatures(
        tuple(signature(r) for r in data["causes"]),
        tuple(signature(r) for r in data["generic"]),
        {int(n): signature(r) for n, r in data["signals"].items()},
        tuple(_File(re.compile(r["match"], re.MULTILINE), r["what"], r["repair"]) for r in data["files"]),
    )
