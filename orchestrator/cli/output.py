"""What every command prints with: JSON alone on stdout, everything else on stderr.

Nothing heavy is imported at the top: `llmserve --help` pays for this module.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

_json_mode = False


def _set_json(value: bool) -> bool:
    global _json_mode
    _json_mode = _json_mode or value
    return value


Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON alone on stdout.", callback=_set_json, is_eager=True),
]
"""The type of every command's `json_output` parameter (default False)."""


def json_mode() -> bool:
    """Whether `--json` was given."""
    return _json_mode or "--json" in sys.argv[1:]


def emit(data: dict[str, Any]) -> None:
    """Print one JSON object, with `schema_version` first."""
    write(json.dumps({"schema_version": 1} | data, indent=2, ensure_ascii=False) + "\n")


def write(text: str) -> None:
    """To stdout at once. A reader that went away (`| head`) is no failure."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        to_nowhere()


def to_nowhere() -> None:
    """What is still printed to stdout is lost in silence."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def console(*, whole_lines: bool = False) -> Console:
    """For a person: stdout, or stderr where stdout is for JSON. Colour only on a terminal.

    `whole_lines`: rows are not broken in a file or pipe, where addresses and paths are searched.
    """
    from rich.console import Console as RichConsole

    class Console(RichConsole):
        def on_broken_pipe(self) -> None:  # rich would exit 1
            to_nowhere()

    con = Console(stderr=json_mode(), highlight=False)
    if not con.is_terminal and "COLUMNS" not in os.environ:
        return Console(stderr=json_mode(), highlight=False, width=1000 if whole_lines else 80)
    return con


@contextlib.contextmanager
def terminal() -> Iterator[Console]:
    """`notes()` for a process that outlives its terminal: once that is lost, what is said goes nowhere."""
    try:
        yield notes()
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            os.dup2(nowhere, fd)


def notes() -> Console:
    """Progress, warnings and errors: always stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)
