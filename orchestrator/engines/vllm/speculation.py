"""The lever `speculative` as vLLM's --speculative-config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.engines.base import Installation
from orchestrator.engines.vllm import captured
from orchestrator.plan import Violation

_METHODS = {"draft": "draft_model", "lookup": "ngram"}
"""Neutral names that are not vLLM's."""

_KEYS = {
    "num_tokens": "num_speculative_tokens",
    "min_ngram": "prompt_lookup_min",
    "max_ngram": "prompt_lookup_max",
}
"""Neutral figure to key; every other figure goes by vLLM's own name."""

_FIRST_KEYS = (
    "enforce_eager", "num_speculative_tokens", "model", "method", "draft_tensor_parallel_size",
    "quantization", "max_model_len", "revision", "code_revision", "prompt_lookup_max", "prompt_lookup_min",
)  # fmt: skip
"""Keys that every release from 0.10 on has (vllm/config.py of 0.10.0, vllm/config/speculative.py since)."""

OFF = (None, False, "off", "none", "auto")


def method(asked: Any, installation: Installation) -> str:
    """vLLM's name of a method on this installation."""
    name = str(asked.get("method", "") if isinstance(asked, Mapping) else asked)
    name = _METHODS.get(name, name)
    methods = installation.extras.get("spec_methods") or ()
    if name == "mtp" and name not in methods and "deepseek_mtp" in methods:
        # before 0.12 the one name of all heads of this kind
        return "deepseek_mtp"
    return name


def keys(installation: Installation) -> tuple[str, ...]:
    """The keys that --speculative-config may hold on this installation."""
    told = installation.extras.get("spec_keys")
    if told:
        return tuple(told)
    version = captured.release(installation.version)
    spans = captured.history()["spec_keys"]
    there = (
        k
        for k, (first, last) in spans.items()
        if captured.release(first) <= version and (last is None or version <= captured.release(last))
    )
    return (*_FIRST_KEYS, *there)


def config(asked: Any, installation: Installation) -> tuple[str | None, list[str], list[Violation]]:
    """The JSON of --speculative-config (None where there is none to give), figures that have no word here as
    `speculative.FIGURE`, and what is refused."""
    if asked in OFF or (isinstance(asked, Mapping) and asked.get("method") in OFF):
        return None, [], []
    figures = dict(asked) if isinstance(asked, Mapping) else {}
    name = method(asked, installation)
    offered = installation.extras.get("spec_methods") or ()
    if offered and name not in offered:
        return None, [], [_not_offered(name, offered, installation)]
    made: dict[str, Any] = {"method": name}
    allowed, missing = keys(installation), []
    for figure, value in figures.items():
        key = _KEYS.get(figure, figure)
        if figure == "method" or value is None:
            continue
        if key in allowed:
            made[key] = value
        else:
            missing.append(f"speculative.{figure}")
    return json.dumps(made), missing, []


def _not_offered(name: str, offered: tuple[str, ...], installation: Installation) -> Violation:
    # aliases of one method by model family
    listed = [m for m in offered if not m.endswith("_mtp")]
    listed += ["deepseek_mtp"] if "mtp" not in offered and "deepseek_mtp" in offered else []
    return Violation(
        "speculative_method",
        f"speculative.method {name!r}: vLLM {installation.version} does not offer it; "
        f"it offers {', '.join(sorted(listed))}",
        "choose one of those with --set speculative='{method: ...}', or --set speculative=off",
    )
