"""`llmserve stop`: until nothing of it is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    from orchestrator.supervisor import client, store

    which = chosen(name)
    running = client.running()
    over = None if running else store.all_ended()
    if over is not None:
        was = next(d["state"] for d in over if d["name"] == which)
        report = {"finished": 0, "lost": 0, "seconds": 0.0, "survivors": [], "was": was}
    else:
        with notes().status(f"stopping {which}"):
            report = (running or client.start()).stop(which)
    if json_output:
        emit(report)
    elif report["was"] in ("stopped", "failed"):
        console().print(f"[bold]{which}[/] was {report['was']} already")
    else:
        console().print(f"[bold]{which}[/] stopped in {report['seconds']} s: {told(report)}", soft_wrap=True)
    if report["survivors"]:
        raise LlmserveError(
            "survivors",
            f"processes of {which} are left: {', '.join(report['survivors'])}",
            "they did not die of SIGKILL: look for a stuck device or file system",
            exit_code=Exit.ENGINE,
        )


def told(report: Mapping[str, Any]) -> str:
    """A stop's report as a sentence part."""
    in_flight = report["finished"] + report["lost"]
    requests = (
        f"{report['finished']} of {in_flight} requests in flight finished, {report['lost']} lost"
        if in_flight
        else "no request was in flight"
    )
    return f"{requests}; {len(report['survivors'])} processes left"
