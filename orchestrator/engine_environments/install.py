"""Makes an engine's private environment, asks the engine whether it works, and enters it in engines.yaml."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from orchestrator import folders, settings
from orchestrator.engine_environments import entries, making, recipes, store
from orchestrator.engine_environments import tool as tools
from orchestrator.engine_environments.recipes import Recipe
from orchestrator.engine_environments.store import Environment
from orchestrator.engine_environments.tool import Progress, Runner
from orchestrator.errors import refused, usage
from orchestrator.machine import measure

if TYPE_CHECKING:
    from orchestrator.engines.base import Installation


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment, the engine in it, and whether it was made just now. `note` is what to know of it."""

    environment: Environment
    installation: Installation
    made: bool
    note: str | None = None


def install(
    kind: str,
    *,
    version: str | None = None,
    name: str | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Installed:
    """Install an engine for `device` ("cuda", "cpu"; None: what this machine has), unless that is done.

    Raises LlmserveError: exit 2 for what cannot be read, exit 3 with the reason where nothing was installed.
    A failure or an interrupt leaves neither folder nor entry; a log stays, and the message names it.
    """
    machine = measure()
    recipe = recipes.choose(kind, recipes.device_of(machine) if device is None else device, version)
    recipes.require_device(recipe, machine)
    if name is not None and not settings.is_engine_name(name):
        raise usage("bad_name", f"{name!r} cannot be an engine's name", settings.ENGINE_NAME_RULE)
    configured = settings.engines()
    with store.alone() as lock, _signals_interrupt():
        there = _same(recipe, name)
        if there is not None:
            installation = _ask(there, f"llmserve engines remove {there.name}, and install it again")
            entries.add(there.name, kind, Path(there.path), _COMMENT)
            return Installed(there, installation, False, recipe.note)
        name = name or recipe.environment
        if name in configured or name in store.environments():
            message = f"there is an engine named {name} already"
            raise refused(
                "engine_exists", message, f"choose another --name, or llmserve engines remove {name}"
            )
        _require(recipe)
        return _make(recipe, name, lock, progress)


_COMMENT = "made by llmserve engines install"


def _make(recipe: Recipe, name: str, lock: int, progress: Progress | None) -> Installed:
    tool = tools.choose(os.environ)
    log = log_file(name)
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log.write_bytes(b"")
    folder = store.begin(name)
    try:
        making.make(recipe, folder, tool, Runner(folder, log, os.environ, lock, progress))
        path = str(making.program_folder(recipe, folder))
        environment = Environment(
            name, recipe.kind, recipe.package, recipe.version, recipe.device, path, tool.name, time.time()
        )
        if progress is not None:
            progress("asking the engine for its version and flags", 0.0)
        installation = _ask(environment, f"what was said is in {log}")
        store.finish(environment)
        entries.add(name, recipe.kind, Path(path), _COMMENT)
    except BaseException:
        store.delete(folder)
        raise
    log.unlink(missing_ok=True)
    return Installed(environment, installation, True, recipe.note)


def log_file(name: str) -> Path:
    """Where what pip or uv says while it makes an environment is kept; only a failure leaves it."""
    return folders.state_dir() / "installs" / f"{name}.log"


def _same(recipe: Recipe, name: str | None) -> Environment | None:
    """The environment that is what was asked for."""
    for e in store.environments().values():
        # one of an earlier llmserve keeps the version as it was typed then
        made = (e.kind, e.package, recipes.canonical(e.version, recipe.version))
        if made == (recipe.kind, recipe.package, recipe.version) and name in (None, e.name):
            return e
    return None


def _ask(environment: Environment, remedy: str) -> Installation:
    """The engine as its own probe finds it. Raises LlmserveError where it cannot be used."""
    from orchestrator.engines import registry

    entry = {"kind": environment.kind, "path": environment.path, "env": {}}
    found = registry.engine(environment.kind).survey({environment.name: entry}, os.environ)
    installation = next((i for i in found if i.name == environment.name), None)
    why = "its probe does not find it" if installation is None else installation.extras.get("broken")
    if installation is None or why:
        message = f"{environment.package} {environment.version} was installed and does not work: {why}"
        raise refused("engine_broken", message, remedy)
    return installation


def _require(recipe: Recipe) -> None:
    """Raises LlmserveError (exit 3) where programs or room are lacking."""
    missing = [program for program in recipe.compiles_with if shutil.which(program) is None]
    if missing:
        message = f"{recipe.package} is compiled here, and {' and '.join(missing)} cannot be found"
        remedy = "apt-get install cmake g++; or without a compiler: pip install 'llmserve[edge]'"
        raise refused("no_compiler", message, remedy)
    free = shutil.disk_usage(store.root()).free
    if free < recipe.disk_bytes:
        need, has = f"{recipe.disk_bytes / 1e9:.1f} GB", f"{free / 1e9:.1f} GB"
        message = f"{recipe.requirement} needs {need}, and {store.root()} has {has} free"
        raise refused("disk_full", message, "free space, or set LLMSERVE_HOME to a folder on a larger disk")


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end what goes on as ctrl-C does: with everything cleared away."""

    def interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, interrupt) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
