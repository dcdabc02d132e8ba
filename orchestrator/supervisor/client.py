"""The command's side of the daemon: find it or start it, ask, and turn its errors back into ours."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from orchestrator import __version__
from orchestrator.errors import Exit, LlmserveError
from orchestrator.folders import state_dir
from orchestrator.plan import Plan
from orchestrator.supervisor.address import check_socket, holder, lock_file, socket_file
from orchestrator.supervisor.environment import allowed

PROTOCOL = 1
_START_S = 20.0
_ANSWER_S = 10.0
_HANDSHAKE_S = 5.0
_SPAWN_S = 30.0


class Client:
    """One method per command. All raise LlmserveError: the daemon's own, or exit 6 where it is gone."""

    def __init__(self) -> None:
        self.socket = check_socket(socket_file())
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.socket), verify=False, trust_env=False),
            base_url="http://daemon",
            trust_env=False,
        )

    def daemon(self) -> dict[str, Any]:
        return self._ask("GET", "/v1/daemon", within_s=_HANDSHAKE_S, revive=False)

    def machine(self) -> dict[str, Any]:
        """The machine as the daemon may use it: `Machine` as JSON."""
        machine: dict[str, Any] = self._ask("GET", "/v1/machine")["machine"]
        return machine

    def launch(self, name: str, plan: Plan, env: Mapping[str, str]) -> dict[str, Any]:
        return self._ask(
            "POST", "/v1/deployments", {"name": name, "plan": plan.to_json(), "env": allowed(env)}
        )

    def ps(self) -> list[dict[str, Any]]:
        deployments: list[dict[str, Any]] = self._ask("GET", "/v1/deployments")["deployments"]
        return deployments

    def status(
        self, name: str, *, after: int | None = None, wait_s: float = 30, env: bool = False
    ) -> dict[str, Any]:
        """Now, or at the first change past revision `after` (at most `wait_s` later)."""
        query: dict[str, str] = {"env": "1"} if env else {}
        if after is not None:
            query |= {"after": str(after), "wait_s": str(wait_s)}
        return self._ask("GET", f"/v1/deployments/{name}", query=query, within_s=wait_s + _ANSWER_S)

    def stop(self, name: str) -> dict[str, Any]:
        """Returns when the stop is proved."""
        return self._ask("POST", f"/v1/deployments/{name}/stop", within_s=None)

    def remove(self, name: str) -> None:
        self._ask("DELETE", f"/v1/deployments/{name}")

    def restart(self, name: str) -> dict[str, Any]:
        """Returns when the restart has begun."""
        return self._ask("POST", f"/v1/deployments/{name}/restart", within_s=_SPAWN_S + _ANSWER_S)

    def shutdown(self, stop_all: bool) -> dict[str, Any]:
        return self._ask("POST", "/v1/daemon/stop", {"all": stop_all}, within_s=None, revive=False)

    def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        within_s: float | None = _ANSWER_S,
        revive: bool = True,
    ) -> dict[str, Any]:
        """`within_s` None where the work itself takes as long as it takes (a drain)."""
        timeout = httpx.Timeout(within_s, connect=_ANSWER_S)

        def once() -> httpx.Response:
            return self._http.request(method, path, json=body, params=dict(query or {}), timeout=timeout)

        try:
            try:
                reply = once()
            except httpx.ConnectError:
                if not revive:
                    raise
                start()  # the daemon was just ending: the request has reached nobody
                reply = once()
            data = reply.json()
        except httpx.TimeoutException:
            raise _silent(within_s) from None
        except httpx.ConnectError as e:
            raise unreachable(str(e) or type(e).__name__) from None
        except httpx.HTTPError as e:
            went = "" if method == "GET" else "; what was asked may be under way: llmserve ps"
            raise unreachable(f"{str(e) or type(e).__name__}{went}") from None
        except ValueError:
            data = None
        if reply.status_code >= 400 or not isinstance(data, dict):
            raise _error(data)
        return data


def _error(data: Any) -> LlmserveError:
    try:
        error = data["error"]
        return LlmserveError(
            error["code"],
            error["message"],
            error["remedy"],
            exit_code=Exit(data["exit_code"]),
            violations=data.get("violations", ()),
        )
    except (KeyError, TypeError, ValueError):
        return LlmserveError(
            "daemon_error", f"the daemon answered {data!r}", "see daemon.log in the state folder"
        )


def unreachable(why: str) -> LlmserveError:
    return LlmserveError(
        "daemon_unreachable",
        f"the daemon does not answer: {why}",
        "llmserve daemon start; running servers are not touched and will be found again",
        exit_code=Exit.DAEMON,
    )


def _silent(within_s: float | None) -> LlmserveError:
    pid = holder()
    who = f"(pid {pid}) " if pid and pid > 0 else ""
    return LlmserveError(
        "daemon_silent",
        f"the daemon {who}accepts connections and has not answered for {within_s:.0f} s",
        f"look whether it is stopped or starved; kill -9 {pid} loses no server: the next command finds them",
        exit_code=Exit.DAEMON,
    )


def running(*, any_version: bool = False) -> Client | None:
    """A client of the daemon that runs, None where none does. Raises LlmserveError where it does not answer,
    and on a version mismatch, unless `any_version`: stopping is understood by all."""
    client = Client()
    if not client.socket.exists():
        return None
    try:
        about = client.daemon()
    except LlmserveError as e:
        if e.code == "daemon_unreachable":
            return None
        raise
    if about.get("protocol") != PROTOCOL and not any_version:
        raise LlmserveError(
            "daemon_version",
            f"the daemon is llmserve {about.get('version')}, this command is {__version__}: they do not "
            "understand each other",
            "llmserve daemon restart; running servers are not touched",
            exit_code=Exit.DAEMON,
        )
    return client


def wait_gone(client: Client, timeout_s: float = 15) -> None:
    """Until a daemon that was told to stop has released its lock. Raises LlmserveError (exit 6)."""
    import fcntl

    deadline = time.monotonic() + timeout_s
    with lock_file().open("a") as handle:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                time.sleep(0.02)
    raise unreachable(f"it was told to stop and still holds its lock after {timeout_s:.0f} s")


def connect() -> Client:
    """A client of the daemon, which is started where none runs. Raises LlmserveError (exit 6)."""
    return running() or start()


def start() -> Client:
    """Start the daemon in the background and wait until it answers. Raises LlmserveError (exit 6)."""
    log = state_dir() / "daemon.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    offset = log.stat().st_size if log.exists() else 0
    child = _spawn(log)
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        client = running()
        if client is not None:
            return client
        if child.poll() == int(Exit.REFUSED) and holder() is None:
            # a daemon that was just ending, or a command that looked at the lock, held it
            child = _spawn(log)
        elif child.poll() not in (None, int(Exit.REFUSED)):
            break
        time.sleep(0.05)
    pid = holder()
    if pid is not None and child.poll() == int(Exit.REFUSED):
        raise unreachable(f"pid {pid} holds its lock and its socket does not answer")
    with log.open("rb") as f:
        f.seek(offset)
        said = f.read()[-2000:].decode("utf-8", "replace").strip()
    raise unreachable(f"it was started and did not come up; {log} says: {said or 'nothing'}")


def _spawn(log: Path) -> subprocess.Popen[bytes]:
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    # a daemon started from inside an engine's tree must not be taken for a part of it
    env = {k: v for k, v in os.environ.items() if k != "LLMSERVE_MARKER"}
    if env.get("LLMSERVE_HOME"):
        env["LLMSERVE_HOME"] = str(Path(env["LLMSERVE_HOME"]).expanduser().absolute())
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.supervisor.daemon"],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
            cwd="/",
            env=env,
        )
    finally:
        os.close(fd)
