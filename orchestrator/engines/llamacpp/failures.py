"""The first cause in a whole log, and the phase that a log's end shows. The texts are in `failures.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from orchestrator.engines.base import Exit, Failure
from orchestrator.engines.failure_signatures import (
    LIMIT_CHARS,
    bounded,
    earliest,
    failure,
    failure_of_exit,
    last_phase,
    signatures,
)
from orchestrator.engines.llamacpp.embedded_args import EMBEDDED_MARK

_TABLE = Path(__file__).parent / "failures.yaml"
_PHASES = (
    ("warm-up", re.compile(r"warming up|model loaded|listening on|all slots are idle")),
    ("load", re.compile(r"loading model|load_tensors|llama_model_load|n_ctx_slot|fitting params")),
    ("fetch", re.compile(r"common_download|downloading from|curl_perform")),
)
_READY = re.compile(r"^.* model loaded\s*$", re.MULTILINE)
# refusals of requests, which repeat what a client wrote
_QUOTED = re.compile(r"^.*(?:got exception: |\"error\":).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _File:
    pattern: re.Pattern[str]
    what: str
    repair: str


def classify(log: str, exit: Exit) -> Failure:
    """The class of the earliest line that names a cause; else the earliest that only says that something
    failed; else the signal; else "exited". "exiting due to model loading error" is never a class.

    The evidence is the line that matched, else how the process ended. What was logged before the server
    became ready is no cause of a later end.
    """
    log = bounded(log)
    known = signatures(_TABLE)
    ready = _READY.search(log)
    started = ready is not None
    text = _QUOTED.sub("", log[ready.end() :] if ready is not None else log)
    for group in ("causes", "generic"):
        hit = earliest(known.groups[group], text, exit)
        if hit is not None:
            words = {
                k: (v or "").strip() or "the log does not say what" for k, v in hit.match.groupdict().items()
            }
            outcome = hit.signature.said(started)
            if "{file}" in outcome.message or "{repair}" in outcome.remedy:
                words |= _named_file(text[text.rfind("\n", 0, hit.match.start()) + 1 :])
            return failure(hit.signature, words, hit.line, started)
    embedded = EMBEDDED_MARK in log[:4096]
    another = {"another": "" if embedded else "with --engine embedded, or "}
    return failure_of_exit(known.signals, exit, started, another)


def phase(log: str) -> str:
    """fetch, load or warm-up: whichever the log spoke of last; "load" before it said anything."""
    return last_phase(log[-LIMIT_CHARS:].splitlines(), _PHASES)


def _named_file(text: str) -> dict[str, str]:
    """`file` and `repair`: the file that the log names from the cause's line on, and what mends it."""
    for row in _files():
        match = row.pattern.search(text)
        if match is not None:
            path = (match.groupdict().get("path") or "").strip()
            return {"file": row.what.format(path=path), "repair": row.repair}
    return {"file": "the model file", "repair": "check the model"}


@lru_cache(maxsize=1)
def _files() -> tuple[_File, ...]:
    import yaml

    data = yaml.load(_TABLE.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tuple(_File(re.compile(r["match"], re.MULTILINE), r["what"], r["repair"]) for r in data["files"])
