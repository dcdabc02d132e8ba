"""What must stand inside a flag's value: sizes, JSON, buckets and adapters."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.engines.sglang.checks.args import Args, size, version_of
from orchestrator.plan import Violation

_CORRECT = "correct it in engine_args"


def inside(args: Args) -> Iterator[Violation]:
    """Every value that SGLang's parser or resolver cannot use."""
    yield from _sizes(args)
    yield from _json(args)
    yield from _graphs(args)
    for flag in ("--prompt-tokens-buckets", "--generation-tokens-buckets"):
        wrong = _bucket_fault(args.get(flag))
        if wrong:
            yield _bad(flag, wrong, "write default, custom with its bounds, or tse with MIDDLE BASE COUNT")
    for text in args.get("--lora-paths") or ():
        yield from _adapter(str(text))


def _bad(flag: str, what: str, instead: str = _CORRECT) -> Violation:
    return Violation("bad_value", f"{flag}: {what}", instead)


def _sizes(args: Args) -> Iterator[Violation]:
    """0.5.23, utils/common.py:3394, human_readable_int."""
    for given in args.parsed.given:
        for text in given.values if given.flag.type == "size_si" else ():
            if size(text) is None:
                yield _bad(
                    given.spelling,
                    f"{text!r} is no whole number",
                    "write it as 8192, with k, M, G or T behind it (8k), or with Ki, Mi, Gi or Ti (8Ki)",
                )


def _json(args: Args) -> Iterator[Violation]:
    for row in _rows("json", args.version):
        flag, told = row["flag"], args.get(row["flag"])
        # what is no JSON at all is said of the parser
        if told is None or isinstance(told, str):
            continue
        if row.get("strings"):
            if not isinstance(told, list) or not all(isinstance(word, str) for word in told):
                yield _bad(flag, "it is no JSON list of words")
            continue
        if not isinstance(told, dict):
            if row.get("object"):
                yield _bad(flag, f"{json.dumps(told)} is no JSON object")
            continue
        known = row.get("keys")
        if known and (strange := sorted(set(told) - set(known))):
            yield _bad(flag, f"it has no {', '.join(strange)}", f"use {', '.join(known)}")
        for key in row.get("objects", ()):
            if key in told and not isinstance(told[key], dict):
                yield _bad(flag, f"{key} is no JSON object")
    for row in _rows("texts", args.version):
        text = args.get(row["flag"])
        if isinstance(text, str) and not _is_json(text):
            yield _bad(row["flag"], f"{text!r} is no JSON")


def _graphs(args: Args) -> Iterator[Violation]:
    """0.5.23, model_executor/cuda_graph_config.py:246 and arg_groups/cuda_graph_hook.py."""
    flag = "--cuda-graph-config"
    told = args.get(flag)
    if not args.given(flag) or isinstance(told, str):
        return
    if not isinstance(told, dict):
        yield _bad(flag, f"{json.dumps(told)} is no JSON object")
        return
    row = next(iter(_rows("cuda_graph", args.version)), {})
    for phase, settings in told.items():
        if phase not in ("decode", "prefill"):
            yield _bad(flag, f"it has no phase {phase!r}", "use decode and prefill")
        elif not isinstance(settings, dict):
            yield _bad(flag, f"{phase} is no JSON object")
        else:
            keys = row.get(phase, settings)
            for key in settings:
                if key not in keys:
                    yield _bad(flag, f"{phase} has no {key!r}", f"use {', '.join(keys)}")
            backend = args.said(f"--cuda-graph-backend-{phase}")
            offered = backend.choices if backend is not None else ()
            if "backend" in settings and offered and settings["backend"] not in offered:
                yield _bad(
                    flag,
                    f"{phase} has no backend {json.dumps(settings['backend'])}",
                    f"use {', '.join(offered)}",
                )
            yield from _graph_sizes(flag, phase, settings)


def _graph_sizes(flag: str, phase: str, settings: dict[str, Any]) -> Iterator[Violation]:
    most, sizes = settings.get("max_bs"), settings.get("bs")
    if most is not None and not isinstance(most, int):
        yield _bad(flag, f"max_bs of {phase} is no number")
    whole = isinstance(sizes, list) and sizes and all(isinstance(n, (int, float)) for n in sizes)
    if sizes is not None and not whole:
        yield _bad(flag, f"bs of {phase} is no list of numbers")


def _bucket_fault(told: Any) -> str:
    """What is wrong with a rule of buckets, "" where nothing (0.5.23, arg_groups/validation_hook.py:385;
    the same in 0.5.9)."""
    if not told:
        return ""
    rule, *rest = (str(word) for word in told)
    numbers = [_number(word) for word in rest]
    if rule not in ("tse", "default", "custom"):
        return f"there is no rule {rule!r}"
    if rule == "default":
        return "default takes no numbers" if rest else ""
    if rule == "tse":
        if len(rest) != 3 or None in numbers or not rest[2].lstrip("+-").isdigit():
            return "tse takes MIDDLE, BASE and a whole COUNT"
        middle, base, count = (number or 0 for number in numbers)
        return "" if middle > 0 and base > 1 and count > 0 else "tse takes MIDDLE > 0, BASE > 1 and COUNT > 0"
    if not rest or not all(number is not None and number >= 0 for number in numbers):
        return "custom takes one number or more, none below 0"
    return "custom takes each number once" if len(set(numbers)) < len(numbers) else ""


def _adapter(text: str) -> Iterator[Violation]:
    """0.5.23, arg_groups/argparse_actions.py:14; the same in 0.5.1, server_args.py."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return
    told = json.loads(text) if _is_json(text) else None
    if not isinstance(told, dict) or not {"lora_name", "lora_path"} <= set(told):
        yield _bad("--lora-paths", "JSON without lora_name and lora_path names no adapter", "write NAME=PATH")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@functools.cache
def _rows(name: str, version: tuple[int, ...]) -> tuple[dict[str, Any], ...]:
    """The rows of a part of values.yaml that hold for a version."""
    import yaml

    text = (Path(__file__).parent / "values.yaml").read_text(encoding="utf-8")
    rows = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))[name]
    return tuple(
        row
        for row in rows
        if version >= version_of(str(row.get("since", "")))
        and ("until" not in row or version < version_of(str(row["until"])))
    )
