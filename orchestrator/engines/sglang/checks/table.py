"""Rules that are data: a condition each, in `refused.yaml` and `adjusted.yaml`.

A condition is a flag or an @fact, with a comparison where a plain "it is on" is not meant:
`--enable-lmcache`, `--moe-a2a-backend = none`, `@attention > 1`, `@speculation in NGRAM, STANDALONE`,
`--page-size >= 2`, `not --enable-lora`. `--flag is given` asks for the flag itself, whatever its value.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.engines.sglang.checks.args import Args, version_of

_CONDITION = re.compile(
    r"(?P<not>not )?(?P<what>--[\w-]+|@\w+)"
    r"(?: (?:(?P<given>is given)|(?P<how>=|!=|<=|>=|<|>|in|not in) (?P<value>.+)))?"
)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_PLACE = re.compile(r"\{(--[\w-]+|@\w+)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """Holds where all of `when` and none of `unless` do, from version `since` on and before `until`."""

    code: str
    when: tuple[str, ...]
    unless: tuple[str, ...]
    say: str
    do: str
    source: str
    since: tuple[int, ...]
    until: tuple[int, ...]

    def applies(self, args: Args) -> bool:
        if args.version < self.since or (self.until and args.version >= self.until):
            return False
        return all(holds(c, args) for c in self.when) and not any(holds(c, args) for c in self.unless)

    def said(self, args: Args) -> str:
        return _filled(self.say, args)

    def remedy(self, args: Args) -> str:
        return _filled(self.do, args)


def holds(condition: str, args: Args) -> bool:
    """Whether a condition does. Raises ValueError where it cannot be read."""
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise ValueError(f"no condition: {condition!r}")
    what, value = match.group("what"), match.group("value")
    how = match.group("given") or match.group("how")
    return _compared(args, what, how, value) != bool(match.group("not"))


@functools.cache
def rules(name: str) -> tuple[Rule, ...]:
    """The rules of a file beside this one. Raises ValueError or KeyError where one cannot be read."""
    import yaml

    text = (Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8")
    made = tuple(_rule(row) for row in yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    for rule in made:
        for condition in rule.when + rule.unless:
            if _CONDITION.fullmatch(condition) is None:
                raise ValueError(f"{rule.code}: no condition: {condition!r}")
    return made


def _rule(row: dict[str, Any]) -> Rule:
    return Rule(
        code=row["code"],
        when=tuple(row["when"]),
        unless=tuple(row.get("unless", ())),
        say=row["say"],
        do=row.get("do", ""),
        source=row["source"],
        since=version_of(str(row.get("since", ""))),
        until=version_of(str(row.get("until", ""))),
    )


def _compared(args: Args, what: str, how: str | None, text: str | None) -> bool:
    if how == "is given":
        return args.given(what)
    actual = _value(args, what)
    if how is None:
        return bool(actual)
    if how in _ORDER:
        number = isinstance(actual, (int, float)) and not isinstance(actual, bool)
        return number and _ORDER[how](actual, float(text or 0))
    many = actual if isinstance(actual, frozenset) else {_plain(actual)}
    choices = {c.strip() for c in (text or "").split(",")}
    return bool(many & choices) == (how in ("=", "in"))


def _value(args: Args, what: str) -> Any:
    return args.get(what) if what.startswith("--") else getattr(args, what[1:])


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _filled(text: str, args: Args) -> str:
    def value(match: re.Match[str]) -> str:
        found = _value(args, match.group(1))
        return ", ".join(sorted(found)) if isinstance(found, frozenset) else _plain(found)

    return _PLACE.sub(value, text)
