"""An error as a person reads it: lines no wider than the terminal, commands whole where they fit."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from orchestrator.errors import LlmserveError

if TYPE_CHECKING:
    from rich.console import Console

_GLUE = "\u00a0"
_COMMAND = re.compile(
    r"`[^`\n]+`|--[a-z][a-z-]+ [^\s;,]+"
    r"|\b(?:llmserve|pip install) [^;,()\n]+?(?=$|[;,()\n]| (?:and|or|with|to) )"
)
_LEAST_WIDTH, _WHOLE = 30, 1_000_000


def print_error(con: Console, error: LlmserveError) -> None:
    """Print the message, every violation that says more than it, and the remedies: as wide as the terminal or
    COLUMNS; whole lines into a file or pipe, where they are searched."""
    import os

    from rich.text import Text

    width = con.width if con.is_terminal or "COLUMNS" in os.environ else None
    for line in lines(error, width):
        text = Text(line)
        text.highlight_regex(r"^error:", "bold red")
        text.highlight_regex(r"^  •", "red")
        text.highlight_regex(r"(?<=^  • )[a-z_0-9]+(?=:)", "bold")
        con.print(text, soft_wrap=True)


def lines(error: LlmserveError, width: int | None) -> list[str]:
    """The lines of an error, broken at blanks (`width` None: not at all); a word or a command wider than
    `width` stays whole."""
    width = _WHOLE if width is None else width
    out = _wrapped(f"error: {error.message}", "", "  ", width)
    for v in error.violations:
        if v["message"] == error.message:
            continue
        out += _wrapped(f"{v['code']}: {v['message']}", "  • ", "    ", width)
        if v["remedy"]:
            out += _wrapped(v["remedy"], "    → ", "      ", width)
    if error.remedy:
        out += _wrapped(error.remedy, "  → ", "    ", width)
    return out


def _wrapped(text: str, first: str, then: str, width: int) -> list[str]:
    width = max(width, _LEAST_WIDTH)
    out: list[str] = []
    for i, part in enumerate(text.split("\n")):
        glued = _COMMAND.sub(lambda m: _glued(m.group(), width - len(then)), part.strip() if i else part)
        out += textwrap.wrap(
            glued,
            width,
            initial_indent=then if i else first,
            subsequent_indent=then,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [first.rstrip()]
    return [line.replace(_GLUE, " ") for line in out]


def _glued(command: str, room: int) -> str:
    """A command without places to break it, where it fits a line."""
    return command.replace(" ", _GLUE) if len(command) <= room else command
