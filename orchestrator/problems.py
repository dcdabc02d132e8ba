"""What is wrong with something a person wrote: where, what, and the nearest right word.

Profiles, `config.yaml` and `engines.yaml` are read with the same checker, so they fail in the same words.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from orchestrator.errors import LlmserveError, usage

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Loc = tuple[str | int, ...]
"""A place inside a mapping: keys and list positions from the root."""

MOST = 50
"""Problems after which the search ends: the nearest words of thousands would take minutes."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong at `loc`; `message` does not repeat the place, `remedy` may be empty."""

    loc: Loc
    code: str
    message: str
    remedy: str = ""


class Problems(ValueError):
    """Several problems found by one pydantic validator; their `loc` is relative to the validated field."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(p.message for p in problems))
        self.problems = tuple(problems)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to a mistyped one, or None where nothing is near."""
    close = difflib.get_close_matches(word[:64].lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return close[0] if close else None


_NOT_TEXT = ("true", "false", "null")


def shown(value: Any) -> str:
    """A value as it may stand in a message: one printable line of at most 60 characters."""
    if isinstance(value, str):
        # quotes where the text could be taken for something else
        plain = value[:64].isprintable() and value[:1].isalpha()

        text = value[:64] if plain and value.lower() not in _NOT_TEXT else repr(value[:64])
    elif value is None:
        text = "nothing"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, int):
        text = str(value) if value.bit_length() <= 128 else "a huge number"
    elif isinstance(value, float):
        text = repr(value)
    elif isinstance(value, dict):
        text = "a mapping"
    elif isinstance(value, (list, tuple)):
        text = "a list"
    else:
        text = type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def dotted(loc: Sequence[str | int]) -> str:
    """`("levers", "device_ids", 0)` as `levers.device_ids[0]`."""
    out = ""
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else ("." if out else "") + shown(part)
    return out


def unknown_key(loc: Loc, known: Iterable[str], what: str = "key") -> Problem:
    """The problem of a key that does not exist, with the nearest of `known`."""
    known = sorted(set(known))
    near = nearest(str(loc[-1]), known)
    listed = "known: " + ", ".join(known) if len(known) <= 12 else ""
    remedy = f"did you mean `{near}`?" if near else listed
    return Problem(loc, "unknown_key", f"there is no {what} `{shown(str(loc[-1]))}`", remedy)


def not_a_choice(loc: Loc, value: Any, choices: Iterable[str]) -> Problem:
    """The problem of a word that is none of `choices`, with the nearest."""
    choices = tuple(choices)
    near = nearest(value, choices) if isinstance(value, str) else None
    remedy = f"did you mean `{near}`?" if near else ""
    return Problem(loc, "bad_value", f"{shown(value)} is none of {', '.join(choices)}", remedy)


def error(code: str, subject: str, found: Sequence[tuple[str, Problem]], remedy: str = "") -> LlmserveError:
    """All problems in one error (exit 2), each with its place ("file:line", or an option's name).

    `subject` names what was read, `remedy` is the next step where the problems have none or are several.
    """
    violations = []
    for place, p in found[:MOST]:
        where = f"{place}: {dotted(p.loc)}: " if p.loc else f"{place}: "
        violations.append({"code": p.code, "message": where + p.message, "remedy": p.remedy})
    if len(found) == 1:
        e = usage(code, violations[0]["message"], violations[0]["remedy"] or remedy)
    else:
        count = str(len(found)) if len(found) < MOST else f"{MOST} or more"
        e = usage(code, f"{subject}: {count} problems", remedy)
    e.violations = violations
    return e


def from_validation(error: ValidationError, model: type[BaseModel], prefix: Loc = ()) -> list[Problem]:
    """A pydantic error as problems in plain words; `prefix` is where `model` stands in the whole file.

    Problems of the type `across_keys` keep that as their code: they are about several keys together.
    """
    out: list[Problem] = []
    for e in error.errors(include_url=False):
        if len(out) >= MOST:
            break
        loc: Loc = prefix + e["loc"]
        kind, ctx = e["type"], e.get("ctx", {})
        if kind == "extra_forbidden":
            out.append(unknown_key(loc, _keys_at(model, e["loc"][:-1])))
        elif kind == "missing":
            out.append(
                Problem(loc, "missing_key", f"the key `{loc[-1]}` is missing", f"add `{loc[-1]}: ...`")
            )
        elif kind == "literal_error":
            choices = [c.strip().strip("'") for c in ctx["expected"].replace(" or ", ", ").split(", ")]
            out.append(not_a_choice(loc, e["input"], choices))
        elif kind == "value_error" and isinstance(ctx.get("error"), Problems):
            out += [Problem(loc + p.loc, p.code, p.message, p.remedy) for p in ctx["error"].problems]
        elif kind == "across_keys":
            out.append(Problem(loc, kind, e["msg"], ctx.get("remedy", "")))
        else:
            out.append(_wrong_value(loc, kind, ctx, e["input"], e["msg"]))
    return out


_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a mapping of keys to values",
    "list_type": "a list",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "string_too_short": "a text that is not empty",
}

_LIMITS = {
    "greater_than_equal": ("ge", "is below the least allowed,"),
    "greater_than": ("gt", "must be above"),
    "less_than_equal": ("le", "is above the most allowed,"),
    "less_than": ("lt", "must be below"),
}


def _wrong_value(loc: Loc, kind: str, ctx: dict[str, Any], value: Any, fallback: str) -> Problem:
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        return Problem(loc, "out_of_range", f"{shown(value)} {words} {ctx[key]:g}")
    if kind == "string_pattern_mismatch":
        message = f"{shown(value)} does not have the form {ctx['pattern']}"
        return Problem(loc, "bad_value", message)
    if kind in _EXPECTED:
        return Problem(loc, "bad_value", f"{shown(value)} is not {_EXPECTED[kind]}", _hint(kind, value))
    return Problem(loc, "bad_value", f"{shown(value)}: {fallback}")


def _hint(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return f'put it in quotes: "{shown(value)}"'
    if kind == "bool_type" and isinstance(value, str) and value.lower() in ("yes", "on", "no", "off"):
        return f"write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    if value is None:
        return "delete the line, or write {}" if kind.startswith(("dict", "model")) else "delete the line"
    return ""


def _keys_at(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    current: Any = model
    for part in loc:
        # a position leads into a list's items
        current = get_args(current)[0] if isinstance(part, int) else current.model_fields[part].annotation
    return list(current.model_fields)
