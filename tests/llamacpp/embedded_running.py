"""Starts real servers for the tests, and ends whatever a test left running."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

EMBEDDED = (sys.executable, "-P", "-m", "orchestrator.engines.llamacpp.embedded")
START_LIMIT_S = 60


@dataclass
class Running:
    """A real server process and where its log goes."""

    process: subprocess.Popen[bytes]
    port: int
    log_file: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def wait_ready(self) -> None:
        """Poll until /health is 200."""
        with httpx.Client(timeout=5) as client:
            for _ in range(START_LIMIT_S * 50):
                assert self.process.poll() is None, self.log()
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(f"{self.url}/health").status_code == 200:
                        return
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.02)
        raise AssertionError(f"not ready: {self.log()}")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


Start = Callable[..., Running]


@contextlib.contextmanager
def starting(folder: Path, model: str) -> Iterator[Start]:
    begun: list[Running] = []

    def start(*args: str, model: str = model, program: tuple[str, ...] = EMBEDDED, **env: str) -> Running:
        port, log = free_port(), folder / f"{len(begun)}.log"
        small = (
            "--parallel",
            "2",
            "--ctx-size",
            "16384",
            "--threads",
            "1",
            "--poll",
            "0",
            "--cache-ram",
            "16",
        )
        line = (*program, "--model", model, "--port", str(port), "--metrics", "--offline", *small, *args)
        with log.open("wb") as f:
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=f, stderr=f, env={**os.environ, **env}
            )
        begun.append(Running(process, port, log))
        return begun[-1]

    try:
        yield start
    finally:
        for running in begun:
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGKILL)
            running.process.wait()
