"""`llmserve stop`: until nothing of it is left."""

from __future__ import annotations

import typer

from orchestrator.cli.names import Name
from orchestrator.cli.output import Json


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: llmserve stop edge-smollm2-135m")(stop)


def stop(name: Name = None, json_output: Json = False) -> None:
    """Stop a deployment and prove it: requests finished or lost, no process, port closed."""
    from orchestrator.cli.names import chosen
    from orchestrator.cli.output import console, emit, notes
    from orchestrator.errors import Exit, LlmserveError
    from orchestrator.supervisor import client

    which = chosen(name)
    daemon = client.connect()
    with notes().status(f"stopping {which}"):
        report = daemon.stop(which)
    if json_output:
        emit(report)
    else:
        console().print(
            f"[bold]{which}[/] stopped in {report['seconds']} s: {report['finished']} requests finished, "
            f"{report['lost']} lost, {len(report['survivors'])} processes left",
            soft_wrap=True,
        )
    if report["survivors"]:
        raise LlmserveError(
            "survivors",
            f"processes of {which} are left: {', '.join(report['survivors'])}",
            "they did not die of SIGKILL: look for a stuck device or file system",
            exit_code=Exit.ENGINE,
        )
