"""pip and uv: their command lines, one run of either, and what their complaints mean."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from orchestrator.engine_environments.recipes import Recipe
from orchestrator.errors import LlmserveError, refused

Progress = Callable[[str, float], None]
"""Hears (what is done now, seconds since it began), several times a second."""

_POLL_S = 0.2
_PROMPT = "\n$ "
_LOG_END_BYTES = 64_000
_PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX")
_PIP_INDEX = re.compile(r"(index-url|extra-index-url|find-links|no-index)\s*=")


@dataclass(frozen=True, slots=True)
class Tool:
    """What installs packages: "pip", or "uv" with its path."""

    name: Literal["pip", "uv"]
    uv: str = ""

    def make(self, folder: Path) -> list[str]:
        """Make the environment, with the Python that runs llmserve; `folder` may be there."""
        if self.name == "uv":
            return [
                self.uv,
                "venv",
                "--no-project",
                "--allow-existing",
                "--python",
                sys.executable,
                str(folder),
            ]
        return [sys.executable, "-m", "venv", str(folder)]

    def install(self, folder: Path, *arguments: str) -> list[str]:
        """Install requirements; `arguments` are those that pip and uv share."""
        python = str(folder / "bin" / "python")
        if self.name == "uv":
            return [self.uv, "pip", "install", "--python", python, *arguments]
        own = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        return [python, "-m", "pip", "install", *own, *arguments]

    def beside(self, index: str) -> tuple[str, ...]:
        """Arguments that add an index to the user's own; the best version of all counts."""
        # uv else takes a package from the first index that has it at all
        best = ("--index-strategy", "unsafe-best-match") if self.name == "uv" else ()
        return ("--extra-index-url", index, *best)

    def uninstall(self, folder: Path, packages: Sequence[str]) -> list[str]:
        """Take packages out again."""
        python = str(folder / "bin" / "python")
        if self.name == "uv":
            return [self.uv, "pip", "uninstall", "--python", python, *packages]
        return [python, "-m", "pip", "uninstall", "--yes", "--disable-pip-version-check", *packages]


def choose(env: Mapping[str, str]) -> Tool:
    """uv where it is on PATH, unless LLMSERVE_NO_UV is set, or pip has an index of its own: uv reads none of
    pip's settings, and the user's packages are where those point."""
    uv = shutil.which("uv", path=env.get("PATH"))
    if uv is None or env.get("LLMSERVE_NO_UV") or _pip_has_an_index(env):
        return Tool("pip")
    return Tool("uv", uv)


def _pip_has_an_index(env: Mapping[str, str]) -> bool:
    if any(env.get(name) for name in _PIP_SETTINGS):
        return True
    home = Path(env.get("HOME") or "/")
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf"]
    if env.get("PIP_CONFIG_FILE"):
        files = [Path(env["PIP_CONFIG_FILE"])]
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if any(_PIP_INDEX.match(line.strip()) for line in text.splitlines()):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs commands one after another, their output in `log`. `keep_open` is inherited by what runs."""

    folder: Path
    log: Path
    env: Mapping[str, str]
    keep_open: int
    progress: Progress | None = None

    def run(self, what: str, argv: Sequence[str], added: Mapping[str, str] | None = None) -> bool:
        """Whether the command ended well; all its processes are ended on an interrupt.

        Raises OSError where it cannot be started.
        """
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        env = {k: v for k, v in self.env.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        env |= {
            "TMPDIR": str(temporary),
            "PYTHONNOUSERSITE": "1",
            "PIP_REQUIRE_VIRTUALENV": "0",
            **(added or {}),
        }
        with self.log.open("ab") as out:
            out.write(f"{_PROMPT}{' '.join(argv)}\n".encode())
            out.flush()
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env,
                cwd=self.folder,
                start_new_session=True,
                pass_fds=(self.keep_open,),
            )
        began = time.monotonic()
        try:
            while True:
                if self.progress is not None:
                    self.progress(what, time.monotonic() - began)
                try:
                    return child.wait(_POLL_S) == 0
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise

    def said(self) -> str:
        """What the last command said, its end where that is long."""
        with self.log.open("rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - _LOG_END_BYTES))
            return f.read().decode("utf-8", "replace").rpartition(_PROMPT)[2]


def failure(recipe: Recipe, said: str, log: Path) -> LlmserveError:
    """The error for what a tool said, by `tool_failures.yaml`; else its last line that tells an error."""
    for row in _failures():
        found = re.search(row["pattern"], said)
        if found is None:
            continue
        groups = {k: v for k, v in found.groupdict().items() if v}
        values = {
            "package": recipe.package,
            "version": recipe.version,
            "named": groups.get("named") or groups.get("other") or recipe.requirement,
            "there": _newest(groups.get("there", "")),
            "python": "{}.{}".format(*sys.version_info[:2]),
        }
        message = row["message"].format(**values)
        return refused(row["code"], message, f"{row['remedy'].format(**values)}; what it said is in {log}")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(ERROR|error)\b", line)] or lines or ["it said nothing"]
    return refused(
        "install_failed",
        f"{recipe.requirement} could not be installed: {errors[-1][:300]}",
        f"what it said is in {log}",
    )


def _newest(versions: str) -> str:
    """The last few of what pip lists, which is in order."""
    return ", ".join([v.strip() for v in versions.split(",") if v.strip()][-5:])


@cache
def _failures() -> list[dict[str, str]]:
    import yaml

    text = (Path(__file__).parent / "tool_failures.yaml").read_text(encoding="utf-8")
    loaded: list[dict[str, str]] = yaml.safe_load(text)
    return loaded
