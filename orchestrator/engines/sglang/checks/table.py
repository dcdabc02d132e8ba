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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.engines.sglang.checks.args import DEFAULTS, Args, version_of

_CONDITION = re.compile(
    r"(?P<not>not )?(?P<what>--[\w-]+|@\w+)"
    r"(?: (?:(?P<given>is given)|(?P<how>=|!=|<=|>=|<|>|in|not in) (?P<value>.+)))?"
)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_PLACE = re.compile(r"\{(--[\w-]+|@\w+)\}")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition, read: of a flag or of a `fact` of Args, met where the comparison comes out as `wanted`.

    `operand` is a number, or the words that are compared with.
    """

    what: str
    fact: str | None
    how: str | None
    operand: Any
    wanted: bool

    @property
    def needs_flag(self) -> bool:
        """Whether it is never met where its flag is not given."""
        if self.fact is not None or not self.wanted or self.what in DEFAULTS:
            return False
        return self.how not in ("!=", "not in") and not (
            isinstance(self.operand, frozenset) and "" in self.operand
        )

    def met(self, args: Args) -> bool:
        how = self.how
        if how == "is given":
            return args.given(self.what) == self.wanted
        actual = args.get(self.what) if self.fact is None else getattr(args, self.fact)
        if how is None:
            return bool(actual) == self.wanted
        if how in _ORDER:
            if self.fact is None:
                actual = args.number(self.what)
            number = isinstance(actual, (int, float)) and not isinstance(actual, bool)
            return (number and _ORDER[how](actual, self.operand)) == self.wanted
        among = (
            bool(actual & self.operand) if isinstance(actual, frozenset) else _plain(actual) in self.operand
        )
        return (among == (how in ("=", "in"))) == self.wanted


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
    asked: tuple[Condition, ...] = field(init=False, repr=False, compare=False)
    needs: str | None = field(init=False, repr=False, compare=False)
    """A flag without which it never applies."""

    def __post_init__(self) -> None:
        """Raises ValueError where a condition cannot be read."""
        read = [condition(c, True) for c in self.when] + [condition(c, False) for c in self.unless]
        object.__setattr__(self, "asked", tuple(read))
        object.__setattr__(self, "needs", next((c.what for c in read if c.needs_flag), None))

    def covers(self, version: tuple[int, ...]) -> bool:
        return version >= self.since and not (self.until and version >= self.until)

    def applies(self, args: Args) -> bool:
        if not self.covers(args.version):
            return False
        # a loop, not all(): it runs for every rule of every plan
        for asked in self.asked:  # noqa: SIM110
            if not asked.met(args):
                return False
        return True

    def said(self, args: Args) -> str:
        return _filled(self.say, args)

    def remedy(self, args: Args) -> str:
        return _filled(self.do, args)


def holds(text: str, args: Args) -> bool:
    """Whether a condition does. Raises ValueError where it cannot be read."""
    return condition(text, True).met(args)


def condition(text: str, wanted: bool) -> Condition:
    """What a text asks for, met where it is `wanted`. Raises ValueError where it cannot be read."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(f"no condition: {text!r}")
    what, value = match["what"], match["value"] or ""
    how = match["given"] or match["how"]
    operand: Any = None
    if how in _ORDER:
        operand = float(value or 0)
    elif how in ("=", "!=", "in", "not in"):
        operand = frozenset(c.strip() for c in value.split(","))
    fact = what[1:] if what.startswith("@") else None
    return Condition(what, fact, how, operand, wanted != bool(match["not"]))


def met(name: str, args: Args) -> list[Rule]:
    """The rules of a file that apply to a command line."""
    words = args.words
    return [
        rule
        for rule in rules_for(name, args.version)
        if (rule.needs is None or rule.needs in words) and rule.applies(args)
    ]


@functools.cache
def rules_for(name: str, version: tuple[int, ...]) -> tuple[Rule, ...]:
    """Those of `rules` that are for a version."""
    return tuple(rule for rule in rules(name) if rule.covers(version))


@functools.cache
def rules(name: str) -> tuple[Rule, ...]:
    """The rules of a file beside this one. Raises ValueError or KeyError where one cannot be read."""
    import yaml

    text = (Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8")
    return tuple(_rule(row) for row in yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


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


def _value(args: Args, what: str) -> Any:
    return args.get(what) if what.startswith("--") else getattr(args, what[1:])


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _filled(text: str, args: Args) -> str:
    def value(match: re.Match[str]) -> str:
        found = _value(args, match.group(1))
        return ", ".join(sorted(found)) if isinstance(found, frozenset) else _plain(found)

    return _PLACE.sub(value, text)
