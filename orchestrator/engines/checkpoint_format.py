"""The engines' own word for how a checkpoint is quantised, from the name that a model card gives it."""

from __future__ import annotations

import re

_BITS = re.compile(r"(.+)-(?:(?:int|fp|nf|mxfp|nvfp)\d+|\d+|unknown)")
_PRODUCED = {"nvfp4": "modelopt_fp4"}
"""Kinds whose checkpoints ModelOpt writes, which the card names by the kind alone."""


def method(name: str | None) -> str | None:
    """ "awq" of "awq-int4", "compressed-tensors" of "compressed-tensors-int4", "fp8" of "fp8+mxfp4";
    "modelopt_fp4" of "nvfp4"; None of weights that are not quantised."""
    if not name or name == "none":
        return None
    kind = name.partition("+")[0]
    bits = _BITS.fullmatch(kind)
    return bits[1] if bits else _PRODUCED.get(kind, kind)
