"""Ways to guess tokens: SGLang's names and figures for the neutral ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.engines.base import Installation

METHODS = {
    "ngram": ("NGRAM",),
    "eagle": ("EAGLE",),
    "eagle3": ("EAGLE3",),
    "mtp": ("NEXTN", "EAGLE"),
    "draft_model": ("STANDALONE",),
    "draft": ("STANDALONE",),
}
"""The neutral names with SGLang's, best first. NEXTN is EAGLE whose draft is the model's own extra layers
(sglang/srt/arg_groups/speculative_hook.py:90-102, 1120-1160)."""

NGRAM_BREADTH = 10
"""The default of --speculative-ngram-max-bfs-breadth."""

_BLOCKS = ("DFLASH", "DSPARK", "UNO")
_MATCHES = {
    "--speculative-ngram-min-match-window-size": ("prompt_lookup_min", "min_ngram"),
    "--speculative-ngram-max-match-window-size": ("prompt_lookup_max", "max_ngram"),
}


def spec_method(value: Mapping[str, Any], installation: Installation) -> str | None:
    """SGLang's name of the way to guess tokens that the installation offers, or None."""
    name = str(value.get("method", ""))
    offered = installation.extras.get("spec_methods", ())
    return next((m for m in METHODS.get(name, (name.upper(),)) if m in offered), None)


def spec_arguments(
    value: Mapping[str, Any], method: str, installation: Installation
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flags with their values, and the figures that the method or the version has no word for.

    SGLang's number of draft tokens counts the last sure token too, so it is `num_tokens` and one.
    """
    left = {k: v for k, v in value.items() if k != "method" and v is not None}
    flags: dict[str, Any] = {}
    if method == "NGRAM":
        return flags | _ngram(left, installation), left
    if "model" in left:
        flags["--speculative-draft-model-path"] = left.pop("model")
    if method in _BLOCKS:
        if "num_tokens" in left:
            flags["--speculative-num-draft-tokens"] = left.pop("num_tokens") + 1
        return flags, left
    return flags | _chain(left), left


def _chain(left: dict[str, Any]) -> dict[str, int]:
    """Steps, width and tokens of a draft's guesses: the three together, or none, which leaves them to SGLang
    (speculative_hook.py:1159). With width 1 the draft tokens are the steps and one (:1262)."""
    tokens, steps = left.pop("num_tokens", None), left.pop("num_steps", None)
    if tokens is None and steps is None:
        return {}
    width = left.pop("topk", 1)
    if width == 1:
        steps = tokens = steps or tokens
    return {
        "--speculative-num-steps": steps or tokens,
        "--speculative-eagle-topk": width,
        "--speculative-num-draft-tokens": (tokens or steps * width) + 1,
    }


def _ngram(left: dict[str, Any], installation: Installation) -> dict[str, int]:
    """Tokens and width of guesses out of the text itself, and the match's length where a version has one."""
    tokens, width = left.pop("num_tokens", None), left.pop("topk", None)
    flags: dict[str, int] = {}
    if tokens is not None:
        flags["--speculative-num-draft-tokens"] = tokens + 1
        # steps are the tokens over the width (speculative_hook.py:1328): no more branches than tokens
        width = width or (tokens + 1 if tokens + 1 < NGRAM_BREADTH else None)
    if width is not None:
        flags["--speculative-ngram-max-bfs-breadth"] = width
    for flag, keys in _MATCHES.items():
        for key in keys:
            if key in left and installation.flag(flag) is not None:
                flags[flag] = left.pop(key)
    return flags
