"""llama-server's command line, read as llama-server reads it, for a server whose parameters are attributes.

Pure: text in, attributes or the refusal's exact words out. The table is `embedded_flags.yaml`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent / "embedded_flags.yaml"
EMBEDDED_MARK = "llmserve: embedded llama.cpp over xllamacpp"
"""How the embedded server's log begins: it tells the log apart from llama-server's."""

_INT32 = 2**31
_FILE_LIMIT_BYTES = 4 << 20
_TRUE, _FALSE = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0")


class Refused(Exception):
    """The command line is wrong; the text is what llama-server would have said on stderr."""


@dataclass(frozen=True, slots=True)
class EnumName:
    """A member of one of xllamacpp's enums, by name."""

    enum: str
    member: str


@dataclass(frozen=True, slots=True)
class EmbeddedFlag:
    """One row of the table; see the head of `embedded_flags.yaml`. `advice` is set where it was removed."""

    names: tuple[str, ...]
    negated: tuple[str, ...] = ()
    value: str = ""
    kind: str = "switch"
    attr: tuple[str, ...] = ()
    enum: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)
    forbidden: tuple[str, ...] = ()
    span: tuple[int, int] | None = None
    mistake: str = "invalid value"
    extend: bool = False
    sampler: str = ""
    env: str = ""
    default: str | None = None
    help: str = ""
    advice: str = ""

    def usage(self) -> str:
        """The flag as `--help` shows it, in llama-server's layout."""
        head = ", ".join((*self.names, *self.negated)) + (f" {self.value}" if self.value else "")
        text = f"the argument has been removed. {self.advice}" if self.advice else self.help
        if (
            self.kind in ("enum", "enums")
            and self.choices
            and "," not in self.value
            and "|" not in self.value
        ):
            text += "\nallowed values: " + ", ".join(self.choices)
        if self.default is not None:
            text += f"\n(default: {self.default})"
        if self.env:
            text += f"\n(env: {self.env})"
        lines = [w for part in text.split("\n") for w in textwrap.wrap(part, 70)]
        first = [head.ljust(40) + lines[0], *lines[1:]] if len(head) <= 37 else [head, *lines]
        return "\n".join([first[0], *(" " * 40 + line for line in first[1:])]) + "\n"


@dataclass(frozen=True, slots=True)
class Table:
    """Every flag that may be given, the removed ones, and what follows what where it was not set."""

    flags: tuple[EmbeddedFlag, ...]
    removed: tuple[EmbeddedFlag, ...]
    follows: Mapping[str, str]

    def narrowed(self, has: Callable[[EmbeddedFlag], bool]) -> Table:
        """The table with only the flags that the installed library can honour."""
        return Table(tuple(f for f in self.flags if has(f)), self.removed, self.follows)


def load_table() -> Table:
    """Read `embedded_flags.yaml`."""
    import yaml

    data = yaml.load(TABLE.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    flags = [
        EmbeddedFlag(
            names=tuple(row["names"]),
            negated=tuple(row.get("negated", ())),
            value=row.get("value", ""),
            kind=row.get("as", "switch"),
            attr=tuple(row["attr"]),
            enum=row.get("enum", ""),
            choices=row.get("choices", {}),
            forbidden=tuple(row.get("forbidden", ())),
            span=tuple(row["range"]) if "range" in row else None,
            mistake=row.get("mistake", "invalid value"),
            extend=row.get("extend", False),
            sampler=row.get("sampler", ""),
            env=row.get("env", ""),
            default=row.get("default"),
            help=row.get("help", ""),
        )
        for row in data["flags"]
    ]
    removed = [
        EmbeddedFlag(names=tuple(r["names"]), value=r["value"], advice=r["advice"]) for r in data["removed"]
    ]
    return Table(tuple(flags), tuple(removed), data["follows"])


def parse(argv: Sequence[str], environ: Mapping[str, str], table: Table) -> dict[str, Any]:
    """Attribute paths to values: environment first, then the command line, the later one winning.

    Values are plain Python, `EnumName`, or lists of them. The number of slots is always among them.
    Raises Refused with llama-server's own words for a flag or value that it would not take.
    """
    settings: dict[str, Any] = {}
    by_name = {n: f for f in (*table.flags, *table.removed) for n in (*f.names, *f.negated)}
    for flag in table.flags:
        text = environ.get(flag.env) if flag.env else None
        if text is not None:
            try:
                if flag.value:
                    _set(settings, flag, _convert(flag, text))
                elif text in _TRUE or text in _FALSE:
                    _set(settings, flag, text in _TRUE)
                else:
                    raise ValueError("error: unknown value for boolean argument")
            except ValueError as e:
                raise Refused(f'error while handling environment variable "{flag.env}": {e}\n\n') from None
    extended: set[tuple[str, ...]] = set()
    words = iter(argv)
    for word in words:
        name = word.replace("_", "-") if word.startswith("--") else word
        found = by_name.get(name)
        if found is None:
            raise Refused(f"error: invalid argument: {name}")
        try:
            if not found.value:
                _set(settings, found, name in found.names)
                continue
            text = next(words, None)
            if text is None:
                raise ValueError("expected value for argument")
            if found.advice:
                raise ValueError(f"the argument has been removed. {found.advice}")
            value = _convert(found, text)
            if found.extend and found.attr in extended:
                value = settings[found.attr[0]] + value
            extended.add(found.attr)
            _set(settings, found, value)
        except ValueError as e:
            raise Refused(
                f'error while handling argument "{name}": {e}\n\nusage:\n{found.usage()}\n\n'
                "to show complete usage, run with -h"
            ) from None
    for target, source in table.follows.items():
        if source in settings:
            settings.setdefault(target, settings[source])
    return settings | _slots(settings)


def _slots(settings: Mapping[str, Any]) -> dict[str, Any]:
    """llama-server's rule for automatic slots: four of them over one KV buffer."""
    slots = settings.get("n_parallel", -1)
    return {"n_parallel": 4, "kv_unified": True} if slots < 0 else {"n_parallel": slots}


def _set(settings: dict[str, Any], flag: EmbeddedFlag, value: Any) -> None:
    for attr in flag.attr:
        settings[attr.lstrip("!")] = (not value) if attr.startswith("!") else value
    if flag.sampler:
        settings.setdefault("sampler_bits", []).append(flag.sampler)


def _convert(flag: EmbeddedFlag, text: str) -> Any:
    """The value an attribute takes; ValueError carries llama-server's words for a bad one."""
    if "\0" in text:
        raise ValueError("invalid value")
    if flag.kind in ("enum", "enums"):
        parts = text.split(",") if flag.kind == "enums" else [text]
        for part in parts:
            if part not in flag.choices:
                raise ValueError(flag.mistake.format(value=part))
        values = [EnumName(flag.enum, flag.choices[p]) if flag.enum else flag.choices[p] for p in parts]
        return values if flag.kind == "enums" else values[0]
    if text in flag.forbidden:
        raise ValueError(flag.mistake)
    value = _READERS[flag.kind](text)
    if flag.span is not None and not flag.span[0] <= value <= flag.span[1]:
        raise ValueError(flag.mistake)
    return value


def _integer(text: str, what: str = "stoi", low: int = -_INT32, high: int = _INT32 - 1) -> int:
    # C++'s stoi reads a number's beginning and ignores the rest
    match = re.match(r"\s*([+-]?[0-9]{1,20})", text)
    if match is None or not low <= int(match[1]) <= high:
        raise ValueError(what)
    return int(match[1])


def _number(text: str) -> float:
    match = re.match(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text)
    if match is None or abs(float(match[0])) > 3.4e38:
        raise ValueError("stof")
    return float(match[0])


def _inverse(text: str) -> float:
    value = _number(text)
    if value == 0:
        raise ValueError("invalid value")
    return 1 / value


def _layers(text: str) -> int:
    return {"auto": -1, "all": -2}.get(text) or _integer(text)


def _read(text: str) -> str:
    try:
        with open(text, encoding="utf-8") as f:
            return f.read(_FILE_LIMIT_BYTES)
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"error: failed to open file '{text}'\n") from None


def _lines(text: str) -> list[str]:
    return [line for line in _read(text).splitlines() if line and not line.startswith("#")]


def _mib_list(text: str) -> list[int]:
    return [_integer(p, "stoull", 0, 2**43) << 20 for p in re.split(r"[,/]+", text)]


_READERS: dict[str, Callable[[str], Any]] = {
    "int": _integer,
    "enum_int": _integer,
    "seed": lambda text: _integer(text, "stoul", -(2**32) + 1, 2**32 - 1) % 2**32,
    "float": _number,
    "inverse": _inverse,
    "text": str,
    "list": lambda text: [p for p in text.split(",") if p],
    "mib_list": _mib_list,
    "shares": lambda text: [_number(p) for p in re.split(r"[,/]+", text)],
    "layers": _layers,
    "text_file": _read,
    "lines_file": _lines,
}


def listing(flags: Iterable[EmbeddedFlag]) -> list[dict[str, Any]]:
    """The flags as plain JSON, for `--list-flags`."""
    return [
        {
            "spellings": [*f.names, *f.negated],
            "takes_value": bool(f.value),
            "choices": list(f.choices),
            "default": f.default,
            "env": f.env,
            "help": f.help,
            "removed": f.advice,
        }
        for f in flags
    ]
