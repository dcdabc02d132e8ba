"""A real SGLang on the CPU, from a goal to answers and back to nothing, with the plan held against it.

Its kernel package is a stub (see scripts/sglang-cpu), so there is no speculation and no FP8 in it.
"""

import json
import os
import signal
import time

import httpx
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
SCHEDULER = "sglang::scheduler"


@pytest.fixture(scope="module")
def latency(engines_cli: Cli, hf_model: str) -> dict:
    """The latency goal, its KV pool set by bytes; after a crash it waits longer than these tests take."""
    engines_cli.env["OMP_NUM_THREADS"] = "3"  # the plan's threads are to win over the caller's
    return engines_cli.ok(
        *("launch", "--engine", "sglang-cpu-stub", "--goal", "latency", "--model", hf_model),
        *("--name", "latency", "--set", f"kv_cache_bytes={KV_BYTES}", "--set", "max_model_len=2048"),
        *("--set", "max_num_seqs=1", "--set", "supervision.restart.backoff_s=60"),
        timeout=START_S,
    )


@pytest.fixture(scope="module")
def throughput(engines_cli: Cli, hf_model: str) -> dict:
    """The throughput goal, its KV pool set by a share of the machine's memory; one failure is enough."""
    return engines_cli.ok(
        *("launch", "--engine", "sglang-cpu-stub", "--goal", "throughput", "--model", hf_model),
        *("--name", "throughput", "--set", "gpu_memory_utilization=0.2"),
        *("--set", "supervision.liveness={interval_s: 1, idle_s: 5, strikes: 1}"),
        *("--set", "supervision.restart.budget=1"),
        timeout=START_S,
    )


def client(found: dict) -> OpenAI:
    return OpenAI(base_url=found["endpoint"] + "/v1", api_key="none", max_retries=0)


def pool_tokens(found: dict) -> int:
    """As the scheduler itself counts it."""
    (state,) = httpx.get(found["endpoint"] + "/server_info", timeout=30).json()["internal_states"]
    tokens = int(state["memory_usage"]["token_capacity"])
    assert tokens == total(found["endpoint"], "sglang:max_total_num_tokens")
    return tokens


def test_it_is_ready_with_the_contracts_status_and_every_check_in_effect(latency: dict) -> None:
    assert latency["state"] == "ready", latency["reason"]
    assert set(latency) >= STATUS_KEYS
    assert set(latency["processes"][0]) >= PROCESS_KEYS
    assert latency["engine"] == {
        "name": "sglang-cpu-stub",
        "kind": "sglang",
        "version": "0.5.23",
        "captured": False,
    }
    assert [c for c in latency["plan_vs_actual"] if not c["ok"]] == []


def test_a_pool_set_by_bytes_has_the_tokens_predicted(latency: dict, engines_cli: Cli) -> None:
    tokens = pool_tokens(latency)
    assert engines_cli.plan("latency")["predictions"]["kv_cache_tokens"]["value"] == tokens
    assert tokens == KV_BYTES // KV_BYTES_PER_TOKEN


def test_every_lever_that_differs_from_stock_is_seen_in_effect(latency: dict, engines_cli: Cli) -> None:
    plan = engines_cli.plan("latency")
    # SGLang is told of tokens, not of bytes, and its threads by its environment
    assert unseen(plan, latency) == {"kv_cache_bytes", "threads"}
    scheduler = environment(engines_cli.member("latency", SCHEDULER))
    assert scheduler["OMP_NUM_THREADS"] == str(plan["levers"]["threads"]["value"])


def test_an_openai_client_gets_an_answer_under_the_served_name(latency: dict) -> None:
    reply = client(latency).chat.completions.create(
        model=latency["served_model"],
        messages=[{"role": "user", "content": "Why is the sky blue?"}],
        max_tokens=24,
        temperature=0,
    )
    assert "sky" in (reply.choices[0].message.content or "")
    assert [m.id for m in client(latency).models.list()] == [latency["served_model"]]


def test_a_known_beginning_is_found_in_the_radix_cache(latency: dict) -> None:
    prompt, gained = "These words are seen for the first time. " + REPEATING, []
    for _ in range(2):
        before = cached(latency)
        client(latency).completions.create(model=latency["served_model"], prompt=prompt, max_tokens=1)
        gained.append(cached(latency) - before)
    assert gained[0] < 16
    assert gained[1] >= 128


def cached(found: dict) -> float:
    """Tokens out of the cache; the counter is made by the first of them."""
    return sum(value for _, value in samples(found["endpoint"], "sglang:cached_tokens_total"))


def test_a_request_with_a_priority_goes_before_those_without(latency: dict) -> None:
    """SGLang's own order: the larger comes first, and none at all is the least."""

    def inside() -> float:
        active = samples(latency["endpoint"], "sglang:http_requests_active")
        return sum(value for labels, value in active if labels["endpoint"] == "/v1/completions")

    assert order_of_ends(latency, {"priority": 10}, [{}, {"priority": 1}], inside) == [1, 0]


def test_logs_and_events_tell_of_the_start(latency: dict, engines_cli: Cli) -> None:
    assert "The server is fired up and ready to roll" in engines_cli("logs", "latency", "-n", "10000").out
    events = [json.loads(line) for line in engines_cli("events", "latency", "--json").out.splitlines()]
    assert [e["state"] for e in events if e["kind"] == "state"] == ["starting", "ready"]
    assert {e["phase"] for e in events if e["kind"] == "phase"} >= {"load", "warm-up"}


def test_only_its_own_processes_listen_and_its_server_only_on_loopback(
    latency: dict, engines_cli: Cli
) -> None:
    members = [m.pid for m in process.members(engines_cli.marker("latency"))]
    assert len(members) >= 3
    listening = ports.listeners(members)
    planned = engines_cli.state("latency")["ports"]
    assert {entry.address for entry in listening if entry.port == planned["http"]} == {"127.0.0.1"}
    # the store of torch.distributed cannot be told where to listen
    assert {entry.port for entry in listening if entry.address != "127.0.0.1"} <= {planned["nccl"]}


def test_a_killed_scheduler_is_noticed_and_named(latency: dict, engines_cli: Cli) -> None:
    marker = engines_cli.marker("latency")
    os.kill(engines_cli.member("latency", SCHEDULER), signal.SIGKILL)
    died = time.monotonic()
    wait_until(lambda: engines_cli.ok("status", "latency")["state"] != "ready")
    assert time.monotonic() - died < 10
    waiting = engines_cli.await_state("latency", "backoff", timeout=60)
    assert (waiting["reason"], waiting["last_failure"]["class"]) == ("killed", "killed")
    assert "exit code -9" in waiting["last_failure"]["evidence"]
    assert process.members(marker) == []


def test_a_restart_does_not_wait_for_the_backoff_and_keeps_the_port(latency: dict, engines_cli: Cli) -> None:
    engines_cli.await_state("latency", "backoff")
    after = engines_cli.ok("restart", "latency", timeout=START_S)
    assert after["state"] == "ready", after["reason"]
    assert after["endpoint"] == latency["endpoint"]
    assert after["processes"][0]["pid"] != latency["processes"][0]["pid"]
    assert after["plan_vs_actual"] == latency["plan_vs_actual"]


def test_a_stop_leaves_no_process_port_segment_or_folder(latency: dict, engines_cli: Cli) -> None:
    members = process.members(engines_cli.marker("latency"))
    tmpdir = engines_cli.state("latency")["run"]["tmpdir"]
    segments = shared_memory(m.pid for m in members)
    assert any("sglang_loads_" in segment for segment in segments)
    assert os.listdir(tmpdir)
    report = engines_cli.ok("stop", "latency")
    assert (report["lost"], report["survivors"]) == (0, [])
    assert [m for m in members if m.alive()] == []
    assert [s for s in segments if os.path.exists(s)] == []
    assert not os.path.exists(tmpdir)
    for port in engines_cli.state("latency")["ports"].values():
        assert ports.is_free("127.0.0.1", port)


def test_a_pool_set_by_a_share_of_memory_has_the_tokens_predicted(throughput: dict, engines_cli: Cli) -> None:
    assert throughput["state"] == "ready", throughput["reason"]
    assert [c for c in throughput["plan_vs_actual"] if not c["ok"]] == []
    plan, tokens = engines_cli.plan("throughput"), pool_tokens(throughput)
    assert plan["predictions"]["kv_cache_tokens"]["value"] == tokens
    share = plan["machine"]["memory_limit_bytes"] * 0.2
    assert share * 0.5 < tokens * KV_BYTES_PER_TOKEN < share
    # the share is seen above: SGLang is told of the tokens that it comes to
    assert unseen(plan, throughput) == {"gpu_memory_utilization", "threads"}


@pytest.mark.full
def test_a_frozen_scheduler_is_named_a_hang_and_does_not_outlive_it(
    throughput: dict, engines_cli: Cli
) -> None:
    members = process.members(engines_cli.marker("throughput"))
    os.kill(engines_cli.member("throughput", SCHEDULER), signal.SIGSTOP)
    failed = engines_cli.await_state("throughput", "failed", timeout=120)
    assert (failed["reason"], failed["last_failure"]["class"]) == ("crash_loop", "hang")
    assert [m for m in members if m.alive()] == []


def test_heads_that_cannot_be_divided_are_refused_before_any_process(engines_cli: Cli, hf_model: str) -> None:
    fits = ("--engine", "sglang-cpu-stub", "--goal", "latency", "--model", hf_model)
    engines_cli.ok("plan", *fits, timeout=START_S)  # asks the installation where nothing has yet
    began = computed_s()
    done = engines_cli("launch", *fits, "--name", "two", "--set", "tensor_parallel_size=2", "--json")
    assert computed_s() - began < 3
    assert done.code == 3
    found = {v["code"]: v["remedy"] for v in done.json["violations"]}
    assert found["heads_not_divisible"] == "--set tensor_parallel_size=1"
    assert not (engines_cli.home / "state/deployments/two").exists()
