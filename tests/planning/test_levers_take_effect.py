"""A lever that somebody set is on the command line with its value, or bounds the plan, or is named as having
no effect, or is refused: never nothing."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_inputs import EMBEDDED, GOALS, LLAMA_8B, SERVER, card, codes, gpu, machine, plan

from orchestrator.engines.llamacpp.render import CACHE_TYPES
from orchestrator.levers import LEVERS, Lever
from orchestrator.plan import Plan
from orchestrator.planning.llamacpp import left_out

_FLAGS = {
    "max_num_seqs": "--parallel",
    "max_num_batched_tokens": "--batch-size",
    "ubatch_tokens": "--ubatch-size",
    "kv_cache_dtype": "--cache-type-k",
    "cache_reuse_tokens": "--cache-reuse",
    "flash_attention": "--flash-attn",
    "threads": "--threads",
    "gpu_layers": "--gpu-layers",
    "reasoning_parser": "--reasoning-format",
    "chat_template": "--chat-template-file",
}
_SPECULATIVE = {
    "num_tokens": "--spec-ngram-simple-size-m",
    "size_n": "--spec-ngram-simple-size-n",
    "prompt_lookup_max": "--spec-ngram-simple-size-n",
    "prompt_lookup_min": "--spec-ngram-simple-size-n",
    "min_hits": "--spec-ngram-simple-min-hits",
}


def _after(argv: tuple[str, ...], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


def in_effect(p: Plan, name: str, value: Any) -> bool:
    """Whether the command line says the value, or the plan keeps within it."""
    argv, env = p.processes[0].argv, p.processes[0].env
    gpus = env.get("CUDA_VISIBLE_DEVICES", "").split(",") if env.get("CUDA_VISIBLE_DEVICES") else []
    slots = p.levers["max_num_seqs"].value
    match name:
        case "kv_cache_dtype":
            return _after(argv, _FLAGS[name]) == CACHE_TYPES.get(value, value)
        case "max_model_len":
            own = str(value * slots)
            return own == _after(argv, "--ctx-size") or str(value) == _after(argv, "--kv-unified-per-slot")
        case "kv_cache_tokens":
            return _after(argv, "--ctx-size") == str(value)
        case "kv_unified":
            return ("--kv-unified" if value else "--no-kv-unified") in argv
        case "prefix_caching":
            return ("--cache-prompt" if value else "--no-cache-prompt") in argv
        case "kv_offload_bytes":
            return int(_after(argv, "--cache-ram") or -1) << 20 == value
        case "kv_cache_bytes":
            return (p.predictions["kv_bytes"].value or 0) <= value * max(1, len(gpus))
        case "gpu_memory_utilization":
            return (p.predictions["gpu_memory_bytes"].value or 0) <= value * len(gpus) * 24 * 2**30
        case "device_ids":
            return sorted(gpus) == sorted(value)
        case "tensor_parallel_size" if value > 1:
            return _after(argv, "--split-mode") == "row" and len(gpus) == value
        case "pipeline_parallel_size" if gpus:
            return len(gpus) == value
        case "tensor_parallel_size" | "pipeline_parallel_size":
            return value == 1
        case "speculative" if value == "off":
            return "--spec-type" not in argv
        case "speculative":
            figures = {k: v for k, v in value.items() if k != "method"}
            listed = {n.removeprefix("speculative.") for n in p.not_expressible}
            told = all(
                k in listed or _after(argv, _SPECULATIVE.get(k, "none")) == str(v) for k, v in figures.items()
            )
            return _after(argv, "--spec-type") == "ngram-simple" and told
        case "reasoning_parser":
            return _after(argv, _FLAGS[name]) == {"off": "none"}.get(value, value)
        case "cuda_graph":
            return value == "off" and not gpus
        case _ if name in left_out.IN_EFFECT:
            return value in left_out.IN_EFFECT[name]
        case _:
            return name in _FLAGS and _after(argv, _FLAGS[name]) == str(value)


_NAMES = {
    "kv_cache_dtype": ["f16", "fp16", "q8_0", "fp8", "fp3"],
    "quantization": ["fp8"],
    "dtype": ["bfloat16"],
    "performance_mode": ["throughput"],
    "distributed_executor_backend": ["mp"],
    "tool_call_parser": ["hermes", "jinja", "off"],
    "reasoning_parser": ["deepseek", "none", "off", "qwen3"],
    "chat_template": ["off", "none", __file__, "/not/here.jinja"],
}
_INTS = st.sampled_from([1, 2, 3, 10, 300, 2048, 2049, 2**31, 10**12])
_FIGURES = {
    "num_tokens": st.integers(1, 20),
    "size_n": st.integers(1, 20),
    "min_hits": st.integers(1, 3),
    "prompt_lookup_max": st.integers(1, 20),
    "prompt_lookup_min": st.integers(1, 20),
    "min_tokens": st.integers(0, 3),
    "p_min": st.sampled_from([0, 0.5]),
    "model": st.just("/d.gguf"),
}


def _values(lever: Lever) -> st.SearchStrategy[Any]:
    if lever.choices:
        return st.sampled_from([c for c in lever.choices if c != "auto"])
    match lever.kind:
        case "int":
            return _INTS | st.just(int(lever.minimum or 0))
        case "bool":
            return st.booleans()
        case "float":
            return st.sampled_from([0.01, 0.5, 0.95, 1])
        case "bytes":
            return st.sampled_from([0, 1, 2**20, 3 * 2**19, 2**27, 2**60])
        case "name":
            return st.sampled_from(_NAMES[lever.name])
        case "names":
            return st.sampled_from([["GPU-0"], ["GPU-1", "GPU-0"], ["GPU-9"]])
        case "cuda_graph":
            return st.sampled_from(["off", 8])
        case "speculative":
            return st.just("off") | st.fixed_dictionaries({"method": st.just("ngram")}, optional=_FIGURES)
        case "disaggregation":
            return st.sampled_from(["off", {"prefill": 1, "decode": 1}])


_SETS = st.lists(st.sampled_from(sorted(LEVERS)), min_size=1, max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: _values(LEVERS[name]) for name in names})
)
_ON = st.sampled_from([(), (gpu(0, 24),), (gpu(0, 24), gpu(1, 24))])


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.sampled_from(GOALS), st.sampled_from([EMBEDDED, SERVER]), _ON, _SETS)
def test_what_was_set_is_rendered_or_listed_or_refused(
    goal: str, engine: Any, gpus: Any, chosen: Mapping[str, Any]
) -> None:
    sets = [f"{name}={json.dumps(v)}" for name, v in chosen.items()]
    p = plan(goal, *sets, of=LLAMA_8B, on=machine(gpus=gpus, cores=16), engine=engine)
    for d in p.levers.values():
        assert all(r.value != d.value for r in d.rejected)
    if p.violations:
        return
    for name, value in chosen.items():
        assert name in p.not_expressible or in_effect(p, name, value), (name, p.processes[0].argv)
    listed = [w for w in p.warnings if w.startswith("without effect")]
    assert bool(listed) == bool(set(chosen) & {n.partition(".")[0] for n in p.not_expressible})


@pytest.mark.parametrize("name", LEVERS)
def test_a_single_lever_is_never_lost(name: str) -> None:
    example = {"int": 1, "bool": True, "float": 0.9, "bytes": 2**27, "names": ["GPU-0"], "cuda_graph": 8}
    kind = LEVERS[name].kind
    value = LEVERS[name].choices[-1] if LEVERS[name].choices else example.get(kind, "off")
    value = _NAMES[name][0] if name in _NAMES else value
    for gpus in ([], [gpu(0, 24)]):
        p = plan("edge", f"{name}={json.dumps(value)}", on=machine(gpus=gpus))
        assert p.violations or name in p.not_expressible or in_effect(p, name, value)


@pytest.mark.parametrize(
    ("sets", "code"),
    [
        (["max_model_len=1"], "context_too_small"),
        (["kv_cache_tokens=1"], "context_too_small"),
        (["max_num_batched_tokens=1", "ubatch_tokens=1"], "batch_too_small"),
        (["max_num_batched_tokens=10000000000"], "int_too_large"),
        (["kv_offload_bytes=1572864"], "kv_offload_step"),
        (["speculative={method: mtp}"], "no_mtp_layers"),
        (["threads=999"], "too_many_threads"),
    ],
)
def test_what_the_engine_cannot_start_with_is_refused(sets: list[str], code: str) -> None:
    assert codes(plan("edge", *sets)) == [code]


@pytest.mark.parametrize("sets", [["max_model_len=2"], ["max_num_batched_tokens=2"], ["ubatch_tokens=1"]])
def test_what_the_engine_was_seen_to_start_with_passes(sets: list[str]) -> None:
    assert codes(plan("edge", *sets)) == []


def test_agents_with_contexts_below_a_cell_block_share_no_pool() -> None:
    p = plan("agent", "max_model_len=10")
    assert not p.violations
    assert p.levers["kv_unified"].value is False


def test_layers_that_predict_ahead_make_mtp_possible() -> None:
    assert "no_mtp_layers" not in codes(plan("edge", "speculative={method: mtp}", of=card(mtp_layers=1)))


def test_figures_of_a_guess_without_a_word_are_listed_one_by_one() -> None:
    p = plan("edge", "speculative={method: ngram, p_min: 0.5, min_tokens: 3, num_tokens: 4}")
    assert {"speculative.p_min", "speculative.min_tokens"} == set(p.not_expressible)
    assert any("speculative.min_tokens=3, speculative.p_min=0.5" in w for w in p.warnings)


def test_a_parser_that_only_switches_the_template_on_is_listed() -> None:
    p = plan("agent", "tool_call_parser=hermes")
    assert "tool_call_parser" in p.not_expressible
    assert any("without effect" in w and "tool_call_parser=hermes" in w for w in p.warnings)


@pytest.mark.parametrize("sets", [["cuda_graph=off"], ["async_scheduling=false"], ["expert_parallel=false"]])
def test_what_asks_for_nothing_is_not_said_to_have_no_effect(sets: list[str]) -> None:
    p = plan("edge", *sets)
    assert not p.not_expressible
    assert not any("without effect" in w for w in p.warnings)
