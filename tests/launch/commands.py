"""The command line as a person uses it: its own processes and its own state folder."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.supervisor import process


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


class Cli:
    """Runs `llmserve` with LLMSERVE_HOME set to `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {**os.environ, "LLMSERVE_HOME": str(home), "NO_COLOR": "1"}

    def argv(self, *args: str) -> list[str]:
        return [str(Path(sys.executable).parent / "llmserve"), *args]

    def __call__(self, *args: str, timeout: float = 120) -> Result:
        done = subprocess.run(
            self.argv(*args),
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    def ok(self, *args: str, timeout: float = 120) -> dict[str, Any]:
        """Run with --json, expect exit 0, return the object."""
        done = self(*args, "--json", timeout=timeout)
        assert done.code == 0, f"{args}: exit {done.code}\n{done.out}\n{done.err}"
        return done.json

    def popen(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*args),
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def daemon_pid(self) -> int:
        return int(self.ok("daemon", "status")["pid"])

    def kill_daemon(self) -> None:
        pid = self.daemon_pid()
        identity = process.Identity.of(pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: identity is None or not identity.alive())

    def state(self, name: str) -> dict[str, Any]:
        return json.loads((self.home / "state" / "deployments" / name / "state.json").read_text())

    def marker(self, name: str) -> str:
        return str(self.state(name)["run"]["marker"])


def wait_until(done, timeout: float = 30) -> None:
    """Poll until `done()`, fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
