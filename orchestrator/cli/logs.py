"""`llmserve logs`: what the engine wrote. Read from the file: it works with and without a daemon."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.names import Name
from orchestrator.cli.output import Json

if TYPE_CHECKING:
    from orchestrator.supervisor.store import DeploymentFolder


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: llmserve logs -f edge-smollm2-135m")(logs)


def logs(
    name: Name = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 100,
    json_output: Json = False,
) -> None:
    """Show the engine's log."""
    from orchestrator.cli.names import chosen
    from orchestrator.cli.output import emit, notes
    from orchestrator.cli.tail import growth, last_lines_of
    from orchestrator.errors import usage
    from orchestrator.supervisor.store import DeploymentFolder

    folder = DeploymentFolder(chosen(name))
    file = folder.log(folder.plan().processes[0].role)
    text, end = last_lines_of(file, lines)
    if json_output:
        if follow:
            raise usage(
                "not_both", "--json and --follow do not go together", "events -f --json follows as JSON"
            )
        emit({"name": folder.name, "log": str(file), "lines": text.decode("utf-8", "replace").splitlines()})
        return
    out = sys.stdout.buffer
    out.write(text)
    out.flush()
    if follow:
        for block in growth(file, end, lambda: _ended(folder) is not None):
            out.write(block)
            out.flush()
        notes().print(f"{folder.name} is {_ended(folder)}; llmserve restart {folder.name}", soft_wrap=True)


def _ended(folder: DeploymentFolder) -> str | None:
    state = (folder.state() or {}).get("state")
    return state if state in ("stopped", "failed") else None
