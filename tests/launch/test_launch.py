"""From a goal to a served answer, and back to nothing, with the real engine."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest
from commands import Cli, wait_until
from openai import OpenAI

from orchestrator.supervisor import ports, process

pytestmark = pytest.mark.real_engine

STATUS_KEYS = {
    "schema_version",
    "name",
    "state",
    "phase",
    "reason",
    "endpoint",
    "served_model",
    "goal",
    "engine",
    "processes",
    "plan_vs_actual",
    "corrections",
    "last_failure",
}
PROCESS_KEYS = {"role", "pid", "shim_pid", "state", "restarts", "uptime_s"}


@pytest.fixture(scope="module")
def launched(cli: Cli, model: str) -> dict:
    return cli.ok("launch", "--goal", "edge", "--model", model, "--name", "edge-one")


def status(cli: Cli, name: str = "edge-one") -> dict:
    return cli.ok("status", name)


def pid(found: dict) -> int:
    return int(found["processes"][0]["pid"])


def await_state(cli: Cli, name: str, state: str, timeout: float = 60) -> dict:
    seen: dict = {}

    def there() -> bool:
        nonlocal seen
        seen = status(cli, name)
        return bool(seen["state"] == state)

    wait_until(there, timeout)
    return seen


def test_launch_ends_ready_with_the_contracts_status_and_the_plan_in_effect(launched: dict) -> None:
    assert launched["state"] == "ready"
    assert set(launched) >= STATUS_KEYS
    assert set(launched["processes"][0]) >= PROCESS_KEYS
    assert launched["endpoint"].startswith("http://127.0.0.1:")
    assert launched["plan_vs_actual"]
    assert all(c["ok"] for c in launched["plan_vs_actual"])


def test_an_openai_client_gets_an_answer_under_the_served_name(launched: dict) -> None:
    client = OpenAI(base_url=launched["endpoint"] + "/v1", api_key="none")
    reply = client.chat.completions.create(
        model=launched["served_model"],
        messages=[{"role": "user", "content": "Why is the sky blue?"}],
        max_tokens=32,
        temperature=0,
    )
    assert "sky" in (reply.choices[0].message.content or "")
    assert launched["served_model"] in [m.id for m in client.models.list()]


def test_ps_lists_it_without_the_last_three_keys(cli: Cli, launched: dict) -> None:
    (row,) = cli.ok("ps")["deployments"]
    assert row["name"] == "edge-one"
    assert not {"plan_vs_actual", "corrections", "last_failure"} & set(row)
    assert "edge-one" in cli("ps").out


def test_logs_and_events_are_read_without_a_daemon(cli: Cli, launched: dict) -> None:
    assert "listening" in cli("logs", "edge-one").out
    kinds = [
        line for line in cli("events", "edge-one", "--json").out.splitlines() if '"kind": "state"' in line
    ]
    assert any('"ready"' in k for k in kinds)


def test_only_our_own_tree_listens_and_only_on_loopback(launched: dict, cli: Cli) -> None:
    members = [m.pid for m in process.members(cli.marker("edge-one"))]
    listening = ports.listeners(members)
    assert {entry.address for entry in listening} == {"127.0.0.1"}


def test_the_name_and_the_port_of_a_running_one_are_refused(cli: Cli, launched: dict, model: str) -> None:
    again = cli("launch", "--goal", "edge", "--model", model, "--name", "edge-one", "--json")
    assert (again.code, again.json["error"]["code"]) == (3, "name_taken")
    port = launched["endpoint"].rsplit(":", 1)[1]
    other = cli("launch", "--goal", "edge", "--model", model, "--name", "two", "--port", port, "--json")
    assert (other.code, other.json["error"]["code"]) == (3, "port_taken")
    assert "edge-one" in other.json["error"]["message"]
    assert other.json["error"]["remedy"]


def test_a_foreign_holder_of_a_port_is_named(cli: Cli, model: str) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = str(s.getsockname()[1])
        taken = cli("launch", "--goal", "edge", "--model", model, "--name", "two", "--port", port, "--json")
    assert (taken.code, taken.json["error"]["code"]) == (3, "port_taken")
    assert str(os.getpid()) in taken.json["error"]["message"]


def test_a_server_with_a_key_becomes_ready_and_shows_it_nowhere(
    cli: Cli, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.env, "LLAMA_API_KEY", "hidden-key")
    found = cli.ok("launch", "--goal", "edge", "--model", model, "--name", "keyed")
    asked = found["endpoint"] + "/v1/models"
    bearer = {"Authorization": "Bearer hidden-key"}
    body = {"model": found["served_model"], "prompt": "a", "max_tokens": 1}
    try:
        assert httpx.post(found["endpoint"] + "/v1/completions", json=body, timeout=30).status_code == 401
        assert httpx.get(asked, headers=bearer, timeout=30).status_code == 200
        assert all(c["ok"] for c in found["plan_vs_actual"])
        shown = json.dumps(status(cli, "keyed")) + cli("logs", "keyed").out + cli("events", "keyed").out
        lines = [Path(f"/proc/{m.pid}/cmdline").read_text() for m in process.members(cli.marker("keyed"))]
        assert "hidden-key" not in shown + "".join(lines)
    finally:
        cli.ok("stop", "keyed")


def test_kill_of_the_daemon_loses_nothing(cli: Cli, launched: dict) -> None:
    before = status(cli)
    cli.kill_daemon()
    assert httpx.get(before["endpoint"] + "/health", timeout=5).status_code == 200
    after = status(cli)
    assert after["state"] == "ready"
    assert pid(after) == pid(before)
    assert after["plan_vs_actual"] == before["plan_vs_actual"]


def test_restart_is_a_new_process_on_the_same_port(cli: Cli, launched: dict) -> None:
    before = status(cli)
    after = cli.ok("restart", "edge-one")
    assert after["state"] == "ready"
    assert after["endpoint"] == before["endpoint"]
    assert pid(after) != pid(before)


def test_a_killed_engine_is_noticed_and_started_again(cli: Cli, launched: dict) -> None:
    before = status(cli)
    os.kill(pid(before), signal.SIGKILL)
    wait_until(lambda: pid_or_zero(status(cli)) not in (0, pid(before)))
    after = await_state(cli, "edge-one", "ready")
    assert after["processes"][0]["restarts"] == before["processes"][0]["restarts"] + 1
    assert after["last_failure"]["class"] == "killed"
    assert after["endpoint"] == before["endpoint"]


def pid_or_zero(found: dict) -> int:
    return int(found["processes"][0]["pid"] or 0)


def test_without_its_shim_it_serves_on_and_a_restart_makes_it_whole(cli: Cli, launched: dict) -> None:
    before = status(cli)
    os.kill(before["processes"][0]["shim_pid"], signal.SIGKILL)
    after = await_state(cli, "edge-one", "degraded")
    assert after["reason"] == "unshimmed"
    assert httpx.get(before["endpoint"] + "/health", timeout=5).status_code == 200
    assert cli.ok("restart", "edge-one")["state"] == "ready"


def test_a_stop_leaves_no_process_port_or_temporary_folder(cli: Cli, launched: dict) -> None:
    before, marker = status(cli), cli.marker("edge-one")
    tmpdir = cli.state("edge-one")["run"]["tmpdir"]
    assert os.path.isdir(tmpdir)
    report = cli.ok("stop", "edge-one")
    assert set(report) >= {"finished", "lost", "seconds", "survivors"}
    assert report["survivors"] == []
    assert process.members(marker) == []
    assert ports.is_free("127.0.0.1", int(before["endpoint"].rsplit(":", 1)[1]))
    assert not os.path.exists(tmpdir)
    assert status(cli)["state"] == "stopped"


def test_a_stopped_one_is_started_again_by_restart_and_its_name_can_be_used_anew(
    cli: Cli, launched: dict, model: str
) -> None:
    assert cli.ok("restart", "edge-one")["state"] == "ready"
    cli.ok("stop", "edge-one")
    again = cli.ok("launch", "--goal", "edge", "--model", model, "--name", "edge-one")
    assert again["state"] == "ready"
    assert again["processes"][0]["restarts"] == 0
    cli.ok("stop", "edge-one")


def test_a_frozen_engine_is_replaced(cli: Cli, model: str) -> None:
    short = [
        "supervision.liveness.interval_s=0.3",
        "supervision.liveness.idle_s=0.6",
        "supervision.liveness.deadline_s=2",
        "supervision.restart.backoff_s=0.1",
    ]
    args = [a for s in short for a in ("--set", s)]
    first = cli.ok("launch", "--goal", "edge", "--model", model, "--name", "frozen", *args)
    os.kill(pid(first), signal.SIGSTOP)
    wait_until(lambda: pid_or_zero(status(cli, "frozen")) not in (0, pid(first)))
    after = await_state(cli, "frozen", "ready")
    assert after["last_failure"]["class"] == "hang"
    cli.ok("stop", "frozen")


def test_a_request_in_flight_is_waited_for_and_counted(cli: Cli, model: str) -> None:
    first = cli.ok("launch", "--goal", "edge", "--model", model, "--name", "drain")
    url = first["endpoint"] + "/v1/chat/completions"
    body = {
        "model": first["served_model"],
        "messages": [{"role": "user", "content": "Count to one hundred."}],
        "max_tokens": 200,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx.stream("POST", url, json=body, timeout=60) as stream:
        chunks = stream.iter_lines()
        next(chunks)
        stop = cli.popen("stop", "drain", "--json")
        rest = list(chunks)
    out, err = stop.communicate(timeout=60)
    assert stop.returncode == 0, err
    assert any("[DONE]" in line for line in rest)
    assert '"finished": 1' in out
    assert '"lost": 0' in out


@pytest.mark.parametrize("goal", ["throughput", "latency", "agent"])
def test_every_other_goal_launches_with_its_plan_in_effect(cli: Cli, model: str, goal: str) -> None:
    found = cli.ok("launch", "--goal", goal, "--model", model, "--name", goal)
    assert found["state"] == "ready", found["reason"]
    assert all(c["ok"] for c in found["plan_vs_actual"])
    assert cli.ok("stop", goal)["survivors"] == []


def test_ctrl_c_before_ready_stops_what_it_started(cli: Cli, model: str) -> None:
    launch = cli.popen("launch", "--goal", "edge", "--model", model, "--name", "interrupted")
    folder = cli.home / "state/deployments/interrupted/server/shim.json"
    wait_until(folder.exists)
    launch.send_signal(signal.SIGINT)
    _, err = launch.communicate(timeout=60)
    assert launch.returncode == 130, err
    assert status(cli, "interrupted")["state"] == "stopped"
    assert process.members(cli.marker("interrupted")) == []


def test_detach_returns_before_it_is_ready(cli: Cli, model: str) -> None:
    found = cli.ok("launch", "--goal", "edge", "--model", model, "--name", "detached", "--detach")
    assert found["state"] == "starting"
    assert await_state(cli, "detached", "ready")["name"] == "detached"
    cli.ok("stop", "detached")


def test_a_bad_model_file_is_refused_before_any_process(cli: Cli, tmp_path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\x03\x00\x00\x00")
    done = cli("launch", "--goal", "edge", "--model", str(cut), "--json")
    assert done.code == 3
    assert done.json["violations"][0]["remedy"]
    missing = cli("launch", "--goal", "edge", "--model", str(tmp_path / "no.gguf"), "--json")
    assert (missing.code, missing.json["error"]["code"]) == (3, "model_not_found")
    assert not (cli.home / "state/deployments/edge-cut").exists()


def test_what_the_plan_owns_in_engine_args_is_refused(cli: Cli, model: str) -> None:
    done = cli(
        "launch", "--goal", "edge", "--model", model, "--set", "engine_args.llamacpp=[-c, '99']", "--json"
    )
    assert done.code == 3
    assert [v["code"] for v in done.json["violations"]] == ["engine_args_owned"]
    assert all(v["remedy"] for v in done.json["violations"])


def test_an_unknown_deployment_is_exit_5(cli: Cli) -> None:
    for command in ("status", "stop", "restart", "logs", "events"):
        done = cli(command, "nobody", "--json")
        assert (done.code, done.json["error"]["code"]) == (5, "no_such_deployment"), command


def test_foreground_serves_until_sigterm_and_leaves_nothing(tmp_path_factory, model: str) -> None:
    cli = Cli(tmp_path_factory.mktemp("fg"))
    launch = cli.popen("launch", "--goal", "edge", "--model", model, "--name", "fg", "--foreground")
    try:
        wait_until(lambda: (cli.home / "state/deployments/fg/state.json").exists())
        found = await_state(cli, "fg", "ready")
        marker = cli.marker("fg")
        assert cli.daemon_pid() == launch.pid
        assert httpx.get(found["endpoint"] + "/health", timeout=5).status_code == 200
    finally:
        launch.send_signal(signal.SIGTERM)
        out, err = launch.communicate(timeout=60)
    assert launch.returncode == 0, err
    assert process.members(marker) == []
    assert "ready" in out


def test_leader_death_is_noticed_within_200_ms(cli: Cli, model: str) -> None:
    found = cli.ok("launch", "--goal", "edge", "--model", model, "--name", "watched")
    killed_at = time.time()
    os.kill(pid(found), signal.SIGKILL)
    events = cli.home / "state/deployments/watched/events.jsonl"
    wait_until(lambda: "engine exited" in events.read_text())
    seen = map(json.loads, events.read_text().splitlines())
    noticed = next(e for e in seen if e.get("reason") == "engine exited")
    assert noticed["time"] - killed_at < 0.2
    cli.ok("stop", "watched")
