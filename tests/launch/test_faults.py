"""What goes wrong around a real server, and how it ends: adopted and supervised, or gone, and truly told."""

import http.server
import json
import os
import pty
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from commands import Cli, wait_until

from orchestrator.supervisor import ports, process
from orchestrator.supervisor.process import Identity

pytestmark = pytest.mark.real_engine

SHORT = [
    "--set",
    "supervision.liveness.interval_s=0.3",
    "--set",
    "supervision.liveness.idle_s=0.6",
    "--set",
    "supervision.restart.backoff_s=0.1",
]


@pytest.fixture
def server(cli: Cli, model: str, request: pytest.FixtureRequest) -> Iterator[dict]:
    """A server of its own for one test, named after it."""
    name = request.node.name[5:40].replace("_", "-").strip("-")
    yield cli.ok("launch", "--goal", "edge", "--model", model, "--name", name, *SHORT)
    assert cli("stop", name).code == 0
    assert cli("rm", name).code == 0


@pytest.fixture(scope="module")
def shared(cli: Cli, model: str) -> dict:
    """One server for the tests after which it is as before."""
    return cli.ok("launch", "--goal", "edge", "--model", model, "--name", "shared", *SHORT)


def pid(found: dict) -> int:
    return int(found["processes"][0]["pid"] or 0)


def shim_pid(found: dict) -> int:
    return int(found["processes"][0]["shim_pid"] or 0)


def living(number: int) -> bool:
    identity = Identity.of(number)
    return identity is not None and identity.alive()


def endless(url: str, model: str) -> dict:
    return {
        "url": url + "/v1/chat/completions",
        "json": {
            "model": model,
            "messages": [{"role": "user", "content": "Count."}],
            "max_tokens": 1500,
            "ignore_eos": True,
            "stream": True,
        },
        "timeout": 120,
    }


def test_a_dead_engine_under_a_frozen_shim_is_never_called_ready(cli: Cli, server: dict) -> None:
    os.kill(shim_pid(server), signal.SIGSTOP)
    os.kill(pid(server), signal.SIGKILL)
    seen = []

    def replaced() -> bool:
        found = cli.ok("status", server["name"])
        seen.append((found["state"], pid(found)))
        return found["state"] == "ready" and pid(found) not in (0, pid(server))

    wait_until(replaced, 60)
    assert ("ready", pid(server)) not in seen[1:]
    assert not living(shim_pid(server))


def test_a_stop_ends_a_frozen_shim_too(cli: Cli, server: dict) -> None:
    os.kill(shim_pid(server), signal.SIGSTOP)
    report = cli.ok("stop", server["name"])
    assert report["survivors"] == []
    assert not living(shim_pid(server))


def test_after_a_stop_nobody_of_ours_speaks_to_the_port(cli: Cli, server: dict) -> None:
    cli.ok("stop", server["name"])
    asked: list[str] = []

    class Foreign(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_POST = do_GET

    with http.server.HTTPServer(("127.0.0.1", int(server["endpoint"].rsplit(":", 1)[1])), Foreign) as foreign:
        foreign.timeout = 2
        foreign.handle_request()
    assert asked == []


def test_two_stops_at_once_both_count_what_was_cut(cli: Cli, model: str) -> None:
    found = cli.ok(
        *("launch", "--goal", "edge", "--model", model, "--name", "two-stops"),
        *("--set", "supervision.drain_s=2"),
    )
    with httpx.stream("POST", **endless(found["endpoint"], found["served_model"])) as stream:
        lines = stream.iter_lines()  # kept: its end would end the request
        next(lines)
        first = cli.popen("stop", "two-stops", "--json")
        wait_until(lambda: cli.ok("status", "two-stops")["state"] == "stopping")
        second = cli.ok("stop", "two-stops")
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert (json.loads(out)["lost"], second["lost"]) == (1, 1)


def test_a_drain_is_gone_on_with_when_its_daemon_dies(cli: Cli, model: str) -> None:
    found = cli.ok("launch", "--goal", "edge", "--model", model, "--name", "drain-on")
    ask = endless(found["endpoint"], found["served_model"])
    ask["json"]["max_tokens"] = 300
    with httpx.stream("POST", **ask) as stream:
        lines = stream.iter_lines()
        next(lines)
        stop = cli.popen("stop", "drain-on", "--json")
        wait_until(lambda: cli.ok("status", "drain-on")["state"] == "stopping")
        cli.kill_daemon()
        stop.communicate(timeout=60)
        again = cli.popen("stop", "drain-on", "--json")
        rest = list(lines)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert any("[DONE]" in line for line in rest)
    assert json.loads(out)["lost"] == 0


@pytest.mark.parametrize("file", ["state.json", "plan.json"])
def test_with_damaged_files_it_is_still_shown_and_can_be_ended(cli: Cli, server: dict, file: str) -> None:
    cli.kill_daemon()
    (cli.home / "state/deployments" / server["name"] / file).write_text("garbage")
    (row,) = [d for d in cli.ok("ps")["deployments"] if d["name"] == server["name"]]
    if file == "state.json":  # the shim's own files are enough to find it again
        wait_until(lambda: cli.ok("status", server["name"])["state"] == "ready")
        assert pid(cli.ok("status", server["name"])) == pid(server)
    else:
        assert (row["state"], row["reason"]) == ("failed", "unreadable")
    cli.ok("stop", server["name"])
    assert not living(pid(server))
    assert not living(shim_pid(server))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("plan.json", "[]"),
        ("plan.json", "[" * 100_000),
        ("state.json", '{"lifecycle": []}'),
        ("state.json", '{"lifecycle": {"state": "backoff", "retry_at": "soon"}}'),
        ("state.json", '{"lifecycle": {"state": "stopped"}, "ports": []}'),
        ("state.json", '{"lifecycle": {"state": "stopped"}, "corrections": "x", "plan_vs_actual": 7}'),
    ],
)
def test_files_of_the_wrong_shape_are_that_deployments_trouble_alone(
    cli: Cli, shared: dict, file: str, text: str
) -> None:
    broken = cli.home / "state/deployments/broken"
    broken.mkdir()
    (broken / "plan.json").write_bytes((broken.parent / shared["name"] / "plan.json").read_bytes())
    (broken / file).write_text(text)
    cli.kill_daemon()
    assert {shared["name"], "broken"} <= {d["name"] for d in cli.ok("ps")["deployments"]}
    assert pid(cli.ok("status", shared["name"])) == pid(shared)
    assert "Traceback" not in cli("status", "broken").err
    assert cli("rm", "broken").code == 0


def test_a_restart_onto_a_taken_port_names_the_holder(cli: Cli, server: dict) -> None:
    cli.ok("stop", server["name"])
    port = int(server["endpoint"].rsplit(":", 1)[1])
    with socket.create_server(("127.0.0.1", port)):
        done = cli("restart", server["name"], "--json")
    assert (done.code, done.json["error"]["code"]) == (3, "port_taken")
    assert str(os.getpid()) in done.json["error"]["message"]
    assert cli.ok("restart", server["name"])["state"] == "ready"


def test_commands_that_race_a_daemon_stop_find_or_start_another(cli: Cli, shared: dict) -> None:
    for _ in range(3):
        stop = cli.popen("daemon", "stop", "--json")
        looks = [cli.popen("status", shared["name"], "--json") for _ in range(2)]
        for p in (stop, *looks):
            _, err = p.communicate(timeout=60)
            assert p.returncode == 0, err
    assert pid(cli.ok("status", shared["name"])) == pid(shared)


def test_a_state_folder_deleted_under_a_running_server_comes_back(cli: Cli, shared: dict) -> None:
    subprocess.run(["rm", "-r", str(cli.home / "state")], check=True)
    wait_until(lambda: [d["name"] for d in cli.ok("ps")["deployments"]].count(shared["name"]) == 1)
    after = cli.ok("status", shared["name"])
    assert (after["state"], pid(after)) == ("ready", pid(shared))


def test_a_frozen_daemon_is_named_and_not_waited_for(cli: Cli, shared: dict) -> None:
    frozen = cli.daemon_pid()
    os.kill(frozen, signal.SIGSTOP)
    try:
        for command in (["status", shared["name"]], ["daemon", "stop"]):
            done = cli(*command, "--json", timeout=30)
            assert (done.code, done.json["error"]["code"]) == (6, "daemon_silent")
            assert str(frozen) in done.json["error"]["message"]
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert cli.ok("status", shared["name"])["state"] == "ready"


def test_two_launches_in_two_homes_at_once_do_not_take_one_port(tmp_path: Path, model: str) -> None:
    homes = [Cli(tmp_path / "a"), Cli(tmp_path / "b")]
    try:
        both = [c.popen("launch", "--goal", "edge", "--model", model, "--name", "x", "--json") for c in homes]
        ends = [p.communicate(timeout=90) for p in both]
        assert [p.returncode for p in both] == [0, 0], ends
        endpoints = {json.loads(out)["endpoint"] for out, _ in ends}
        assert len(endpoints) == 2
    finally:
        for c in homes:
            assert c("daemon", "stop", "--all").code == 0


def test_a_relative_home_is_one_place_for_command_and_daemon(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli = Cli(Path("rel/home"))
    assert cli("daemon", "start").code == 0
    assert (tmp_path / "rel/home/state/daemon.lock").is_file()
    assert cli.ok("daemon", "stop")["was_running"] is True


def test_a_foreign_line_among_the_events_is_no_reason_to_fail(cli: Cli, shared: dict) -> None:
    file = cli.home / "state/deployments" / shared["name"] / "events.jsonl"
    with file.open("a") as f:
        f.write('{"kind":"x"}\n[1,2]\n\x00\x01\n')
    done = cli("events", shared["name"])
    assert done.code == 0
    assert "x" in done.out.splitlines()[-1]


class Foreground:
    """A `launch --foreground` with a home of its own."""

    def __init__(self, home: Path, model: str) -> None:
        self.cli = Cli(home)
        self.args = ("launch", "--goal", "edge", "--model", model, "--name", "fg", "--foreground")

    def start(self) -> subprocess.Popen[str]:
        """Begun, and holding the lock: a command that looks for it sooner would start a daemon."""
        launch = self.cli.popen(*self.args)
        wait_until(lambda: launch.poll() is not None or self.holder() == launch.pid)
        return launch

    def holder(self) -> int | None:
        try:
            return int(json.loads((self.cli.home / "state/daemon.lock").read_text())["pid"])
        except (OSError, ValueError):
            return None

    def ready(self) -> dict:
        wait_until(lambda: (self.cli.home / "state/deployments/fg/state.json").exists())
        wait_until(lambda: self.cli.ok("status", "fg")["state"] == "ready")
        return self.cli.ok("status", "fg")

    def gone(self) -> bool:
        return process.members(self.cli.marker("fg")) == []


@pytest.fixture
def fg(tmp_path: Path, model: str) -> Iterator[Foreground]:
    fg = Foreground(tmp_path / "fg", model)
    yield fg
    assert fg.cli("daemon", "stop", "--all").code == 0


def test_a_foreground_refused_for_its_name_leaves_that_server_alone(
    cli: Cli, shared: dict, model: str
) -> None:
    cli.kill_daemon()
    again = cli(
        *("launch", "--goal", "edge", "--model", model, "--name", shared["name"], "--foreground", "--json")
    )
    assert again.code == 3
    assert httpx.get(shared["endpoint"] + "/health", timeout=5).status_code == 200
    assert pid(cli.ok("status", shared["name"])) == pid(shared)


def test_a_foreground_killed_with_its_engine_can_be_begun_anew(fg: Foreground) -> None:
    first = fg.start()
    found = fg.ready()
    first.kill()
    first.communicate(timeout=30)
    for p in (shim_pid(found), pid(found)):
        os.kill(p, signal.SIGKILL)
    second = fg.start()
    try:
        wait_until(lambda: pid(fg.ready()) != pid(found))
    finally:
        second.send_signal(signal.SIGTERM)
        _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert fg.gone()


def test_a_foreground_takes_in_no_other_launch(fg: Foreground, model: str) -> None:
    launch = fg.start()
    try:
        fg.ready()
        other = fg.cli("launch", "--goal", "edge", "--model", model, "--name", "third", "--json")
        assert (other.code, other.json["error"]["code"]) == (3, "foreground")
    finally:
        launch.send_signal(signal.SIGTERM)
        launch.communicate(timeout=60)
    assert launch.returncode == 0


def test_an_interrupt_before_ready_is_130_and_leaves_nothing(fg: Foreground) -> None:
    launch = fg.start()
    wait_until((fg.cli.home / "state/deployments/fg/server/shim.json").exists)
    launch.send_signal(signal.SIGINT)
    _, err = launch.communicate(timeout=60)
    assert launch.returncode == 130, err
    assert fg.gone()


def test_a_second_interrupt_cuts_the_drain(fg: Foreground) -> None:
    launch = fg.start()
    found = fg.ready()
    with httpx.stream("POST", **endless(found["endpoint"], found["served_model"])) as stream:
        lines = stream.iter_lines()
        next(lines)
        launch.send_signal(signal.SIGINT)
        wait_until(lambda: '"stopping"' in (fg.cli.home / "state/deployments/fg/state.json").read_text())
        launch.send_signal(signal.SIGINT)
        _, err = launch.communicate(timeout=15)
    assert launch.returncode == 0, err
    assert "0 processes left" in err
    assert fg.gone()


def test_a_foreground_outlives_its_terminal_and_ends_well(fg: Foreground) -> None:
    terminal, child_side = pty.openpty()
    launch = subprocess.Popen(
        fg.cli.argv(*fg.args),
        env=fg.cli.env,
        stdin=child_side,
        stdout=child_side,
        stderr=child_side,
        start_new_session=True,
    )
    os.close(child_side)
    os.close(terminal)
    wait_until(lambda: fg.holder() == launch.pid)
    found = fg.ready()
    launch.send_signal(signal.SIGTERM)
    assert launch.wait(timeout=60) == 0
    assert fg.gone()
    assert ports.is_free("127.0.0.1", int(found["endpoint"].rsplit(":", 1)[1]))
    assert not (fg.cli.home / "state/daemon.sock").exists()


def test_the_daemon_killed_under_load_fails_no_request(cli: Cli, shared: dict) -> None:
    stop = threading.Event()
    codes: list[int] = []

    def ask() -> None:
        body = {"model": shared["served_model"], "prompt": "Once", "max_tokens": 4}
        while not stop.is_set():
            codes.append(
                httpx.post(shared["endpoint"] + "/v1/completions", json=body, timeout=30).status_code
            )

    client = threading.Thread(target=ask)
    client.start()
    try:
        for _ in range(5):
            cli.kill_daemon()
            assert pid(cli.ok("status", shared["name"])) == pid(shared)
    finally:
        stop.set()
        client.join()
    assert codes
    assert set(codes) == {200}


def test_a_socket_deleted_under_the_daemon_is_made_anew(cli: Cli, shared: dict) -> None:
    before = cli.daemon_pid()
    (cli.home / "state/daemon.sock").unlink()
    wait_until((cli.home / "state/daemon.sock").exists)
    assert cli.daemon_pid() == before


def test_a_port_that_answers_for_somebody_else_is_not_readiness(cli: Cli, model: str) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        assert not ports.owned(port, [])
        done = cli("launch", "--goal", "edge", "--model", model, "--name", "p", "--port", str(port), "--json")
    assert done.code == 3
