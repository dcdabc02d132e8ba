"""Remedies, typed: what a refusal says to set is set, and the plan passes."""

import re
import shlex

import pytest
from planning_inputs import CARDS, EMBEDDED, LLAMA_8B, SERVER, card, gpu, machine, plan

from orchestrator.engines.base import Installation
from orchestrator.plan import Plan

SMALL = machine(cores=4, memory_gib=4)
GPU = machine(gpus=[gpu(0, 8)])


def typed(p: Plan) -> list[str]:
    """The settings of every remedy, those after an "or" left out."""
    out: list[str] = []
    for v in p.violations:
        first = re.split(r"[,;]? or |; ", v.remedy)[0]
        words = shlex.split(first)
        out += [words[i + 1] for i, w in enumerate(words) if w == "--set"]
    return out


CORPUS = [
    ["max_model_len=1"],
    ["max_model_len=9000"],
    ["max_model_len=1000000000000"],
    ["max_model_len=8192", "max_num_seqs=256", "kv_cache_dtype=f32"],
    ["max_model_len=10", "kv_unified=true"],
    ["kv_cache_tokens=1"],
    ["kv_cache_tokens=200", "max_num_seqs=2"],
    ["kv_cache_tokens=1000000000000"],
    ["kv_cache_tokens=1024", "max_model_len=2048"],
    ["kv_cache_tokens=5000", "kv_unified=false", "max_model_len=2048"],
    ["kv_cache_bytes=1"],
    ["kv_cache_bytes=0"],
    ["kv_cache_bytes=10MiB", "max_model_len=8192"],
    ["kv_cache_bytes=1MiB", "max_num_seqs=8"],
    ["kv_offload_bytes=1572864"],
    ["kv_offload_bytes=1"],
    ["kv_offload_bytes=4000GiB"],
    ["max_num_batched_tokens=1"],
    ["max_num_batched_tokens=1", "ubatch_tokens=1"],
    ["max_num_batched_tokens=10000000000"],
    ["max_num_seqs=16", "max_num_batched_tokens=8"],
    ["ubatch_tokens=10000000"],
    ["ubatch_tokens=10000000000"],
    ["ubatch_tokens=512", "max_num_batched_tokens=128"],
    ["max_num_seqs=257"],
    ["max_num_seqs=100000"],
    ["max_num_seqs=100000", "max_model_len=100000"],
    ["data_parallel_size=2"],
    ["replicas=3"],
    ["front=router"],
    ["disaggregation={prefill: 1, decode: 1}"],
    ["tensor_parallel_size=4"],
    ["gpu_layers=10"],
    ["gpu_layers=10000000000"],
    ["cache_reuse_tokens=10000000000"],
    ["device_ids=[GPU-9]"],
    ["threads=999"],
    ["speculative={method: mtp}"],
    ["speculative={method: suffix}"],
    ["kv_cache_dtype=fp3"],
    ["kv_cache_dtype=bfloat16", "max_num_seqs=100000"],
    ["threads=999", "gpu_layers=10", "tensor_parallel_size=4", "kv_cache_dtype=fp3", "max_num_seqs=900"],
    ["kv_cache_dtype=q8_0", "flash_attention=off"],
    ["kv_cache_dtype=q8_0", "lossless=true"],
    ["workload.input_tokens=8000", "max_num_seqs=200", "kv_cache_bytes=20MiB"],
]


@pytest.mark.parametrize("engine", [EMBEDDED, SERVER], ids=lambda e: e.name)
@pytest.mark.parametrize("sets", CORPUS, ids=" ".join)
@pytest.mark.parametrize("goal", ["edge", "agent"])
def test_every_remedy_works_when_typed(goal: str, sets: list[str], engine: Installation) -> None:
    refused = plan(goal, *sets, on=SMALL, engine=engine)
    settings = typed(refused)
    # what the goal with small contexts cannot hold the one with a shared pool may
    assert settings or goal == "agent", [v.remedy for v in refused.violations]
    mended = plan(goal, *sets, *settings, on=SMALL, engine=engine)
    assert not mended.violations, (settings, mended.violations)
    lossy = {n for n, d in mended.levers.items() if not d.lossless}
    wanted = {n for n, d in refused.levers.items() if not d.lossless and d.rule != "memory_fit"}
    assert lossy <= wanted


@pytest.mark.parametrize(
    "sets", [["gpu_layers=33"], ["kv_cache_bytes=0"], ["gpu_memory_utilization=0.01", "gpu_layers=20"]]
)
def test_remedies_work_with_a_gpu_too(sets: list[str]) -> None:
    refused = plan("edge", *sets, of=LLAMA_8B, on=machine(gpus=[gpu(0, 4)]))
    assert refused.violations
    mended = plan("edge", *sets, *typed(refused), of=LLAMA_8B, on=machine(gpus=[gpu(0, 4)]))
    assert not mended.violations


@pytest.mark.parametrize(
    ("sets", "codes"),
    [
        (["max_model_len=1000000000000"], ["context_above_model"]),
        (["max_num_seqs=100000"], ["too_many_slots"]),
        (["kv_cache_bytes=1"], ["kv_does_not_fit"]),
        (["ubatch_tokens=10000000"], ["memory"]),
        (["data_parallel_size=2"], ["not_available"]),
    ],
)
def test_one_cause_is_told_once(sets: list[str], codes: list[str]) -> None:
    assert [v.code for v in plan("edge", *sets, on=SMALL).violations] == codes


def test_the_least_that_works_is_named() -> None:
    (v,) = plan("edge", "kv_cache_bytes=1", on=SMALL).violations
    (least,) = (int(n) for n in re.findall("kv_cache_bytes=([0-9]+)MiB fits", v.remedy))
    assert not plan("edge", f"kv_cache_bytes={least}MiB", on=SMALL).violations
    below = plan("edge", f"kv_cache_bytes={least - 1}MiB", on=SMALL)
    assert below.violations or not below.levers["kv_cache_dtype"].lossless


def test_the_most_that_works_is_named() -> None:
    (v,) = plan("edge", "ubatch_tokens=10000000", on=SMALL).violations
    (most,) = (int(n) for n in re.findall("ubatch_tokens=([0-9]+) fits", v.remedy))
    assert not plan("edge", f"ubatch_tokens={most}", on=SMALL).violations
    assert plan("edge", f"ubatch_tokens={most + most // 10}", on=SMALL).violations


def test_a_lever_is_refused_by_its_own_name() -> None:
    (v,) = plan("edge", "data_parallel_size=2").violations
    assert "data_parallel_size" in v.message
    assert "data_parallel_size=auto" in v.remedy
    assert "replicas" not in v.message + v.remedy


def test_a_model_too_large_whatever_is_set_says_so() -> None:
    (v,) = plan("edge", "max_num_seqs=4", of=CARDS["mla"]).violations
    assert "too large here: --model" in v.remedy


def test_a_workload_too_large_for_memory_names_what_fits() -> None:
    sets = ["workload.input_tokens=120000", "workload.output_tokens=8000"]
    refused = plan("edge", *sets, of=LLAMA_8B, on=machine(memory_gib=10))
    assert refused.violations
    mended = plan("edge", *sets, *typed(refused), of=LLAMA_8B, on=machine(memory_gib=10))
    assert not mended.violations
    assert any("more than max_model_len=" in w for w in mended.warnings)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"context_length": 2**32 - 1}, "context_length is 4294967295"),
        ({"context_length": 1}, "context_length is 1"),
        ({"heads": 0}, "attention.head_count is 0"),
        ({"kv_heads": 0}, "attention.head_count_kv is 0"),
        ({"kv_heads": 7}, "attention.head_count_kv is 7"),
        ({"layers": 0}, "block_count is 0"),
    ],
)
def test_a_model_that_cannot_be_loaded_names_the_header_s_value(changes: dict[str, int], named: str) -> None:
    p = plan("edge", of=card(**changes))
    found = [v for v in p.violations if v.code == "model_unusable"]
    assert len(found) == 1
    assert named in found[0].message
