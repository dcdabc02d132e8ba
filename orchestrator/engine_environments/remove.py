"""Takes an engine out of engines.yaml, and deletes its environment where llmserve made it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator import settings
from orchestrator.engine_environments import entries, store
from orchestrator.engine_environments.install import log_file
from orchestrator.engine_environments.store import Environment
from orchestrator.errors import LlmserveError, not_found, refused

_ENDED = ("stopped", "failed")


@dataclass(frozen=True, slots=True)
class Removal:
    """What will go: the entry of engines.yaml, and the environment where llmserve made one."""

    name: str
    entry: bool
    environment: Environment | None


def plan(name: str) -> Removal:
    """What removing an engine would take away; nothing is changed.

    Raises LlmserveError: exit 5 where there is no such engine, exit 3 where something uses it.
    """
    configured = settings.engines()
    environment = store.environments().get(name)
    if name not in configured and environment is None:
        names = ", ".join(sorted({*configured, *store.environments()})) or "none"
        message = f"no engine {name!r} is in engines.yaml; there are: {names}"
        raise not_found("unknown_engine", message, "`llmserve engines list` shows what else was found")
    if name in configured and environment and not _lies_in(environment.folder, configured[name]["path"]):
        # the user has pointed the name elsewhere
        environment = None
    if environment is not None:
        for other, entry in configured.items():
            if other != name and _lies_in(environment.folder, entry["path"]):
                message = f"{other} in engines.yaml is the same environment as {name}"
                raise refused("engine_in_use", message, f"llmserve engines remove {other}, first")
    users = _deployments_on(name, environment)
    if users:
        message = f"{name} serves {', '.join(users)}"
        raise refused("engine_in_use", message, f"llmserve stop {' '.join(users)}, first")
    return Removal(name, name in configured, environment)


def remove(name: str) -> Removal:
    """Do what `plan` says: the entry goes first, so that nobody plans with what is being deleted."""
    with store.alone():
        removal = plan(name)
        entries.take_out(name)
        if removal.environment is not None:
            store.delete(removal.environment.folder)
            log_file(name).unlink(missing_ok=True)
        return removal


def _lies_in(folder: Path, path: str) -> bool:
    # an environment's Python is a link that leaves it
    given, root = Path(path).absolute(), folder.resolve()
    return any(p.is_relative_to(root) for p in (given.resolve(), given.parent.resolve() / given.name))


def _deployments_on(name: str, environment: Environment | None) -> list[str]:
    """Deployments that have not ended and whose plan names the engine, runs the environment's programs, as
    one under an entry that is no more does, or cannot be read."""
    from orchestrator.supervisor.store import DeploymentFolder, deployment_names

    found = []
    for deployment in deployment_names():
        folder = DeploymentFolder(deployment)
        state = folder.state()
        if state is not None and state.get("state") in _ENDED:
            continue
        try:
            deployed = folder.plan()
            uses = deployed.engine.name == name or (
                environment is not None
                and any(_lies_in(environment.folder, a) for p in deployed.processes for a in p.argv[:1])
            )
        except LlmserveError:
            # where the state is damaged too, nothing says that it runs
            uses = state is not None
        if uses:
            found.append(deployment)
    return found
