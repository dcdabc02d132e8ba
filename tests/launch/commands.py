"""The command line as a person uses it: its own processes and its own state folder."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

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

    def plan(self, name: str) -> dict[str, Any]:
        return json.loads((self.home / "state" / "deployments" / name / "plan.json").read_text())

    def marker(self, name: str) -> str:
        return str(self.state(name)["run"]["marker"])

    def member(self, name: str, title: str) -> int:
        """The pid of a deployment's process whose command line begins with `title`; 0 where none does."""
        for m in process.members(self.marker(name)):
            try:
                line = Path(f"/proc/{m.pid}/cmdline").read_bytes()
            except OSError:
                continue
            if line.startswith(title.encode()):
                return m.pid
        return 0

    def await_state(self, name: str, *states: str, timeout: float = 120) -> dict[str, Any]:
        """Wait until a deployment is in one of these states, and return its status."""
        seen: dict[str, Any] = {}

        def there() -> bool:
            nonlocal seen
            seen = self.ok("status", name)
            return seen["state"] in states

        wait_until(there, timeout)
        return seen


def wait_until(done, timeout: float = 30) -> None:
    """Poll until `done()`, fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def samples(endpoint: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each sample of one metric in a server's Prometheus text."""
    text = httpx.get(f"{endpoint}/metrics", timeout=10).text
    found = re.findall(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in found]


def total(endpoint: str, name: str) -> float:
    """The sum of a counter's samples. Fails where the server has no such counter."""
    found = samples(endpoint, name)
    assert found, f"{endpoint}/metrics has no {name}"
    return sum(value for _, value in found)


def unseen(plan: dict[str, Any], status: dict[str, Any]) -> set[str]:
    """Levers that are not at the engine's own default and that no line of plan against engine speaks of."""
    asked = {name for name, decision in plan["levers"].items() if not decision["stock"]}
    if plan["levers"]["max_queued_requests"]["value"] == 0:
        asked.discard("max_queued_requests")  # no limit: the flag is left out
    return asked - {check["what"] for check in status["plan_vs_actual"]}


def order_of_ends(
    found: dict[str, Any],
    running: dict[str, Any],
    waiting: Sequence[dict[str, Any]],
    inside: Callable[[], float],
) -> list[int]:
    """The order in which requests end that came one by one while another had the server's only place.

    Each is the extra fields of its request; `inside` counts the requests that the server has taken in.
    """
    url, ends = found["endpoint"] + "/v1/completions", []
    ask = {"model": found["served_model"], "prompt": "Once upon a time", "max_tokens": 2}

    def wait_for(number: int) -> None:
        assert httpx.post(url, json=ask | waiting[number], timeout=120).status_code == 200
        ends.append(number)

    clients = [threading.Thread(target=wait_for, args=(i,)) for i in range(len(waiting))]
    long = ask | {"max_tokens": 1000, "ignore_eos": True, "stream": True} | running
    with httpx.stream("POST", url, json=long, timeout=120) as stream:
        lines = stream.iter_lines()  # kept: its end would end the request
        next(lines)
        for number, one in enumerate(clients):
            one.start()
            wait_until(lambda there=number + 2: inside() == there)
    # the first request's client is gone: its place is the next one's
    for one in clients:
        one.join(120)
    return ends


def computed_s() -> float:
    """Seconds of a core that the commands run so far have taken: what waiting for a core does not change."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def shared_memory(pids: Iterable[int]) -> set[str]:
    """The files below /dev/shm that processes map; a semaphore is mapped under another name than its own."""
    inodes: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = (line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
            inodes |= {int(f[4]) for f in fields if len(f) > 5 and f[5].startswith("/dev/shm/")}
    return {str(file) for file in Path("/dev/shm").iterdir() if file.stat().st_ino in inodes}
