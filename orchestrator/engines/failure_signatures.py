"""What an engine's log says when it fails: rows of its `failures.yaml`, the earliest that a log holds, the
Failure made of it; and what a process's end alone says.

Each engine's `failures.py` knows where its log begins to count and what in it is quotation.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.engines.base import Exit, Failure, Retry

# of a longer log the first and the last so many characters are read
LIMIT_CHARS = 8 << 20
EVIDENCE_CHARS = 400
_LAST_WORDS = "`llmserve logs` has its last words"
# what leads up to a word that the log does not say: ": ", " at mem_fraction_static "
_LEAD = r"(?:: | at [a-z_]+ |(?<=stopped): )?"


@dataclass(frozen=True, slots=True)
class Outcome:
    message: str
    remedy: str
    retry: Retry


@dataclass(frozen=True, slots=True)
class Signature:
    """One row. `at_start` is what holds where the server never became ready; `after` is what an earlier line
    must hold, `signal` what must have ended the process; `fatal` says that the process lives on uselessly."""

    pattern: re.Pattern[str]
    failure_class: str
    outcome: Outcome
    at_start: Outcome
    after: re.Pattern[str] | None
    signal: int | None
    fatal: bool

    def said(self, started: bool) -> Outcome:
        return self.outcome if started else self.at_start


@dataclass(frozen=True, slots=True)
class Hit:
    signature: Signature
    match: re.Match[str]
    line: str


@dataclass(frozen=True, slots=True)
class Signatures:
    """A `failures.yaml`: its lists of rows by name, its `signals` by number."""

    groups: Mapping[str, tuple[Signature, ...]]
    signals: Mapping[int, Signature]


@lru_cache(maxsize=8)
def signatures(path: Path) -> Signatures:
    """The rows of every list of `path` that has a `class`. What is wrong in the file raises KeyError or
    re.error: it is the project's own."""
    import yaml

    data = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    groups = {
        name: tuple(_signature(row) for row in rows)
        for name, rows in data.items()
        if name != "signals" and all("class" in row for row in rows)
    }
    return Signatures(groups, {int(number): _signature(row) for number, row in data["signals"].items()})


def bounded(log: str) -> str:
    """The log's beginning and end, where it is long."""
    if len(log) <= 2 * LIMIT_CHARS:
        return log
    return log[:LIMIT_CHARS] + "\n" + log[-LIMIT_CHARS:]


def earliest(rows: Iterable[Signature], text: str, exit: Exit | None = None) -> Hit | None:
    """The row whose line stands first in `text`; of two on one line, the upper row."""
    hits = [
        (text.rfind("\n", 0, match.start()), index, row, match)
        for index, row in enumerate(rows)
        if (row.signal is None or (exit is not None and row.signal == exit.signal))
        and (match := row.pattern.search(text)) is not None
        and (row.after is None or row.after.search(text, 0, match.start()) is not None)
    ]
    if not hits:
        return None
    _, _, row, match = min(hits, key=lambda hit: hit[:2])
    return Hit(row, match, line_of(text, match))


def line_of(text: str, match: re.Match[str]) -> str:
    """The line, or the lines, that a match lies in, as one."""
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    lines = text[begin : end if end >= 0 else len(text)].splitlines()
    return " ".join(line.strip() for line in lines)


def failure(signature: Signature, words: Mapping[str, str], evidence: str, started: bool) -> Failure:
    """The row's message and remedy with `words` filled in; the evidence and the message are cut to
    EVIDENCE_CHARS."""
    outcome = signature.said(started)
    return Failure(
        signature.failure_class,
        filled(outcome.message, words)[:EVIDENCE_CHARS],
        evidence[:EVIDENCE_CHARS],
        filled(outcome.remedy, words),
        outcome.retry,
    )


def filled(text: str, words: Mapping[str, str]) -> str:
    """Only the words that are known are filled in: a remedy may hold YAML in braces. An empty word takes
    what leads up to it along, where no other word stands right behind it."""
    for name, word in words.items():
        place = re.escape("{" + name + "}")
        if not word:
            text = re.sub(f"{_LEAD}{place}(?!\\{{)|{place}", "", text)
    for name, word in words.items():
        text = text.replace("{" + name + "}", word)
    return text.rstrip(": ")


def failure_of_exit(
    signals: Mapping[int, Signature], exit: Exit, started: bool, words: Mapping[str, str] | None = None
) -> Failure:
    """What the end itself says, where the log says nothing."""
    if exit.signal is None:
        if exit.code is None:
            said = "the engine ended, and nobody saw how"
            return Failure("exited", said, "no exit record", _LAST_WORDS, "backoff")
        how = "ended by itself, as if it had been asked to" if exit.code == 0 else f"ended with {exit.code}"
        return Failure("exited", f"the engine {how}", f"exited with {exit.code}", _LAST_WORDS, "backoff")
    evidence = f"killed by {signal_name(exit.signal)}"
    signature = signals.get(exit.signal)
    if signature is None:
        said = f"the engine was ended by {signal_name(exit.signal)}"
        return Failure("crash", said, evidence, _LAST_WORDS, "backoff")
    return failure(signature, words or {}, evidence, started)


def last_phase(
    lines: Sequence[str], phases: Sequence[tuple[str, re.Pattern[str]]], quoted: re.Pattern[str] | None = None
) -> str:
    """The phase that the lines spoke of last; "load" where they spoke of none."""
    for line in reversed(lines):
        if quoted is not None and quoted.match(line):
            continue
        for name, pattern in phases:
            if pattern.search(line):
                return name
    return "load"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signature(row: Mapping[str, Any]) -> Signature:
    def outcome(of: Mapping[str, Any]) -> Outcome:
        return Outcome(of["message"], of["remedy"], of["retry"])

    return Signature(
        pattern=re.compile(row.get("match", ""), re.MULTILINE),
        failure_class=row["class"],
        outcome=outcome(row),
        at_start=outcome({**row, **row.get("at_start", {})}),
        after=re.compile(row["after"], re.MULTILINE) if "after" in row else None,
        signal=row.get("signal"),
        fatal=row.get("fatal", False),
    )
