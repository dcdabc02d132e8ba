"""`llmserve events`: what happened to a deployment."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from orchestrator.cli.names import Name
from orchestrator.cli.output import Json, write

_FIXED = ("time", "deployment", "process", "kind")


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: llmserve events -f --json")(events)


def events(
    name: Name = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    json_output: Json = False,
) -> None:
    """Show what happened: state changes, signals, kills, corrections. --json: one object a line."""
    from orchestrator.cli.names import chosen
    from orchestrator.cli.tail import growth
    from orchestrator.supervisor.store import DeploymentFolder, parse_line

    folder = DeploymentFolder(chosen(name))
    position = folder.events_file.stat().st_size if folder.events_file.exists() else 0
    for event in folder.events():
        _show(event, json_output)
    if follow:
        rest = b""
        for block in growth(folder.events_file, position):
            *whole, rest = (rest + block).split(b"\n")
            for line in whole:
                if (come := parse_line(line)) is not None:
                    _show(come, json_output)


def _show(event: dict[str, Any], as_json: bool) -> None:
    if as_json:
        line = json.dumps(event, ensure_ascii=False)
    else:
        at = event.get("time")
        known = isinstance(at, (int, float)) and 0 <= at < 1e11
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if known else "?"
        rest = " ".join(f"{k}={_short(v)}" for k, v in event.items() if k not in _FIXED and v is not None)
        line = (
            f"{when}  {event.get('process') or event.get('deployment')}  {event.get('kind')}  {rest}".rstrip()
        )
    write(line + "\n")


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
