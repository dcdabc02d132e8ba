"""`llmserve restart`: the same plan, a new process."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from orchestrator.cli.names import Name
from orchestrator.cli.output import Json


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: llmserve restart edge-smollm2-135m")(restart)


def restart(
    name: Name = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once.")] = False,
    json_output: Json = False,
) -> None:
    """Stop a deployment and start its plan again, on the same port; also one that stopped or failed."""
    from orchestrator.cli.follow import show_ready, started, until_ready
    from orchestrator.cli.names import chosen
    from orchestrator.cli.output import console, emit
    from orchestrator.supervisor import client

    which, began = chosen(name), time.monotonic()
    daemon = client.connect()
    status = daemon.restart(which)
    if not detach:
        status = until_ready(daemon, status)
        started(status)
    if json_output:
        emit(status)
    elif detach:
        console().print(f"{which} is restarting; llmserve status {which}")
    else:
        show_ready(status, time.monotonic() - began)
