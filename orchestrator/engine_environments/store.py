"""The environments that llmserve made: one folder each below `engines/` in the data folder.

A folder with `environment.json` is whole, for that file is written last; one with `installing` is being made,
or was when its making was cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator import folders
from orchestrator.errors import refused

_RECORD = "environment.json"
_BEGUN = "installing"
_GOING = ".removing-"


@dataclass(frozen=True, slots=True)
class Environment:
    """One that is whole. `path` is what its entry in engines.yaml names; `made_at` seconds since 1970."""

    name: str
    kind: str
    package: str
    version: str
    device: str
    path: str
    tool: str
    made_at: float

    @property
    def folder(self) -> Path:
        return root() / self.name


def root() -> Path:
    """Where environments are."""
    return folders.data_dir() / "engines"


def environments() -> dict[str, Environment]:
    """Those that are whole, by name."""
    if not root().is_dir():
        return {}
    found = (_read(folder) for folder in sorted(root().iterdir()))
    return {e.name: e for e in found if e is not None}


@contextlib.contextmanager
def alone() -> Iterator[int]:
    """Holds the one lock for changes here, and clears away what was cut off. Gives the lock's descriptor: a
    process that inherits it holds the lock on, should this one be killed.

    Raises LlmserveError (exit 3) where another change is under way.
    """
    root().mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(root() / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "another `llmserve engines install` or `remove` is under way"
            raise refused("install_running", message, "wait until it has ended") from None
        _sweep()
        yield fd
    finally:
        os.close(fd)


def begin(name: str) -> Path:
    """An empty folder for a new environment. Raises LlmserveError (exit 3) where something is there."""
    folder = root() / name
    try:
        folder.mkdir(mode=0o755)
    except FileExistsError:
        message = f"{folder} is there and was not made by llmserve"
        raise refused("in_the_way", message, "move it elsewhere, or choose another --name") from None
    (folder / _BEGUN).touch()
    return folder


def finish(environment: Environment) -> None:
    """Declare an environment whole."""
    record = {"schema_version": 1} | asdict(environment)
    folders.write_whole(environment.folder / _RECORD, json.dumps(record, indent=2) + "\n")
    (environment.folder / _BEGUN).unlink(missing_ok=True)


def delete(folder: Path) -> None:
    """Delete an environment's folder. It is set aside first: no part of it is ever taken for the whole."""
    aside = folder.with_name(_GOING + folder.name)
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, aside)
        shutil.rmtree(aside)


def _sweep() -> None:
    for folder in list(root().iterdir()):
        if folder.is_dir() and folder.name.startswith(_GOING):
            shutil.rmtree(folder, ignore_errors=True)
        elif (folder / _BEGUN).is_file() and _read(folder) is None:
            delete(folder)


def _read(folder: Path) -> Environment | None:
    try:
        data = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        data.pop("schema_version")
        found = Environment(**data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return found if found.name == folder.name else None
