"""Quantizations that SGLang does not run on AMD: `amd.yaml`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.engines.checkpoint_format import method
from orchestrator.engines.sglang.checks.args import Args, version_of
from orchestrator.plan import Violation

_MODELOPT = "modelopt"


def quantization(args: Args) -> Iterator[Violation]:
    """0.5.23, configs/model_config.py:2156: a list of its own, which holds none of ModelOpt's names."""
    rows = (r for r in _table()["runs"] if args.version >= version_of(r["since"]))
    row = next(rows, None)
    if args.installation.extras.get("device") != "rocm" or row is None:
        return
    asked, own = str(args.get("--quantization") or "").lower(), _own(args)
    name = own if own and own.startswith(_MODELOPT) and asked not in _table()["stay"] else asked or own
    if not name or name in row["names"]:
        return
    weights = args.model.get("quantization")
    of = f"the weights are {weights}, {name} to SGLang" if name == own else f"quantization is {name}"
    runs = "use a checkpoint in fp8, mxfp4, awq, compressed-tensors or quark"
    yield Violation(
        "quantization_not_on_amd",
        f"{of}, and SGLang {args.installation.version} refuses that on AMD",
        f"{runs}, or --engine vllm" if name == own else f"use --set quantization=auto, or {runs[4:]}",
    )


def _own(args: Args) -> str | None:
    """SGLang's name for the checkpoint's quantization: ModelOpt's are renamed by what they hold."""
    kind = args.model.get("quantization")
    if args.model.get("quantization_method") == _MODELOPT and kind == "fp8":
        return "modelopt_fp8"
    return method(kind)


@functools.cache
def _table() -> dict[str, Any]:
    import yaml

    text = (Path(__file__).parent / "amd.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found
