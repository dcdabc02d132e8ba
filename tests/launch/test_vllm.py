"""A real vLLM on the CPU, from a goal to answers and back to nothing, with the plan held against it."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from commands import (
    Cli,
    computed_s,
    environment,
    order_of_ends,
    samples,
    shared_memory,
    total,
    unseen,
    wait_until,
)
from openai import OpenAI
from test_launch import PROCESS_KEYS, STATUS_KEYS

from orchestrator.supervisor import ports, process

pytestmark = pytest.mark.real_engine

START_S = 300
KV_BYTES = 256 << 20
KV_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 2
"""K and V, 30 layers, 3 KV heads of 64, bfloat16."""
REPEATING = "def add(a, b):\n    return a + b\n\n" * 24


@pytest.fixture(scope="module")
def agent(engines_cli: Cli, hf_model: str) -> dict:
    """The agent goal, its KV pool set by bytes."""
    engines_cli.env["OMP_NUM_THREADS"] = "3"  # the plan's threads are to win over the caller's
    return engines_cli.ok(
        *("launch", "--engine", "vllm", "--goal", "agent", "--model", hf_model, "--name", "agent"),
        *("--set", f"kv_cache_bytes={KV_BYTES}", "--set", "max_model_len=2048", "--set", "max_num_seqs=4"),
        *("--set", "supervision.restart.backoff_s=0.1"),
        # left to the plan it is off on a CPU: on busy cores it slows every step
        *("--set", "speculative={method: ngram, num_tokens: 3, prompt_lookup_min: 2, prompt_lookup_max: 5}"),
        timeout=START_S,
    )


@pytest.fixture(scope="module")
def latency(engines_cli: Cli, hf_model: str) -> dict:
    """The latency goal, its KV pool set by a share of the machine's memory, one request at a time."""
    return engines_cli.ok(
        *("launch", "--engine", "vllm", "--goal", "latency", "--model", hf_model, "--name", "latency"),
        *("--set", "gpu_memory_utilization=0.2", "--set", "max_num_seqs=1"),
        timeout=START_S,
    )


def client(found: dict) -> OpenAI:
    return OpenAI(base_url=found["endpoint"] + "/v1", api_key="none", max_retries=0)


def pool(found: dict) -> dict[str, str]:
    """The labels of the server's one KV pool."""
    ((labels, _),) = samples(found["endpoint"], "vllm:cache_config_info")
    return labels


def test_it_is_ready_with_the_contracts_status_and_every_check_in_effect(agent: dict) -> None:
    assert agent["state"] == "ready", agent["reason"]
    assert set(agent) >= STATUS_KEYS
    assert set(agent["processes"][0]) >= PROCESS_KEYS
    assert agent["engine"] == {"name": "vllm", "kind": "vllm", "version": "0.32.0", "captured": False}
    assert [c for c in agent["plan_vs_actual"] if not c["ok"]] == []


def test_a_pool_set_by_bytes_has_the_tokens_predicted(agent: dict, engines_cli: Cli) -> None:
    labels = pool(agent)
    tokens = int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    assert engines_cli.plan("agent")["predictions"]["kv_cache_tokens"]["value"] == tokens
    assert int(labels["kv_cache_memory_bytes"]) == KV_BYTES
    assert tokens == KV_BYTES // KV_BYTES_PER_TOKEN // 128 * 128


def test_every_lever_that_differs_from_stock_is_seen_in_effect(agent: dict, engines_cli: Cli) -> None:
    plan = engines_cli.plan("agent")
    assert unseen(plan, agent) == {"threads"}  # which its workers' environment says
    worker = environment(engines_cli.member("agent", "VLLM::Worker"))
    assert worker["OMP_NUM_THREADS"] == str(plan["levers"]["threads"]["value"])


def test_ngram_speculation_drafts_and_its_drafts_are_accepted(agent: dict, engines_cli: Cli) -> None:
    assert engines_cli.plan("agent")["levers"]["speculative"]["value"]["method"] == "ngram"
    accepted = "vllm:spec_decode_num_accepted_tokens_total"
    before = total(agent["endpoint"], accepted)
    client(agent).completions.create(
        model=agent["served_model"], prompt=REPEATING, max_tokens=48, temperature=0
    )
    assert total(agent["endpoint"], accepted) - before > 10


def test_a_known_beginning_is_found_in_the_prefix_cache(agent: dict) -> None:
    prompt = "These words are seen for the first time. " + REPEATING
    hits, gained = "vllm:prefix_cache_hits_total", []
    for _ in range(2):
        before = total(agent["endpoint"], hits)
        client(agent).completions.create(model=agent["served_model"], prompt=prompt, max_tokens=1)
        gained.append(total(agent["endpoint"], hits) - before)
    assert gained[0] == 0
    assert gained[1] >= 128


def test_logs_and_events_tell_of_the_start(agent: dict, engines_cli: Cli) -> None:
    assert "Application startup complete" in engines_cli("logs", "agent", "-n", "10000").out
    events = [json.loads(line) for line in engines_cli("events", "agent", "--json").out.splitlines()]
    assert [e["state"] for e in events if e["kind"] == "state"] == ["starting", "ready"]
    assert {e["phase"] for e in events if e["kind"] == "phase"} == {"load", "warm-up"}


def test_only_its_own_processes_listen_and_only_on_loopback(agent: dict, engines_cli: Cli) -> None:
    members = [m.pid for m in process.members(engines_cli.marker("agent"))]
    assert len(members) >= 3
    assert {entry.address for entry in ports.listeners(members)} == {"127.0.0.1"}


def test_a_killed_engine_core_is_noticed_named_and_started_again(agent: dict, engines_cli: Cli) -> None:
    os.kill(engines_cli.member("agent", "VLLM::EngineCore"), signal.SIGKILL)
    died = time.monotonic()
    wait_until(lambda: engines_cli.ok("status", "agent")["state"] != "ready")
    assert time.monotonic() - died < 10
    again = engines_cli.await_state("agent", "starting", timeout=60)
    assert again["last_failure"]["class"] == "crash"
    assert re.search("EngineDeadError|(?i:engine core)", again["last_failure"]["evidence"])
    assert again["processes"][0]["restarts"] == 1


def test_a_stop_while_it_loads_is_not_lost_and_leaves_nothing(agent: dict, engines_cli: Cli) -> None:
    """The engine of the test before, started again: vLLM drops a SIGTERM that comes while its core loads."""
    engines_cli.await_state("agent", "starting")
    wait_until(lambda: engines_cli.member("agent", "VLLM::EngineCore") != 0, 120)
    marker, tmpdir = engines_cli.marker("agent"), engines_cli.state("agent")["run"]["tmpdir"]
    assert engines_cli.ok("status", "agent")["state"] == "starting"
    report = engines_cli.ok("stop", "agent")
    assert report["survivors"] == []
    assert process.members(marker) == []
    assert not os.path.exists(tmpdir)
    assert ports.is_free("127.0.0.1", int(agent["endpoint"].rsplit(":", 1)[1]))
    assert engines_cli.ok("status", "agent")["state"] == "stopped"


def test_a_pool_set_by_a_share_of_memory_has_the_tokens_predicted(latency: dict, engines_cli: Cli) -> None:
    assert latency["state"] == "ready", latency["reason"]
    assert [c for c in latency["plan_vs_actual"] if not c["ok"]] == []
    plan, labels = engines_cli.plan("latency"), pool(latency)
    tokens = int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    assert plan["predictions"]["kv_cache_tokens"]["value"] == tokens
    assert float(labels["gpu_memory_utilization"]) == 0.2
    share = plan["machine"]["memory_limit_bytes"] * 0.2
    assert share * 0.5 < tokens * KV_BYTES_PER_TOKEN < share
    # each is seen here: the share above, the threads as for the agent goal
    assert unseen(plan, latency) == {"gpu_memory_utilization", "threads"}


def test_an_openai_client_gets_an_answer_under_the_served_name(latency: dict) -> None:
    reply = client(latency).chat.completions.create(
        model=latency["served_model"],
        messages=[{"role": "user", "content": "Why is the sky blue?"}],
        max_tokens=24,
        temperature=0,
    )
    assert "sky" in (reply.choices[0].message.content or "")
    assert [m.id for m in client(latency).models.list()] == [latency["served_model"]]


def test_a_request_with_a_priority_waits_aside_as_the_plan_says(latency: dict, engines_cli: Cli) -> None:
    assert '"priority": 10' in engines_cli.plan("latency")["levers"]["scheduling_policy"]["reason"]

    def inside() -> float:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return sum(total(latency["endpoint"], name) for name in names)

    assert order_of_ends(latency, {}, [{"priority": 10}, {}], inside) == [1, 0]


def test_a_stop_leaves_no_process_port_segment_or_folder(latency: dict, engines_cli: Cli) -> None:
    marker, tmpdir = engines_cli.marker("latency"), engines_cli.state("latency")["run"]["tmpdir"]
    segments = shared_memory(m.pid for m in process.members(marker))
    assert segments
    report = engines_cli.ok("stop", "latency")
    assert (report["lost"], report["survivors"]) == (0, [])
    assert process.members(marker) == []
    assert [s for s in segments if os.path.exists(s)] == []
    assert not os.path.exists(tmpdir)
    assert ports.is_free("127.0.0.1", int(latency["endpoint"].rsplit(":", 1)[1]))


def test_weights_that_do_not_fit_the_architecture_end_the_launch_with_their_cause(
    engines_cli: Cli, hf_model: str, tmp_path: Path
) -> None:
    """A tensor under another name: nothing that a plan can see, and no start of it can end well."""
    for file in Path(hf_model).iterdir():
        if file.name == "model.safetensors":
            weights = tmp_path / file.name
            shutil.copyfile(file, weights)
            with weights.open("r+b") as f:
                header = f.read(1 << 20)
                f.seek(header.index(b"layers.0.mlp.gate_proj"))
                f.write(b"layers.0.mlp.gate_prox")
        else:
            (tmp_path / file.name).symlink_to(file)
    done = engines_cli(
        *("launch", "--engine", "vllm", "--goal", "agent", "--model", str(tmp_path), "--name", "renamed"),
        *("--set", "max_model_len=2048", "--json"),
        timeout=START_S,
    )
    assert done.code == 4
    found = engines_cli.ok("status", "renamed")
    assert (found["state"], found["processes"][0]["restarts"]) == ("failed", 0)
    assert found["last_failure"]["retry"] == "never"
    assert "gate_prox" in found["last_failure"]["evidence"]
    assert done.json["error"]["code"] == found["last_failure"]["class"]
    assert process.members(engines_cli.marker("renamed")) == []


def test_heads_that_cannot_be_divided_are_refused_before_any_process(engines_cli: Cli, hf_model: str) -> None:
    fits = ("--engine", "vllm", "--goal", "latency", "--model", hf_model)
    engines_cli.ok("plan", *fits, timeout=START_S)  # asks the installation where nothing has yet
    began = computed_s()
    done = engines_cli("launch", *fits, "--name", "two", "--set", "tensor_parallel_size=2", "--json")
    assert computed_s() - began < 3
    assert done.code == 3
    found = {v["code"]: v["remedy"] for v in done.json["violations"]}
    assert found["heads_not_divisible"] == "--set tensor_parallel_size=1"
    assert not (engines_cli.home / "state/deployments/two").exists()


def test_what_is_not_installed_is_planned_for_and_not_launched(
    tmp_path: Path, hf_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    cli = Cli(tmp_path)
    done = cli("launch", "--engine", "vllm", "--goal", "latency", "--model", hf_model, "--json")
    assert (done.code, done.json["error"]["code"]) == (3, "no_engine")
    assert "llmserve engines install vllm" in done.json["error"]["remedy"]
    plan = cli.ok("plan", "--engine", "vllm", "--machine", "8xh100", "--goal", "latency", "--model", hf_model)
    assert plan["engine"]["captured"] is True
    assert any("not installed here" in w and plan["engine"]["version"] in w for w in plan["warnings"])
