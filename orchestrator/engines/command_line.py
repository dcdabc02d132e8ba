"""Reads an engine's argument list the way its argparse parser will, with the flags the installation lists.

Names are made canonical (a flag's first long spelling), values typed, and everything the parser would refuse
is kept by kind. What differs between engines is an option of `parse`. Rules are those of Python's argparse
(https://docs.python.org/3/library/argparse.html); the dotted form is vLLM's FlexibleArgumentParser
(vllm/utils/argparse_utils.py, 0.10 to 0.33).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.engines.base import Flag, Installation

_MULTIPLES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_INDEXES: dict[int, tuple[tuple[Flag, ...], dict[str, Flag]]] = {}
_INDEXES_KEPT = 64
_NEGATIVE_NUMBER = re.compile(r"^-(\d+|\d*\.\d+)$")


@dataclass(frozen=True, slots=True)
class Given:
    """One flag as it stands in an argument list.

    `word` is what was written, `spelling` the listed one it stands for, `values` what it takes as text,
    `key` the dotted path behind it ("" where there is none).
    """

    flag: Flag
    word: str
    spelling: str
    values: tuple[str, ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """An argument list, read.

    `values` holds canonical flag to value: True or False for a switch, an int, float, str or (json) dict, a
    list where the flag takes several; the last one given counts. `unknown` are words that no flag is spelled
    like, `ambiguous` shortened words with the spellings they could mean, `incomplete` flags whose value is
    missing, `bad` flags with the text that is not of their type or choices, `positionals` the rest.
    """

    values: dict[str, Any]
    given: tuple[Given, ...] = ()
    unknown: tuple[str, ...] = ()
    ambiguous: dict[str, tuple[str, ...]] = field(default_factory=dict)
    incomplete: tuple[str, ...] = ()
    bad: tuple[tuple[str, str], ...] = ()
    positionals: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the engine's parser would take it."""
        return not (self.unknown or self.ambiguous or self.incomplete or self.bad)


def canonical(flag: Flag) -> str:
    """The name a flag goes by here: its first long spelling, else its first."""
    first = flag.spellings[0]
    if first.startswith("--"):
        return first
    return next((s for s in flag.spellings if s.startswith("--")), first)


def negates(flag: Flag, spelling: str) -> bool:
    """Whether this spelling of a switch says the opposite of its canonical one (`--no-x`, `--disable-x`)."""
    if flag.takes_value or not spelling.startswith("--"):
        return False
    return _polarity(spelling) != _polarity(canonical(flag))


def _polarity(spelling: str) -> bool:
    name, positive = spelling.removeprefix("--"), True
    if name.startswith("no-"):
        name, positive = name.removeprefix("no-"), False
    return positive != name.startswith("disable-")


def index(installation: Installation) -> dict[str, Flag]:
    """Every listed spelling and its flag. Made once for a table of flags, not to be changed."""
    flags = installation.flags
    kept = _INDEXES.get(id(flags))
    if kept is None or kept[0] is not flags:
        if len(_INDEXES) >= _INDEXES_KEPT:
            _INDEXES.clear()
        kept = _INDEXES[id(flags)] = (flags, {s: f for f in flags for s in f.spellings})
    return kept[1]


def parse(
    argv: Sequence[str],
    installation: Installation,
    *,
    underscores: bool = False,
    abbreviations: bool = False,
    dotted: bool = False,
    optional: bool = False,
) -> Parsed:
    """Read what follows the program's own words (`argv` without `installation.argv`). Raises nothing.

    `underscores`: `--a_b` is `--a-b`. `abbreviations`: a unique beginning of a long flag is that flag, and a
    short one may carry its value (`-n2`). `dotted`: `--flag.key value` sets one key of a JSON flag and
    `--flag.key+ a,b` adds to a list in it. `optional`: `None` and an empty word are no value, where the flag
    has none by default.
    """
    reader = _Reader(
        installation, underscores=underscores, abbreviations=abbreviations, dotted=dotted, optional=optional
    )
    return reader.read(list(argv))


def matches(
    word: str, installation: Installation, *, underscores: bool = False, abbreviations: bool = False
) -> tuple[str, ...]:
    """The listed spellings that a word (without `=value`) can mean: one exact, else all it begins."""
    name = "--" + word[2:].replace("_", "-") if underscores and word.startswith("--") else word
    listed = index(installation)
    if name in listed:
        return (name,)
    if not abbreviations or not name.startswith("-") or name in ("-", "--"):
        return ()
    return tuple(s for s in listed if s.startswith(name))


def typed(flag: Flag, text: str) -> Any:
    """A value's text as the flag's type. Raises ValueError where it is not of the type or the choices."""
    value: Any = text
    if flag.type == "int":
        value = int(text)
    elif flag.type == "float":
        value = float(text)
    elif flag.type == "json" or (flag.type == "json_or_str" and text.strip()[:1] == "{"):
        value = _json(text)
    elif flag.type in ("size", "size_or_auto"):
        value = -1 if flag.type == "size_or_auto" and text.lower() in ("auto", "-1") else size(text)
    if flag.choices and str(value) not in flag.choices:
        raise ValueError(text)
    return value


def size(text: str) -> int:
    """A whole number with vLLM's suffixes: k is 1000 and K 1024, fractions only with the small letters.
    Raises ValueError (vllm/utils/argparse_utils.py, human_readable_int)."""
    text = text.strip()
    if text[-1:] not in _MULTIPLES:
        return int(text)
    number, suffix = text[:-1], text[-1]
    return int(float(number) * _MULTIPLES[suffix]) if suffix.islower() else int(number) * _MULTIPLES[suffix]


def _json(text: str) -> Any:
    value = json.loads(text)
    if isinstance(value, (dict, list)) or value is None:
        return value
    raise ValueError(text)


class _Reader:
    def __init__(
        self,
        installation: Installation,
        *,
        underscores: bool,
        abbreviations: bool,
        dotted: bool,
        optional: bool,
    ) -> None:
        self.installation, self.listed = installation, index(installation)
        self.underscores, self.abbreviations = underscores, abbreviations
        self.dotted, self.optional = dotted, optional
        self.values: dict[str, Any] = {}
        self.given: list[Given] = []
        self.unknown: list[str] = []
        self.ambiguous: dict[str, tuple[str, ...]] = {}
        self.incomplete: list[str] = []
        self.bad: list[tuple[str, str]] = []
        self.positionals: list[str] = []

    def read(self, words: list[str]) -> Parsed:
        while words:
            word = words.pop(0)
            if word == "--":
                self.positionals += words
                break
            if self._is_value(word):
                self.positionals.append(word)
            else:
                self._flag(word, words)
        return Parsed(
            self.values, tuple(self.given), tuple(self.unknown), self.ambiguous,
            tuple(self.incomplete), tuple(self.bad), tuple(self.positionals),
        )  # fmt: skip

    def _is_value(self, word: str) -> bool:
        if not word.startswith("-") or word == "-":
            return True
        if not word.startswith("--") and _NEGATIVE_NUMBER.match(word):
            return True
        return " " in word and not self._matches(word.partition("=")[0])

    def _matches(self, name: str) -> tuple[str, ...]:
        if name in self.listed:
            return (name,)
        return matches(
            name, self.installation, underscores=self.underscores, abbreviations=self.abbreviations
        )

    def _flag(self, word: str, words: list[str]) -> None:
        name, equals, text = word.partition("=")
        key = ""
        if self.dotted and "." in name:
            name, _, key = name.partition(".")
        found = self._matches(name)
        if not found and self.abbreviations and not name.startswith("--") and len(name) > 2:
            # -n2: a short flag with its value in one word
            short = self._matches(name[:2])
            if len(short) == 1 and short[0] == name[:2]:
                found, text, equals = short, word[2:], "="
        if len(found) != 1:
            self._refused(word.partition("=")[0], found)
            if words and not equals and self._is_value(words[0]):
                # what follows an unknown flag is taken for its value
                words.pop(0)
            return
        flag = self.listed[found[0]]
        given = Given(flag, word, found[0], tuple(self._values(flag, words, equals, text, key)), key)
        self.given.append(given)
        self._store(given, equals)

    def _refused(self, word: str, found: tuple[str, ...]) -> None:
        if found:
            self.ambiguous[word] = found
        else:
            self.unknown.append(word)

    def _values(self, flag: Flag, words: list[str], equals: str, text: str, key: str) -> list[str]:
        if equals:
            return [text]
        if key:
            # the dotted form takes the next word whatever it is
            return [words.pop(0)] if words else []
        if not flag.takes_value:
            return []
        taken: list[str] = []
        most = len(words) if flag.nargs in ("+", "*") else 1
        while words and len(taken) < most and self._is_value(words[0]) and words[0] != "--":
            taken.append(words.pop(0))
        return taken

    def _store(self, given: Given, equals: str) -> None:
        flag, name = given.flag, canonical(given.flag)
        if given.key:
            self._store_key(given, name)
        elif not flag.takes_value:
            if equals:
                self.bad.append((name, given.values[0]))
            self.values[name] = not negates(flag, given.spelling)
        elif not given.values:
            if flag.nargs in ("?", "*"):
                self.values[name] = None if flag.nargs == "?" else []
            else:
                self.incomplete.append(name)
        else:
            made = [self._typed(flag, name, text) for text in given.values]
            self.values[name] = made if flag.nargs in ("+", "*") else made[0]

    def _typed(self, flag: Flag, name: str, text: str) -> Any:
        if self.optional and text in ("", "None") and flag.default is None:
            return None
        try:
            return typed(flag, text)
        except ValueError:
            self.bad.append((name, text))
            return text

    def _store_key(self, given: Given, name: str) -> None:
        if not given.values:
            self.incomplete.append(name)
            return
        path, text = given.key, given.values[0]
        value: Any
        if path.endswith("+"):
            path, value = path[:-1], text.split(",")
        else:
            try:
                value = json.loads(text)
            except ValueError:
                try:
                    value = size(text)
                except ValueError:
                    value = text
        whole = self.values.get(name)
        whole = self.values[name] = whole if isinstance(whole, dict) else {}
        *outer, last = path.split(".")
        for part in outer:
            inner = whole.get(part)
            whole[part] = inner if isinstance(inner, dict) else {}
            whole = whole[part]
        both = isinstance(value, list) and isinstance(whole.get(last), list)
        whole[last] = [*whole[last], *value] if both else value
