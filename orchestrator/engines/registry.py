"""The engines there are, by kind."""

from __future__ import annotations

import importlib

from orchestrator.engines.base import Engine
from orchestrator.errors import not_found

_ENGINES = {
    "llamacpp": ("orchestrator.engines.llamacpp.engine", "LlamaCpp"),
    "vllm": ("orchestrator.engines.vllm.engine", "Vllm"),
    "sglang": ("orchestrator.engines.sglang.engine", "Sglang"),
}


def kinds() -> tuple[str, ...]:
    """Every kind, in the order in which engine `auto` prefers them."""
    return tuple(_ENGINES)


def engine(kind: str) -> Engine:
    """The engine of a kind. Raises LlmserveError (exit 5) where there is none."""
    if kind not in _ENGINES:
        raise not_found(
            "unknown_engine", f"there is no engine kind {kind!r}", f"the kinds are: {', '.join(kinds())}"
        )
    module, name = _ENGINES[kind]
    made: Engine = getattr(importlib.import_module(module), name)()
    return made
