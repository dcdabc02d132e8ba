"""What the argument parser itself refuses (exit 2), and values outside a field's bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.engines.base import Installation
from orchestrator.engines.vllm.checks.settings import Settings, rules
from orchestrator.plan import Violation

_SHOWN = 12


def check(s: Settings) -> list[Violation]:
    """Unknown, ambiguous, unfinished and wrongly typed flags, and numbers out of bounds."""
    found = [_unknown(word, s.installation) for word in s.parsed.unknown]
    for word, meanings in s.parsed.ambiguous.items():
        found.append(
            Violation(
                "ambiguous_flag",
                f"{word} could be {', '.join(meanings[:_SHOWN])}",
                "write the flag out in engine_args",
            )
        )
    for flag in s.parsed.incomplete:
        found.append(Violation("flag_without_value", f"{flag} needs a value", "give it one in engine_args"))
    for flag, text in s.parsed.bad:
        found.append(_bad(s, flag, text))
    for row in _bounds(s):
        value = s.number(row["flag"])
        if value is not None and (said := out_of(row, value)):
            found.append(
                Violation("out_of_bounds", f"{row['flag']} is {value}: vLLM needs {said}", _bound_remedy(row))
            )
    return found


def _bounds(s: Settings) -> list[dict[str, Any]]:
    """Those of the rules, and those that the installation's own fields have and the rules do not."""
    rows: list[dict[str, Any]] = rules()["bounds"]
    known = {row["flag"] for row in rows}
    own = s.installation.extras.get("bounds") or {}
    return [*rows, *({"flag": flag, **bounds} for flag, bounds in own.items() if flag not in known)]


def _unknown(word: str, installation: Installation) -> Violation:
    advice = (installation.extras.get("removed") or {}).get(word)
    if advice:
        return Violation(
            "removed_flag", f"vLLM {installation.version} has no {word}: {advice}", "leave it out"
        )
    near = installation.nearest(word)
    return Violation(
        "unknown_flag",
        f"vLLM {installation.version} has no {word}",
        (f"did it mean {near}? " if near else "") + "take it out of engine_args",
    )


def _bad(s: Settings, flag: str, text: str) -> Violation:
    known = s.installation.flag(flag)
    if known is None or not known.choices:
        kind = {"size": "a whole number", "int": "a whole number", "float": "a number"}
        wanted = kind.get(known.type if known else "", known.type if known else "a value")
        return Violation("bad_value", f"{flag} is {text!r}, and takes {wanted}", f"correct {flag}")
    return Violation(
        "bad_value",
        f"{flag} is {text!r}: vLLM {s.installation.version} offers {', '.join(known.choices)}",
        f"choose one of those, or leave {flag} to the engine",
    )


def out_of(row: Mapping[str, Any], value: float) -> str | None:
    """What a bound asks for, in words, where a value is beyond it."""
    said = []
    for key, holds, words in (
        ("at_least", value >= row.get("at_least", value), "at least"),
        ("above", value > row["above"] if "above" in row else True, "more than"),
        ("at_most", value <= row.get("at_most", value), "at most"),
        ("below", value < row["below"] if "below" in row else True, "less than"),
    ):
        if not holds:
            said.append(f"{words} {row[key]}")
    return " and ".join(said) or None


def _bound_remedy(row: dict[str, Any]) -> str:
    if "lever" in row:
        return f"use --set {row['lever']}=auto, or a value in those bounds"
    return f"correct {row['flag']} in engine_args, or take it out"
