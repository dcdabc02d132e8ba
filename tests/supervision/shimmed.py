"""What the tests of the shim share: one shim with its folder, and a telephone to its hostile engine."""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from orchestrator.supervisor import process, shim_client
from orchestrator.supervisor.process import Identity

HOSTILE = str(Path(__file__).with_name("hostile.py"))


class Telephone:
    """A FIFO on which the processes of a hostile engine say that they are there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"fifo-{uuid.uuid4().hex[:6]}"
        os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self.text = b""

    def heard(self, count: int, within_s: float = 20) -> dict[str, Identity]:
        """The first `count` processes by kind."""
        end = time.monotonic() + within_s
        while self.text.count(b"\n") < count:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"only {self.text!r} after {within_s} s"
            self.text += os.read(self.fd, 4096)
        pairs = [line.split() for line in self.text.decode().splitlines()[:count]]
        found = {kind: Identity.of(int(pid)) for kind, pid in pairs}
        return {kind: i for kind, i in found.items() if i is not None}

    def command(self, *kinds: str) -> list[str]:
        return [sys.executable, "-I", "-S", HOSTILE, str(self.path), *kinds]

    def close(self) -> None:
        os.close(self.fd)


class Shimmed:
    """One process folder. `end` leaves nothing running, whatever the test did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "process"
        self.folder.mkdir(mode=0o700, parents=True)
        self.telephone = Telephone(folder)
        self.marker = f"test-{uuid.uuid4().hex}"
        self.generation = 0
        self.log = folder / "engine.log"
        self.tmpdir = folder / "tmp"
        self.innocents: list[subprocess.Popen[bytes]] = []

    def spec(self, argv: list[str], **more: object) -> dict[str, object]:
        self.generation += 1
        base = {
            "protocol": 1,
            "deployment": "d",
            "process": "server",
            "generation": self.generation,
            "argv": argv,
            "env": {"PATH": os.environ["PATH"]},
            "cwd": str(self.folder),
            "log": str(self.log),
            "log_max_bytes": 1_000_000,
            "tmpdir": str(self.tmpdir),
            "marker": self.marker,
            "term_grace_s": 10,
        }
        return base | more

    async def start(self, *kinds: str, **more: object) -> None:
        await shim_client.start(self.folder, self.spec(self.telephone.command(*kinds), **more))

    def innocent(self, *kinds: str) -> Identity:
        """A foreign process with the same program and arguments."""
        telephone = Telephone(self.folder)
        own = subprocess.Popen(telephone.command(*kinds), start_new_session=True)
        self.innocents.append(own)
        telephone.heard(1)
        telephone.close()
        found = Identity.of(own.pid)
        assert found is not None
        return found

    def record(self, name: str) -> dict[str, object]:
        found = shim_client.read_record(self.folder, name)
        assert found is not None, f"no {name}: {self.shim_log()}"
        return found

    def shim_log(self) -> str:
        return (self.folder / "shim.log").read_text()

    @property
    def shim(self) -> Identity:
        return self._of("shim")

    @property
    def engine(self) -> Identity:
        return self._of("engine")

    def _of(self, who: str) -> Identity:
        r = self.record("shim.json")
        return Identity(r[f"{who}_pid"], r[f"{who}_start_time"], r["boot_id"])

    async def ask(self, op: str, timeout_s: float = 15, **more: object) -> dict[str, object]:
        return await shim_client.request(self.folder, {"op": op, **more}, timeout_s)

    async def ended(self) -> dict[str, object]:
        """Wait for the shim's own end; its last record."""
        async with asyncio.timeout(20):
            await shim_client.wait_dead(self.shim)
        return self.record("exit.json")

    def end(self) -> None:
        record = shim_client.read_record(self.folder, "shim.json")
        if record is not None:
            self.shim.signal(signal.SIGKILL)
        survivors = process.sweep(self.marker)
        for innocent in self.innocents:
            innocent.kill()
            innocent.wait()
        self.telephone.close()
        assert survivors == []


async def eventually(condition, within_s: float = 10.0) -> None:
    """Wait for what only a file can tell."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def json_or_none(path: Path):
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None
