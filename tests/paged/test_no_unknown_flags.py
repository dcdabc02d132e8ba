"""No plan holds a flag or a variable that its version does not have, by lists of names that are none of the
planner's.

flag_names.json was read from the releases' own sources, apart from the tables that the engines render by.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import planned
import pytest

from orchestrator.engines.base import Installation
from orchestrator.engines.vllm import captured
from orchestrator.plan import Plan
from orchestrator.planning.planner import make_plan

NAMES = json.loads((Path(__file__).parent / "flag_names.json").read_text())
VERSIONS = [(kind, version) for kind in planned.KINDS for version in NAMES[kind]["versions"]]
MACHINES = (*planned.MACHINES, "cpu16")
MODELS = sorted(planned.configs())

GUESSES = ("off", "{method: ngram, num_tokens: 4}", "{method: mtp, num_tokens: 1}")
SETS: tuple[tuple[str, ...], ...] = (
    (),
    ("trust_remote_code=true", "lossless=true", f"speculative={GUESSES[0]}"),
    ("max_model_len=4096", "max_num_seqs=7", "block_size=32", "cuda_graph=off", f"speculative={GUESSES[1]}"),
    ("kv_cache_bytes=4GiB", "kv_cache_dtype=fp8", "chunked_prefill=false", "prefix_caching=false"),
    ("kv_cache_tokens=65536", "kv_offload_bytes=8GiB", "scheduling_policy=shortest", "dtype=bfloat16"),
    ("scheduling_policy=priority", "max_queued_requests=9", "stream_interval=4", "cuda_graph=24"),
    ("async_scheduling=false", "performance_mode=throughput", "distributed_executor_backend=mp"),
    ("async_scheduling=true", "tool_call_parser=hermes", "reasoning_parser=qwen3", "chat_template=/t.jinja"),
    ("tensor_parallel_size=2", "data_parallel_size=2", "shutdown_timeout_s=5", f"speculative={GUESSES[2]}"),
    ("attention_data_parallel_size=2", "expert_parallel=true", "long_prefill_token_threshold=512"),
    ("pipeline_parallel_size=2", "quantization=fp8", "gpu_memory_utilization=0.8", "threads=3"),
    ("mem_fraction_static=0.7", "max_num_batched_tokens=3000", "ubatch_tokens=64", "gpu_layers=4"),
)
"""What people set: every lever once at least, beside plans that set nothing."""


def listed(kind: str, version: str) -> frozenset[str]:
    """The spellings that a version's list has."""
    groups: dict[str, str] = NAMES[kind]["flags"]
    return frozenset(f for at, flags in groups.items() if version in at.split() for f in flags.split())


@cache
def names(kind: str, version: str) -> frozenset[str]:
    """Every spelling that a version takes."""
    own = listed(kind, version)
    if kind == "vllm":
        # what the newest parser takes tells which are booleans; of an option it no longer has, nothing does
        newest = listed(kind, NAMES[kind]["versions"][-1])
        there = newest | set(NAMES[kind]["hidden"]["flags"].split())
        negations = {f: f"--no-{f[2:]}" for f in own if f.startswith("--")}
        own |= {no for f, no in negations.items() if no in there or f not in newest}
    return own


def unknown(plan: Plan, known: frozenset[str]) -> list[str]:
    """The options of a plan's command lines that are not known."""
    start = len(planned.installation(plan.engine.kind).argv)
    words = (w.partition("=")[0] for p in plan.processes for w in p.argv[start:])
    return [w for w in words if re.match(r"--?[A-Za-z]", w) and w not in known]


@cache
def variables(kind: str, version: str) -> frozenset[str]:
    """The engine's own variables that a version has; none where no list is of it."""
    groups: dict[str, str] = NAMES[kind]["variables"]["names"]
    return frozenset(n for at, names in groups.items() if version in at.split() for n in names.split())


def unknown_variables(plan: Plan, known: frozenset[str]) -> list[str]:
    """The engine's own variables in a plan that are not known; others are other packages'."""
    own = {"vllm": "VLLM_", "sglang": "SGLANG_"}[plan.engine.kind]
    return [n for p in plan.processes for n in p.env if n.startswith(own) and n not in known]


Case = tuple[str, str, str, str, str, tuple[str, ...]]
"""Kind, version, machine, goal, model and what is set."""


def sample() -> Iterator[Case]:
    """Each goal, version and machine together once; models and sets take turns."""
    models, sets = itertools.cycle(MODELS), itertools.cycle(SETS)
    for kind in planned.KINDS:
        for version in NAMES[kind]["versions"]:
            for machine, goal in itertools.product(MACHINES, planned.GOALS):
                yield kind, version, machine, goal, next(models), next(sets)


def made(case: Case, installed: Installation | None = None) -> Plan:
    kind, version, machine, goal, model, sets = case
    return planned.plan(model, machine, goal=goal, kind=kind, version=version, sets=sets, installed=installed)


def test_the_sample_holds_every_goal_version_machine_and_every_model_on_each_engine() -> None:
    cases = list(sample())
    together = {(k, v, m, g) for k, v, m, g, _, _ in cases}
    assert len(together) == len(VERSIONS) * len(MACHINES) * len(planned.GOALS) == len(cases)
    assert {(c[0], c[4]) for c in cases} == set(itertools.product(planned.KINDS, MODELS))
    assert {(c[:2], c[5]) for c in cases} == set(itertools.product(VERSIONS, SETS))


def test_no_plan_of_the_sample_holds_a_flag_that_its_version_does_not_have() -> None:
    for case in sample():
        plan = made(case)
        assert plan.processes, case
        assert plan.engine.version == case[1]
        assert unknown(plan, names(*case[:2])) == [], case


def test_no_plan_of_the_sample_holds_a_variable_that_its_version_does_not_have() -> None:
    held = set()
    for case in sample():
        plan, listed_ones = made(case), variables(*case[:2])
        held |= {n for p in plan.processes for n in p.env}
        assert not listed_ones or unknown_variables(plan, listed_ones) == [], case
    assert {"VLLM_NO_USAGE_STATS", "VLLM_ROCM_USE_AITER"} <= held


@pytest.mark.parametrize("version", [*NAMES["vllm"]["versions"], "0.21.0", "0.30.0"])
def test_no_published_launch_holds_a_variable_that_its_version_does_not_have(version: str) -> None:
    # between two tables those of both are known
    around = [v for v in NAMES["vllm"]["versions"] if captured.release(v) <= captured.release(version)][-1:]
    around += [v for v in NAMES["vllm"]["versions"] if captured.release(v) >= captured.release(version)][:1]
    known = frozenset.intersection(*(variables("vllm", v) for v in around))
    for model, machine in itertools.product(MODELS, ("8xh200", "8xb200", "8xmi300x")):
        plan = made(("vllm", version, machine, "throughput", model, ()))
        assert unknown_variables(plan, known) == [], (model, machine)


@pytest.mark.parametrize("version", NAMES["vllm"]["versions"])
def test_the_table_that_variables_are_kept_by_has_the_same_names(version: str) -> None:
    ours = planned.installation("vllm", version).extras["variables"]
    assert {n for n in ours if n.startswith("VLLM_")} == variables("vllm", version)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "version"), VERSIONS)
def test_no_plan_holds_a_flag_that_its_version_does_not_have(kind: str, version: str) -> None:
    # every other plan sets nothing; 11 sets against 4 goals and 14 machines: each meets each
    sets = itertools.cycle(x for some in SETS[1:] for x in ((), some))
    for model, machine, goal in itertools.product(MODELS, MACHINES, planned.GOALS):
        case = (kind, version, machine, goal, model, next(sets))
        plan, own = made(case), variables(kind, version)
        assert unknown(plan, names(kind, version)) == [], case
        assert not own or unknown_variables(plan, own) == [], case


@pytest.mark.parametrize(("kind", "version"), VERSIONS)
def test_the_table_that_plans_are_rendered_by_has_the_same_names(kind: str, version: str) -> None:
    ours = {s for f in planned.installation(kind, version).flags for s in f.spellings}
    assert listed(kind, version) <= ours
    assert ours <= names(kind, version)


def test_the_lists_differ_from_version_to_version() -> None:
    for kind in planned.KINDS:
        for a, b in itertools.pairwise(NAMES[kind]["versions"]):
            assert listed(kind, a) != listed(kind, b), (kind, a, b)


def test_every_flag_that_is_emitted_is_missed_when_the_list_lacks_it() -> None:
    for kind, version in VERSIONS:
        plan = made((kind, version, "8xh100", "agent", "deepseek-ai/DeepSeek-R1", SETS[2]))
        for flag in planned.flags(plan):
            assert unknown(plan, names(kind, version) - {flag}) == [flag]


@pytest.mark.parametrize(
    ("kind", "version", "later"),
    [("vllm", "0.10.0", "0.33.0"), ("vllm", "0.33.0", "0.10.0"), ("sglang", "0.5.4", "0.5.23")],
)
def test_a_plan_rendered_by_another_version_s_table_is_found(kind: str, version: str, later: str) -> None:
    wrong = dataclasses.replace(
        planned.installation(kind, later), version=version, extras=planned.installation(kind, later).extras
    )
    found = {
        flag
        for goal, sets in itertools.product(planned.GOALS, SETS[2:8])
        for flag in unknown(
            made((kind, version, "8xh100", goal, "deepseek-ai/DeepSeek-R1", sets), wrong),
            names(kind, version),
        )
    }
    assert found


def test_a_sabotaged_engine_is_found() -> None:
    class Sabotaged(type(planned.engine("vllm"))):  # type: ignore[misc]
        def render(self, request):  # type: ignore[no-untyped-def]
            done = super().render(request)
            told = [dataclasses.replace(p, argv=(*p.argv, "--no-such-flag")) for p in done.processes]
            return dataclasses.replace(done, processes=tuple(told))

    asked = dataclasses.replace(planned.inputs("Qwen/Qwen3-32B", version="0.33.0"), engine=Sabotaged())
    assert unknown(make_plan(asked), names("vllm", "0.33.0")) == ["--no-such-flag"]
