"""`llmserve rm`: forget deployments that have ended."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.names import complete_name
from orchestrator.cli.output import Json


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: llmserve rm --ended")(rm)


def rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Those that have ended.", autocompletion=complete_name),
    ] = None,
    ended: Annotated[bool, typer.Option("--ended", help="All that are stopped or failed.")] = False,
    json_output: Json = False,
) -> None:
    """Remove the files of stopped or failed deployments: plan, state, events, logs."""
    from orchestrator.cli.output import console, emit
    from orchestrator.errors import usage
    from orchestrator.supervisor import client, store

    if not names and not ended:
        raise usage("nothing_named", "which deployments are to be removed?", "name them, or give --ended")
    wanted = [store.find(n).name for n in names or []]
    gone: list[str] = []
    if wanted or store.deployment_names():
        daemon = client.connect()
        over = [d["name"] for d in daemon.ps() if d["state"] in ("stopped", "failed")] if ended else []
        for name in dict.fromkeys([*wanted, *over]):
            daemon.remove(name)
            gone.append(name)
    if json_output:
        emit({"removed": gone})
    else:
        console().print(f"removed: {', '.join(gone)}" if gone else "nothing to remove")
