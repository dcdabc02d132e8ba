"""The NAME argument: which deployment is meant, and its completion."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.errors import LlmserveError, usage


def complete_name(incomplete: str) -> list[str]:
    """Names of deployments in the state folder, for the shell."""
    from orchestrator.supervisor.store import deployment_names

    return [n for n in deployment_names() if n.startswith(incomplete)]


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="The deployment; not needed while there is only one.",
        autocompletion=complete_name,
    ),
]


def chosen(name: str | None, *, running: bool = False) -> str:
    """The named deployment, else the only one there is (the only one not ended, where there are more).

    Raises LlmserveError: exit 5 where there is none of that name or none at all, exit 2 where the choice is
    not clear.
    """
    from orchestrator.supervisor.store import DeploymentFolder, deployment_names, find, no_such_deployment

    if name is not None:
        return find(name).name
    names = deployment_names()
    if not names:
        error: LlmserveError = no_such_deployment("", [])
        error.message = "there is no deployment"
        raise error
    if len(names) == 1:
        return names[0]
    live = [n for n in names if (DeploymentFolder(n).state() or {}).get("state") not in ("stopped", "failed")]
    if len(live) == 1:
        return live[0]
    raise usage("which_deployment", "which deployment is meant?", f"name one of: {', '.join(live or names)}")
