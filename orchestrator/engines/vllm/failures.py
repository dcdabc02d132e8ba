"""The first cause in a whole log, and the phase that a log's end shows. The texts are in `failures.yaml`."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.engines.base import Exit, Failure
from orchestrator.engines.failure_signatures import (
    LIMIT_CHARS,
    Hit,
    bounded,
    earliest,
    failure,
    failure_of_exit,
    last_phase,
    signatures,
)
from orchestrator.engines.vllm.start_log import log_facts

_TABLE = Path(__file__).parent / "failures.yaml"
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


def classify(log: str, exit: Exit) -> Failure:
    """The class of the earliest line that names a cause; else the earliest that only says that something
    failed; else the signal; else "exited". "Engine core initialization failed. See root cause above" is
    never a class.

    The evidence is the line that matched, else how the process ended. What was logged before the server
    became ready is no cause of a later end, and what was logged after it was asked to stop is none of any:
    a clean stop ends with EngineDeadError. vLLM leaves with 0 when its engine core is killed.
    """
    log = bounded(log)
    known = signatures(_TABLE)
    ready = _READY.search(log)
    text = log[ready.end() :] if ready is not None else log
    asked = _ASKED_TO_STOP.search(text)
    if asked is not None:
        text = text[: asked.start()]
    text = _QUOTED.sub("", text)
    for group in ("causes", "generic", "summaries"):
        hit = earliest(known.groups[group], text)
        if hit is not None:
            return failure(hit.signature, _words(hit, log), hit.line, ready is not None)
    if asked is not None and exit.signal is None:
        end = log.find("\n", log.find(asked[0]))
        return failure(known.signals[15], {}, asked[0].strip() if end else "", started=True)
    return failure_of_exit(known.signals, exit, ready is not None)


def phase(log: str) -> str:
    """fetch, load, compile or warm-up: whichever the log spoke of last; "load" before it said anything."""
    return last_phase(log[-LIMIT_CHARS:].splitlines(), _PHASES)


def fatal_line(log: str) -> str | None:
    """The line with which a start gives up, where the log holds it: the process was seen to live on."""
    found = _NEVER_READY.search(log)
    return found[0].strip() if found else None


def _words(hit: Hit, log: str) -> dict[str, str]:
    groups = hit.match.groupdict()
    words = {k: " ".join((v or "").replace("Value error, ", "").split()) for k, v in groups.items()}
    # of alternatives in one row only one speaks; where none does, the log does not say
    if groups and not any(groups.values()):
        words[next(iter(words))] = "the log does not say what"
    args = log_facts(log[: 1 << 16]).get("args") or {}
    words.setdefault("model", str(args.get("model") or "named"))
    words.setdefault("port", str(args.get("port") or "8000"))
    return words
