"""Rules inside JSON flags: their shape, the keys that a config has, and the values that a key takes.

The keys are the installation's own (`config_fields`, see dump_flags); nothing is said of a release without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.engines.command_line import canonical
from orchestrator.engines.vllm.checks.command import out_of
from orchestrator.engines.vllm.checks.settings import Settings, rules
from orchestrator.plan import Violation
from orchestrator.problems import nearest

_SHOWN = 40
# judged with the rest of their flag, in its own words
_ELSEWHERE = {
    "--speculative-config": ("method", "num_speculative_tokens", "rejection_sample_method"),
    "--kv-transfer-config": ("kv_role",),
}


def check(s: Settings) -> list[Violation]:
    """What the parser makes of a config's JSON (vLLM 0.32.0 vllm/engine/arg_utils.py, parse_dataclass), and
    the rules between keys of one config."""
    fields: Mapping[str, Any] = s.installation.extras.get("config_fields") or {}
    found = [*_shapes(s, fields), *_named(s)]
    for flag, rows in fields.items():
        value = s.json(flag)
        if value:
            found += _keys(s, flag, "", value, rows)
            found += _between(flag, {_name(k): v for k, v in value.items()})
    return found


def named(value: Any, row: Mapping[str, Any]) -> bool:
    """Whether a value is one of an enumeration's names (in either case) or values."""
    if value == "auto" or isinstance(value, bool) or value in row.get("values", ()):
        return True
    return str(value).upper().replace("-", "_") in {str(n).upper().replace("-", "_") for n in row["names"]}


def _shapes(s: Settings, fields: Mapping[str, Any]) -> Iterator[Violation]:
    for given in s.parsed.given:
        flag, text = canonical(given.flag), given.values[0].strip() if given.values else ""
        if given.key or not text or (flag, text) in s.parsed.bad:
            continue
        value = s.parsed.values.get(flag)
        is_object = isinstance(value, dict)
        if flag in fields:
            # vLLM reads --speculative-config as JSON of any kind first
            wrong = not is_object and text != "None" and (flag, text) != ("--speculative-config", "null")
        else:
            wrong = flag in rules()["objects"] and (isinstance(value, (list, str)) or text == "[]")
        if wrong:
            yield Violation(
                "config_shape",
                f"{flag} is {text[:_SHOWN]}, and takes a JSON object",
                f"write {flag} '{{\"key\": value}}', or take it out",
            )


def _named(s: Settings) -> Iterator[Violation]:
    """Flags that stand for one of an enumeration, which the parser itself does not check."""
    known: Mapping[str, Any] = s.installation.extras.get("flag_names") or {}
    for flag, row in known.items():
        text = s.text(flag)
        if text is not None and text not in map(str, row.get("values", ())) and not named(text, row):
            yield Violation(
                "bad_value",
                f"{flag} is {text!r}: vLLM {s.installation.version} offers {', '.join(row['names'])}",
                f"choose one of those, or leave {flag} to the engine",
            )
    level = None if "--optimization-level" in known else s.parsed.values.get("--optimization-level")
    if level is not None and str(level) not in ("0", "1", "2", "3"):
        # vllm/config/vllm.py, OptimizationLevel
        yield Violation(
            "bad_value", f"--optimization-level is {level!r}, and takes 0 to 3", "use -O2, or leave it out"
        )
    if s.given("--attention-backend") and s.json("--attention-config").get("backend") is not None:
        yield Violation(
            "attention_backend_twice",
            "--attention-backend and backend of --attention-config say the same",
            "take one of the two out of engine_args",
        )


def _name(key: Any) -> str:
    return str(key).replace("-", "_")


def _keys(
    s: Settings, flag: str, path: str, value: Mapping[str, Any], rows: Mapping[str, Any]
) -> Iterator[Violation]:
    for key, inner in value.items():
        row, whole = rows.get(_name(key)), f"{path}{key}"
        if row is None:
            # those of speculation are told with its own list
            if flag != "--speculative-config":
                yield _unknown_key(s, flag, whole, rows)
        elif inner is None or (not path and _name(key) in _ELSEWHERE.get(flag, ())):
            continue
        elif "keys" in row and isinstance(inner, Mapping):
            yield from _keys(s, flag, f"{whole}.", inner, row["keys"])
        elif wanted := _wanted(inner, row):
            yield Violation(
                "config_value",
                f"{whole} of {flag} is {inner!r}: vLLM {s.installation.version} takes {wanted}",
                "correct it, or take it out",
            )


def _unknown_key(s: Settings, flag: str, key: str, rows: Mapping[str, Any]) -> Violation:
    renamed = rules()["renamed_keys"].get(flag, {}).get(key)
    near = nearest(key.rpartition(".")[2], rows)
    if renamed is not None:
        remedy = f"it is {renamed['to']} since vLLM {renamed['since']}"
    else:
        remedy = f"did it mean {near}? or take it out" if near else "take it out"
    return Violation(
        "config_key",
        f"vLLM {s.installation.version} knows no {key} in {flag}: it has {', '.join(rows)}",
        remedy,
    )


def _wanted(value: Any, row: Mapping[str, Any]) -> str | None:
    """What a key takes, in words, where the value is none of it."""
    if "names" in row:
        return None if named(value, row) else ", ".join(map(str, row["names"]))
    if "choices" in row:
        return None if value in row["choices"] else ", ".join(map(str, row["choices"]))
    types = row.get("types")
    if types is None:
        return None
    if not any(_is(value, kind) for kind in types):
        return " or ".join(_WORDS[kind] for kind in types)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return out_of(row, value)
    return None


_WORDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "list": "a list",
    "dict": "an object",
}  # fmt: skip
_TRUTHS = ("true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "1", "0")


def _is(value: Any, kind: str) -> bool:
    """As pydantic reads JSON: numbers in quotes are numbers, and 0 and 1 are truths."""
    if kind in ("int", "float"):
        if not isinstance(value, (int, float, str)):
            return False
        try:
            number = float(value)
        except ValueError:
            return False
        return kind == "float" or number.is_integer()
    if kind == "bool":
        return str(value).lower() in _TRUTHS or value in (0, 1)
    return isinstance(value, {"str": str, "list": list, "dict": dict}[kind])


def _between(flag: str, value: Mapping[str, Any]) -> Iterator[Violation]:
    """Rules between keys (vLLM 0.32.0 vllm/config/structured_outputs.py, profiler.py:234-272, ec_transfer.py,
    compilation.py)."""
    said = remedy = None
    if flag == "--structured-outputs-config":
        backend = value.get("backend", "auto")
        if value.get("disable_any_whitespace") is True and backend not in ("xgrammar", "guidance"):
            said, remedy = f"disable_any_whitespace does not go with backend {backend}", "backend guidance"
        elif value.get("disable_additional_properties") is True and backend != "guidance":
            said = f"disable_additional_properties does not go with backend {backend}"
            remedy = "backend guidance"
    elif flag == "--profiler-config":
        kind = value.get("profiler")
        if kind in ("torch", "proton") and not value.get(f"{kind}_profiler_dir"):
            said, remedy = f"profiler {kind} needs a folder", f"{kind}_profiler_dir beside it"
        elif value.get("torch_profiler_dir") and kind != "torch":
            said, remedy = "torch_profiler_dir is for profiler torch alone", "profiler torch"
    elif flag == "--ec-transfer-config" and value.get("ec_connector") and not value.get("ec_role"):
        said, remedy = "an ec_connector needs a role", "ec_role ec_producer, ec_consumer or ec_both"
    elif flag == "--compilation-config" and isinstance(value.get("custom_ops"), list):
        ops = [str(op) for op in value["custom_ops"]]
        strange = [op for op in ops if op not in ("all", "none") and op[:1] not in ("+", "-")]
        if strange:
            said, remedy = f"custom_ops has {strange[0]!r}", f"all, none, +{strange[0]} or -{strange[0]}"
        elif "all" in ops and "none" in ops:
            said, remedy = "custom_ops has both all and none", "one of them"
    if said is not None:
        yield Violation("config_keys_clash", f"{flag}: {said}", f"use {remedy}")
