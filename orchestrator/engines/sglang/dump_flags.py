"""Run by an installation's own interpreter: prints what its server accepts, as one JSON object on stdout.

It runs where llmserve is not installed, under any Python that SGLang runs on, for every SGLang 0.5, and so
imports nothing of llmserve. Where SGLang fails it prints {"error": ..., "kind": ...} and ends with 0, so that
a reason and a crash are told apart. Whatever the imports print goes to stderr.

Where torch sees no accelerator, SGLANG_USE_CPU_ENGINE=1 is set before the import: without it SGLang takes the
machine for one with CUDA (sglang/srt/utils/common.py, is_cpu) and fails to import.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import importlib.metadata
import json
import os
import sys
from typing import Any

# this folder holds modules whose names must not hide others
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]

DISTRIBUTION = "sglang"
DEPENDENCIES = (
    "torch", "triton", "transformers", "sglang-kernel", "sgl-kernel", "flashinfer-python", "flash-attn",
    "mooncake-transfer-engine", "nixl", "lmcache", "xgrammar", "deep-ep", "ray", "granian",
)  # fmt: skip
METHODS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO")
TYPES = {"int": "int", "float": "float", "loads": "json", "json_list_type": "json"} | {
    "human_readable_int": "size_si",  # 25.6k, 1M, 1Ki
    "parse_cuda_graph_config_arg": "json",
}


def main() -> None:
    """Print the object; see the module."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        told = ask()
    except BaseException as e:
        told = {"error": str(e).strip() or type(e).__name__, "kind": type(e).__name__}
    # a line of its own, whatever the interpreter's own start has printed
    out.write(f"\n{json.dumps(told)}\n")
    out.flush()
    # threads and atexit hooks of what was imported are not waited for
    os._exit(0)


def ask() -> dict[str, Any]:
    """Everything asked of this installation; raises what SGLang raises."""
    device = _device()
    if device == "cpu":
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    version = getattr(importlib.import_module("sglang"), "__version__", "")
    parser = argparse.ArgumentParser(prog="sglang.launch_server", add_help=False)
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    rows = [_row(a) for a in parser._actions if a.option_strings]
    return {
        "version": str(version) or _version(DISTRIBUTION) or "unknown",
        "distribution": DISTRIBUTION,
        "dependencies": {name: _version(name) for name in DEPENDENCIES},
        "device": device,
        "spec_methods": _spec_methods(parser),
        "flags": rows,
    }


def _device() -> str:
    """The kind of accelerator that torch sees, "cpu" where none, or where the environment says so."""
    torch = importlib.import_module("torch")
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        return "cpu"
    if torch.cuda.is_available():
        return "rocm" if torch.version.hip else "cuda"
    for name in ("xpu", "npu", "musa", "hpu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return name
    return "cpu"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _row(action: argparse.Action) -> dict[str, Any]:
    """spellings (as listed), type, and nargs, choices, default and deprecated where there are any."""
    row: dict[str, Any] = {"spellings": list(action.option_strings), "type": _type(action)}
    if action.nargs in ("?", "*", "+"):
        row["nargs"] = action.nargs
    offered = action.choices or ()
    choices = [_text(c) for c in (sorted(offered) if isinstance(offered, set) else offered) if c is not None]
    if choices:
        row["choices"] = choices
    default = _text(action.default)
    if default is not None:
        row["default"] = default
    said = " ".join((action.help or "").split())
    if type(action).__name__.startswith("Deprecated") or said.lower().startswith(
        ("deprecated", "(deprecated")
    ):
        row["deprecated"] = said
    return row


def _type(action: argparse.Action) -> str:
    return "bool" if action.nargs == 0 else TYPES.get(getattr(action.type, "__name__", "str"), "str")


def _text(value: Any) -> str | None:
    """A default or a choice as text; None where it says nothing that a line could say."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or value is argparse.SUPPRESS or isinstance(value, str):
        return None if value is argparse.SUPPRESS else value
    try:
        return json.dumps(sorted(value) if isinstance(value, (set, frozenset)) else value)
    except (TypeError, ValueError):
        return None


def _spec_methods(parser: argparse.ArgumentParser) -> list[str]:
    """The speculative algorithms: the flag's choices, else those that its help names."""
    action = next((a for a in parser._actions if "--speculative-algorithm" in a.option_strings), None)
    if action is None:
        return []
    if action.choices:
        return [str(c) for c in action.choices]
    words = (action.help or "").replace(",", " ").replace(".", " ").split()
    return [m for m in METHODS if m in words]


if __name__ == "__main__":
    main()
