"""A deployment on disk: one folder, files a person can read, each written by rename.

deployments/NAME/plan.json        what was decided
                 corrected.json   the plan one step down, where a failure asked for it
                 state.json       where it stands
                 env.json         the environment it was launched with (0600)
                 events.jsonl     what happened, one object a line
                 server/          the shim's folder of a process: spec, records
                 server/engine.log
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.errors import LlmserveError, not_found, usage
from orchestrator.folders import state_dir, write_whole
from orchestrator.plan import Plan

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_EVENTS_MAX_BYTES = 8 * 1024 * 1024


def check_name(name: str) -> str:
    """A deployment's name is a folder's name: lower case letters, digits, `.`, `_`, `-`, 63 at most.

    Raises LlmserveError (usage).
    """
    if not _NAME.fullmatch(name):
        raise usage(
            "bad_name",
            f"{name!r} is no name for a deployment",
            "use lower case letters, digits, '.', '_' and '-', starting with a letter or digit, 63 at most",
        )
    return name


class DeploymentFolder:
    """Reads and writes one deployment's files. `exists()` before reading what may not be there."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = check_name(name)
        self.path = (root or deployments_dir()) / name

    def exists(self) -> bool:
        """Whether anything of a deployment is here, damaged or not."""
        return any((self.path / name).is_file() for name in ("state.json", "plan.json"))

    def roles(self) -> list[str]:
        """Processes that were started at some time."""
        return sorted(p.parent.name for p in self.path.glob("*/spec.json"))

    def process_dir(self, role: str) -> Path:
        return self.path / role

    def log(self, role: str) -> Path:
        return self.process_dir(role) / "engine.log"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    def write_plan(self, plan: Plan) -> None:
        """A new plan: whatever corrected the old one is gone."""
        write_whole(self.path / "plan.json", json.dumps(plan.to_json(), indent=2))
        (self.path / "corrected.json").unlink(missing_ok=True)

    def write_corrected(self, plan: Plan) -> None:
        write_whole(self.path / "corrected.json", json.dumps(plan.to_json(), indent=2))

    def plan(self) -> Plan:
        """The plan in force: the corrected one where there is one. Raises LlmserveError on a damaged file."""
        file = self.path / "corrected.json"
        if not file.exists():
            file = self.path / "plan.json"
        try:
            return Plan.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            raise LlmserveError(
                "plan_unreadable", f"{file} is damaged: {e}", f"llmserve stop {self.name}, then launch again"
            ) from None

    def write_env(self, env: dict[str, str]) -> None:
        write_whole(self.path / "env.json", json.dumps(env))

    def env(self) -> dict[str, str]:
        data = _read_object(self.path / "env.json") or {}
        return {str(k): str(v) for k, v in data.items()}

    def write_state(self, state: dict[str, Any]) -> None:
        write_whole(self.path / "state.json", json.dumps(state, indent=2))

    def state(self) -> dict[str, Any] | None:
        """The last state, None where there is none or it is damaged."""
        return _read_object(self.path / "state.json")

    def append_event(self, kind: str, process: str | None = None, **data: Any) -> dict[str, Any]:
        """One line; the file is set aside as `.1` when it grows beyond 8 MiB."""
        event = {"time": time.time(), "deployment": self.name, "process": process, "kind": kind, **data}
        file = self.events_file
        try:
            if file.exists() and file.stat().st_size > _EVENTS_MAX_BYTES:
                file.replace(file.with_suffix(".jsonl.1"))
            fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as f:
                f.write(json.dumps(event, ensure_ascii=False) + "\n")
        except OSError:
            # a full disk must not take the supervisor along; the state in memory goes on
            return event
        return event

    def events(self) -> Iterator[dict[str, Any]]:
        """All events still kept, oldest first; a line cut by a full disk is passed over."""
        for file in (self.events_file.with_suffix(".jsonl.1"), self.events_file):
            if file.exists():
                with file.open(encoding="utf-8", errors="replace") as f:
                    for line in f:
                        event = parse_line(line)
                        if event is not None:
                            yield event


def deployments_dir() -> Path:
    """`deployments/` in the state folder."""
    return state_dir() / "deployments"


def deployment_names(root: Path | None = None) -> list[str]:
    """Every deployment that has left a state, by name."""
    folder = root or deployments_dir()
    if not folder.is_dir():
        return []
    names = (p.name for p in folder.iterdir() if _NAME.fullmatch(p.name))
    return sorted(n for n in names if DeploymentFolder(n, folder).exists())


def all_ended() -> list[dict[str, Any]] | None:
    """The last status of every deployment where all have ended, as no daemon is needed to tell; else None."""
    found = []
    for name in deployment_names():
        state = DeploymentFolder(name).state() or {}
        status = state.get("status")
        if state.get("state") not in ("stopped", "failed") or not isinstance(status, dict):
            return None
        if status.get("name") != name or not isinstance(status.get("processes"), list):
            return None
        found.append(status)
    return found


def find(name: str) -> DeploymentFolder:
    """The folder of an existing deployment. Raises LlmserveError (exit 5), naming those there are."""
    folder = DeploymentFolder(name) if _NAME.fullmatch(name) else None
    if folder is None or not folder.exists():
        raise no_such_deployment(name, deployment_names())
    return folder


def no_such_deployment(name: str, known: list[str]) -> LlmserveError:
    there = f"there are: {', '.join(known)}" if known else "there is none yet; llmserve launch --goal edge"
    return not_found("no_such_deployment", f"no deployment is called {name!r}", there)


def parse_line(line: str | bytes) -> dict[str, Any] | None:
    """One event, or None for a line that a full disk or a crash cut."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _read_object(file: Path) -> dict[str, Any] | None:
    try:
        return parse_line(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
