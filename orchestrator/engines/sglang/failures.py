"""The first cause in a whole log, and the phase that a log's end shows. The texts are in `failures.yaml`.

A process killed by signal 9 is no proof of a want of memory: SGLang ends its own tree with it whatever
went wrong, and the cause stands above (sglang 0.5.23, srt/entrypoints/engine.py).
"""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.engines.base import Exit, Failure
from orchestrator.engines.failure_signatures import (
    EVIDENCE_CHARS,
    LIMIT_CHARS,
    bounded,
    earliest,
    failure,
    failure_of_exit,
    last_phase,
    signatures,
)

_TABLE = Path(__file__).parent / "failures.yaml"
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
_NO_WORD_OF_ITS_OWN = re.compile(f"{_QUOTED.pattern}|{_NOISE.pattern}")


def classify(log: str, exit: Exit) -> Failure:
    """The class of the earliest line that names a cause; else what the traceback of the process that gave up
    ends with; else the earliest line that only says that something failed; else the signal; else "exited".

    The evidence is the line that matched, else how the process ended. What was logged before the server
    became ready is no cause of a later end.
    """
    known = signatures(_TABLE)
    text, started = _since_ready(log)
    gave_up = _GAVE_UP.search(text)
    traceback = text if gave_up is None else text[gave_up.start() :]
    for group, where in (("causes", text), ("exceptions", traceback), ("generic", text)):
        hit = earliest(known.groups[group], where)
        if hit is not None:
            words = {k: (v or "").strip() for k, v in hit.match.groupdict().items()}
            return failure(hit.signature, words, hit.line, started)
    return failure_of_exit(known.signals, exit, started)


def fatal_line(log: str) -> str | None:
    """The log line after which this process will never serve (again) although it lives, or None.

    SGLang with its port taken loads the whole model and then hangs for minutes (sglang 0.5.23,
    srt/entrypoints/http_server.py); with a dead child it holds still for up to 60 s.
    """
    text, _ = _since_ready(log)
    known = signatures(_TABLE)
    hit = earliest([s for g in ("causes", "generic") for s in known.groups[g] if s.fatal], text)
    return None if hit is None else hit.line[:EVIDENCE_CHARS]


def phase(log: str) -> str:
    """fetch, load, compile or warm-up: whichever the log spoke of last; "load" before it said anything."""
    return last_phase(log[-LIMIT_CHARS:].splitlines(), _PHASES, _NO_WORD_OF_ITS_OWN)


def _since_ready(log: str) -> tuple[str, bool]:
    """What can hold a cause, and whether the server had become ready before it."""
    log = bounded(log)
    ready = _READY.search(log)
    text = log if ready is None else log[ready.end() :]
    return _NOISE.sub("", _QUOTED.sub("", text)), ready is not None
