"""Reads `llama-server --help`: flags, allowed values, defaults, environment variables, removed flags.

The layout is that of `common_arg::to_string` in llama.cpp's common/arg.cpp: names, then the value's
placeholder, then the help from column 40 on or on the next lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from orchestrator.engines.base import Flag

_NAME = re.compile(r"-{1,2}[A-Za-z0-9][A-Za-z0-9_.-]*")
_ENV = re.compile(r"\(env: ([A-Z][A-Z0-9_]*)\)")
_DEFAULT = re.compile(r"\(?default:\s*('[^']*'|\"[^\"]*\"|[^,()\s][^,()]*)")
_ALLOWED = re.compile(r"allowed values: ((?:[\w+.-]+,\s*)*[\w+.-]+)")
_BULLET = re.compile(r"^- ([\w+-]+)(?: \([^)]*\))?:", re.MULTILINE)
_WORDS = re.compile(r"[a-z][\w+-]*(?:,[a-z][\w+-]*)+")
_REMOVED = "the argument has been removed"
_MAX_FLAGS = 2000


@dataclass(frozen=True, slots=True)
class HelpText:
    """What an installation says about itself. `env` maps a variable to its flag's first spelling, `removed`
    maps every spelling that is refused to the advice that stands beside it."""

    flags: tuple[Flag, ...]
    env: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)


def parse_help(text: str) -> HelpText:
    """Never raises: lines that are no flag are skipped."""
    entries: list[tuple[list[str], str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("-"):
            head = _head(line)
            if head is not None and len(entries) < _MAX_FLAGS:
                entries.append((head[0], head[1], [head[2]]))
        elif line.startswith(" ") and entries:
            entries[-1][2].append(line.strip())
    flags: list[Flag] = []
    env: dict[str, str] = {}
    removed: dict[str, str] = {}
    for names, value, lines in entries:
        body = "\n".join(lines).strip()
        flat = " ".join(body.split())
        if flat.startswith(_REMOVED):
            advice = _ENV.sub("", flat.removeprefix(_REMOVED)).strip(" .")
            removed |= dict.fromkeys(names, advice)
            continue
        found = _ENV.search(flat)
        if found:
            env[found[1]] = names[0]
        flags.append(
            Flag(
                spellings=tuple(names),
                takes_value=bool(value),
                choices=_choices(value, body, flat),
                default=_default(flat),
                help=_ENV.sub("", flat).strip()[:500],
            )
        )
    return HelpText(tuple(flags), env, removed)


def _head(line: str) -> tuple[list[str], str, str] | None:
    """Names, placeholder and the help's first line; None where the line is no flag."""
    names: list[str] = []
    at = 0
    while (match := _NAME.match(line, at)) is not None:
        names.append(match[0])
        at = match.end()
        comma = re.compile(r",\s*(?=-)").match(line, at)
        if comma is None:
            break
        at = comma.end()
    if not names or line[at : at + 1] not in ("", " "):
        return None
    # the help is at least three blanks away; a placeholder has single ones
    value, _, rest = line[at:].partition("   ")
    return names, value.strip(), rest.strip()


def _choices(value: str, body: str, flat: str) -> tuple[str, ...]:
    if value[:1] in "{[<" and value[-1:] in "}]>" and "..." not in value:
        inner = value[1:-1]
        parts = inner.split("|") if "|" in inner else inner.split(",")
        if len(parts) > 1 and all(re.fullmatch(r"[\w+-]+", p) for p in parts):
            return tuple(parts)
    if _WORDS.fullmatch(value):
        return tuple(value.split(","))
    allowed = _ALLOWED.search(flat)
    if allowed and value:
        return tuple(re.split(r",\s*", allowed[1]))
    bullets = _BULLET.findall(body) if value and not value.startswith("N") else []
    return tuple(bullets) if len(bullets) > 1 else ()


def _default(flat: str) -> str | None:
    found = _DEFAULT.search(flat)
    return re.split("; | = ", found[1])[0].strip().strip("'\"") if found else None
