"""`llmserve logs`: what the engine wrote. Read from the file: it works with and without a daemon."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli.names import Name
from orchestrator.cli.output import Json


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
    from orchestrator.cli.output import emit
    from orchestrator.cli.tail import growth, last_lines
    from orchestrator.errors import usage
    from orchestrator.supervisor.store import DeploymentFolder

    folder = DeploymentFolder(chosen(name))
    file = folder.log(folder.plan().processes[0].role)
    text, end = last_lines(file, lines) if file.exists() else (b"", 0)
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
        for block in growth(file, end):
            out.write(block)
            out.flush()
