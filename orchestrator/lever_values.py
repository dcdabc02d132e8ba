"""What value a lever may have: checked for a person's words, and as JSON Schema for an editor."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from orchestrator.levers import LEVERS, Lever
from orchestrator.problems import MOST, Loc, Problem, not_a_choice, shown, unknown_key

AUTO = "auto"
"""The value of a lever that the planner decides; the same as not naming it."""

SPECULATIVE_METHODS = ("ngram", "suffix", "draft_model", "medusa", "eagle", "eagle3", "mtp")
"""The neutral names of the ways to guess tokens, vLLM's. An engine's own names pass too; it judges them."""

_METHOD = r"[a-z0-9][a-z0-9_-]{0,62}"
# least and most of each figure that a way to guess may take
SPECULATIVE_FIGURES = {
    "num_tokens": (1, 10_000, "tokens guessed in one step"),
    "num_steps": (1, 10_000, "passes of the draft for one step (SGLang)"),
    "topk": (1, 10_000, "branches that the draft follows (SGLang)"),
    "min_tokens": (0, 10_000, "fewer guessed tokens than these are not checked"),
    "prompt_lookup_min": (1, 10_000, "shortest run of tokens that is looked up (n-gram)"),
    "prompt_lookup_max": (1, 10_000, "longest run of tokens that is looked up (n-gram)"),
    "size_n": (1, 10_000, "run of tokens that is looked up (n-gram of llama.cpp)"),
    "min_hits": (1, 10_000, "times it must have been seen before (n-gram of llama.cpp)"),
    "p_min": (0, 1, "smallest probability at which the draft goes on"),
}

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_BYTES = r"[0-9]{1,15}(\.[0-9]{1,6})? ?(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)"
_LARGEST = 2**63 - 1
_LONGEST = 4096
_MOST_NAMES = 1024

# a pair's halves are set by their own levers, but cannot be pairs or copies again
_PAIR = tuple(name for name in LEVERS if name not in ("disaggregation", "replicas", "front"))


def check(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Levers by name with their values in the lever's unit ("2GiB" as bytes), and everything wrong.

    A problem's `loc` begins with the lever's name. Only what is right is in the first result. The search
    ends after `problems.MOST` problems.
    """
    return _check(values, LEVERS)


def _check(values: Mapping[str, Any], allowed: Collection[str]) -> tuple[dict[str, Any], list[Problem]]:
    good: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in values.items():
        if len(problems) >= MOST:
            break
        if name not in allowed:
            problems.append(unknown_key((name,), allowed, "lever"))
            continue
        checked, found = _value(LEVERS[name], value)
        problems += found
        if not found:
            good[name] = checked
    return good, problems


def _value(lever: Lever, value: Any) -> tuple[Any, list[Problem]]:
    loc: Loc = (lever.name,)
    if value == AUTO:
        return AUTO, []
    if lever.choices:
        if value in lever.choices:
            return value, []
        return None, [not_a_choice(loc, value, dict.fromkeys((AUTO, *lever.choices)))]
    match lever.kind:
        case "bool":
            return value, [] if isinstance(value, bool) else [_bool_problem(loc, value)]
        case "int":
            return value, _number(loc, value, lever, whole=True)
        case "float":
            return value, _number(loc, value, lever, whole=False)
        case "bytes":
            return _bytes(loc, value, lever)
        case "name":
            return value, _name(loc, value)
        case "names":
            return _names(loc, value)
        case "cuda_graph":
            if value == "off":
                return value, []
            found = _number(loc, value, lever, whole=True, least=1)
            return value, [_off_problem(loc, value, "the largest recorded batch")] if found else []
        case "speculative":
            return _speculative(loc, value)
        case "disaggregation":
            return _disaggregation(loc, value)


def _bool_problem(loc: Loc, value: Any) -> Problem:
    word = value.lower() if isinstance(value, str) else None
    remedy = {"on": "write true", "yes": "write true", "off": "write false", "no": "write false"}
    return Problem(
        loc, "bad_value", f"{shown(value)} is not true, false or auto", remedy.get(word, "") if word else ""
    )


def _off_problem(loc: Loc, value: Any, else_what: str) -> Problem:
    remedy = "write off" if value in (False, "no", "none", "None") else ""
    return Problem(loc, "bad_value", f"{shown(value)} is not auto, off or {else_what}", remedy)


def _number(loc: Loc, value: Any, lever: Lever, *, whole: bool, least: float | None = None) -> list[Problem]:
    unit = f" of {lever.unit}" if lever.unit and lever.unit != "share" else ""
    what = f"a whole number{unit}" if whole else f"a number{unit}"
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        remedy = "delete the line, or write auto" if value is None else _without_suffix(value)
        return [Problem(loc, "bad_value", f"{shown(value)} is not {what} or auto", remedy)]
    minimum = lever.minimum if least is None else least
    maximum = _LARGEST if lever.maximum is None else lever.maximum
    if minimum is not None and value < minimum:
        return [Problem(loc, "out_of_range", f"{shown(value)} is below the least allowed, {minimum:g}")]
    if value > maximum:
        return [Problem(loc, "out_of_range", f"{shown(value)} is above the most allowed, {maximum:g}")]
    return []


def _without_suffix(value: Any) -> str:
    """`16k` is a habit of other tools, which do not agree on what it means."""
    found = re.fullmatch(r"([0-9]{1,9})([kKmM])", value) if isinstance(value, str) else None
    if found is None:
        return ""
    power = 1 if found[2] in "kK" else 2
    return f"write {int(found[1]) * 1024**power} (or {int(found[1]) * 1000**power})"


def _bytes(loc: Loc, value: Any, lever: Lever) -> tuple[Any, list[Problem]]:
    if isinstance(value, str):
        if not re.fullmatch(_BYTES, value):
            message = f"{shown(value)} is not a number of bytes"
            return None, [Problem(loc, "bad_value", message, "write bytes, or a size such as 512MiB or 2GiB")]
        number = value.rstrip("KMGTiB").strip()
        value = int(float(number) * _UNITS[value[len(number) :].strip()])
    return value, _number(loc, value, lever, whole=True)


def _name(loc: Loc, value: Any) -> list[Problem]:
    if isinstance(value, str) and 0 < len(value) <= _LONGEST and value.isprintable():
        return []
    remedy = f'put it in quotes: "{shown(value)}"' if isinstance(value, (int, float)) else ""
    return [Problem(loc, "bad_value", f"{shown(value)} is not a name or auto", remedy)]


def _names(loc: Loc, value: Any) -> tuple[Any, list[Problem]]:
    if isinstance(value, (list, tuple)) and not 0 < len(value) <= _MOST_NAMES:
        what = "the list is empty" if not value else f"the list has {len(value)} names, {_MOST_NAMES} at most"
        return None, [
            Problem(loc, "bad_value", what, "name at least one, or write auto" if not value else "")
        ]
    if not isinstance(value, (list, tuple)):
        remedy = f"write [{shown(value)}]" if isinstance(value, str) else ""
        return None, [Problem(loc, "bad_value", f"{shown(value)} is not auto or a list of names", remedy)]
    problems = [p for i, item in enumerate(value) for p in _name((*loc, i), item)]
    if not problems and len(set(value)) < len(value):
        problems = [Problem(loc, "bad_value", "a name stands in the list twice", "keep one of them")]
    return list(value), problems


def _speculative(loc: Loc, value: Any) -> tuple[Any, list[Problem]]:
    if value == "off":
        return value, []
    if not isinstance(value, Mapping):
        return None, [_off_problem(loc, value, "a mapping with method, model and num_tokens")]
    known = ("method", "model", *SPECULATIVE_FIGURES)
    problems = [unknown_key((*loc, k), known) for k in value if k not in known]
    method = value.get("method")
    if "method" not in value:
        problems.append(_missing(loc, "method", f"add method: one of {', '.join(SPECULATIVE_METHODS)}"))
    elif not isinstance(method, str) or not re.fullmatch(_METHOD, method):
        problems.append(not_a_choice((*loc, "method"), method, SPECULATIVE_METHODS))
    elif method == "draft_model" and value.get("model") is None:
        problems.append(_missing(loc, "model", "add model: a small model of the same vocabulary"))
    if value.get("model") is not None:
        problems += _name((*loc, "model"), value["model"])
    for key, (least, most, _) in SPECULATIVE_FIGURES.items():
        if key in value:
            problems += _figure((*loc, key), value[key], least, most)
    return dict(value), problems


def _disaggregation(loc: Loc, value: Any) -> tuple[Any, list[Problem]]:
    if value == "off":
        return value, []
    if not isinstance(value, Mapping):
        return None, [_off_problem(loc, value, "a mapping with prefill and decode")]
    known = ("prefill", "decode", "connector", "prefill_levers", "decode_levers")
    problems = [unknown_key((*loc, k), known) for k in value if k not in known]
    out = dict(value)
    for part in ("prefill", "decode"):
        if part in value:
            problems += _figure((*loc, part), value[part], 1, 10_000)
        else:
            problems.append(_missing(loc, part, f"add {part}: the number of {part} servers"))
    if "connector" in value:
        problems += _name((*loc, "connector"), value["connector"])
    for part in ("prefill_levers", "decode_levers"):
        if isinstance(value.get(part, {}), Mapping):
            out[part], found = _check(value.get(part, {}), _PAIR)
            problems += [Problem((*loc, part, *p.loc), p.code, p.message, p.remedy) for p in found]
        else:
            problems.append(Problem((*loc, part), "bad_value", f"{shown(value[part])} is not a mapping"))
    return out, problems


def _missing(loc: Loc, key: str, remedy: str) -> Problem:
    return Problem((*loc, key), "missing_key", f"the key `{key}` is missing", remedy)


def _figure(loc: Loc, value: Any, least: int, most: int) -> list[Problem]:
    """Wrong unless a whole number of a range; the range 0 to 1 is a share and takes fractions."""
    share = most == 1
    is_number = isinstance(value, (int, float) if share else int) and not isinstance(value, bool)
    if is_number and least <= value <= most:
        return []
    what = "a number" if share else "a whole number"
    return [Problem(loc, "bad_value", f"{shown(value)} is not {what} from {least} to {most}")]


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a mapping of levers. Its `$ref`s are to `pair_json_schema` as `PairLevers`."""
    return _mapping_schema({lever.name: _lever_schema(lever) for lever in LEVERS.values()})


def pair_json_schema() -> dict[str, Any]:
    """JSON Schema of the levers of one half of a prefill/decode pair, beside `json_schema` in a profile."""
    return _mapping_schema({name: {"$ref": f"#/properties/levers/properties/{name}"} for name in _PAIR})


def _mapping_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


_NAME = {"type": "string", "minLength": 1, "maxLength": _LONGEST}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 10_000}


def _lever_schema(lever: Lever) -> dict[str, Any]:
    text = lever.meaning + (f" [{lever.unit}]" if lever.unit else "")
    text += "" if lever.lossless else "; some values can change answers"
    auto = {"const": AUTO}
    whole: dict[str, Any] = {"type": "integer", "minimum": lever.minimum or 0}
    limits: dict[str, Any] = {"minimum": lever.minimum, "maximum": lever.maximum}
    if lever.choices:
        return {"description": text, "enum": list(dict.fromkeys((AUTO, *lever.choices)))}
    either: list[dict[str, Any]]
    match lever.kind:
        case "bool":
            either = [auto, {"type": "boolean"}]
        case "int":
            either = [auto, whole]
        case "float":
            either = [auto, {"type": "number"} | {k: v for k, v in limits.items() if v is not None}]
        case "bytes":
            either = [auto, whole, {"type": "string", "pattern": f"^{_BYTES}$"}]
        case "name":
            either = [_NAME]
        case "names":
            names = {"type": "array", "items": _NAME, "minItems": 1, "uniqueItems": True}
            either = [auto, names | {"maxItems": _MOST_NAMES}]
        case "cuda_graph":
            either = [{"enum": [AUTO, "off"]}, {"type": "integer", "minimum": 1}]
        case "speculative":
            either = [{"enum": [AUTO, "off"]}, _speculative_schema()]
        case "disaggregation":
            either = [{"enum": [AUTO, "off"]}, _disaggregation_schema()]
    return {"description": text} | (either[0] if len(either) == 1 else {"anyOf": either})


def _speculative_schema() -> dict[str, Any]:
    # the names apart from the pattern: editors offer an enum's members
    method = {"anyOf": [{"enum": list(SPECULATIVE_METHODS)}, {"type": "string", "pattern": f"^{_METHOD}$"}]}
    figures = {
        key: {"type": "number" if most == 1 else "integer", "minimum": least, "maximum": most}
        | {"description": meaning}
        for key, (least, most, meaning) in SPECULATIVE_FIGURES.items()
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["method"],
        "properties": {
            "method": {"description": "how tokens are guessed"} | method,
            "model": {"anyOf": [_NAME, {"type": "null"}], "description": "the draft model or trained head"},
        }
        | figures,
    }


def _disaggregation_schema() -> dict[str, Any]:
    pair = {"$ref": "#/$defs/PairLevers"}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["prefill", "decode"],
        "properties": {
            "prefill": _COUNT | {"description": "prefill servers"},
            "decode": _COUNT | {"description": "decode servers"},
            "connector": _NAME | {"description": "how KV travels between them"},
            "prefill_levers": {"description": "levers of the prefill servers alone"} | pair,
            "decode_levers": {"description": "levers of the decode servers alone"} | pair,
        },
    }
