"""The options that `plan` and `launch` share: the same words, the same help."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.goals import complete_goal
from orchestrator.cli.profiles import complete_profile


def complete_lever(incomplete: str) -> list[str]:
    """Levers for the shell's completion of --set, ready for their value."""
    from orchestrator.levers import LEVERS

    return [f"{name}=" for name in LEVERS if name.startswith(incomplete)]


def complete_machine(incomplete: str) -> list[str]:
    """Machines that llmserve knows, for the shell's completion."""
    from orchestrator.machine.files import names

    return [name for name in names() if name.startswith(incomplete)]


Goal = Annotated[
    str | None,
    typer.Option(
        "--goal",
        metavar="GOAL",
        help="throughput, latency, agent or edge.",
        autocompletion=complete_goal,
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME|FILE",
        help="A profile instead of the goal's built-in one.",
        autocompletion=complete_profile,
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL", help="A file, a folder, a hub id or a known name.", show_default=False
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="NAME", help="An engine of `llmserve engines list`, or auto.", show_default=False
    ),
]
MachineFile = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="FILE",
        help="Plan for a machine that is not here.",
        autocompletion=complete_machine,
        show_default=False,
    ),
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="LEVER=VALUE",
        help="Set a lever, may be repeated: --set max_num_seqs=4.",
        autocompletion=complete_lever,
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="The deployment's name, else GOAL-MODEL.", show_default=False
    ),
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", metavar="PORT", help="Port, else the first free one from 8000.", show_default=False
    ),
]
