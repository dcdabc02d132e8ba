"""What is refused: everything at once, each with what to do."""

import re

import pytest
from planning_inputs import CARDS, LLAMA_8B, card, codes, gpu, inputs, machine, plan

from orchestrator.cli.plan_view import refusal, refused_json
from orchestrator.errors import Exit
from orchestrator.planning.planner import make_plan
from orchestrator.planning.request import Reservations


def test_all_violations_come_at_once() -> None:
    p = plan(
        "throughput",
        "max_num_seqs=300",
        "max_model_len=9000",
        "kv_cache_dtype=q8_0",
        "lossless=true",
        "flash_attention=off",
        "replicas=2",
        "gpu_layers=4",
        "engine_args.llamacpp=['--ctx-size', '1', '--bogus']",
        host="0.0.0.0",
        port=99999,
    )
    assert {
        "public_bind",
        "port_out_of_range",
        "context_above_model",
        "too_many_slots",
        "no_gpu",
        "not_available",
        "lossy",
        "engine_args_owned",
        "unknown_flag",
        "quantised_kv_needs_flash_attention",
    } == set(codes(p))
    assert len(codes(p)) == len(set(codes(p)))


@pytest.mark.parametrize(
    ("sets", "code"),
    [
        (["max_model_len=9000"], "context_above_model"),
        (["max_model_len=16384", "engine_args.llamacpp=['--rope-scale', '2']"], "context_above_model"),
        (["disaggregation={prefill: 1, decode: 1}"], "not_available"),
        (["front=router"], "not_available"),
        (["data_parallel_size=2"], "not_available"),
        (["tensor_parallel_size=2"], "not_enough_devices"),
        (["device_ids=[GPU-9]"], "no_such_device"),
        (["max_num_seqs=16", "max_num_batched_tokens=8"], "batch_below_slots"),
        (["ubatch_tokens=512", "max_num_batched_tokens=128"], "ubatch_above_batch"),
        (["kv_cache_tokens=1024", "max_model_len=2048"], "pool_below_context"),
        (["kv_cache_tokens=5000", "kv_unified=false", "max_num_seqs=2"], "pool_without_sharing"),
        (["kv_cache_tokens=5000", "kv_unified=false", "max_model_len=2048"], "pool_without_sharing"),
        (["kv_cache_dtype=fp8"], "kv_cache_dtype"),
        (["cache_reuse_tokens=64", "lossless=true"], "lossy"),
        (["kv_cache_bytes=1MiB", "max_model_len=8192"], "kv_does_not_fit"),
        (["speculative={method: medusa}"], "speculative_method"),
    ],
)
def test_a_lever_that_cannot_hold_is_refused(sets: list[str], code: str) -> None:
    assert code in codes(plan("edge", *sets))


def test_the_model_s_own_key_lifts_its_context() -> None:
    args = "engine_args.llamacpp=['--override-kv', 'llama.context_length=int:16384']"
    p = plan("edge", "max_model_len=16384", args)
    assert "context_above_model" not in codes(p)
    assert p.levers["max_model_len"].rule == "user"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_is_not_public(host: str) -> None:
    assert codes(plan("edge", host=host)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1,0.0.0.0"])
def test_any_other_address_is_public(host: str) -> None:
    assert codes(plan("edge", host=host)) == ["public_bind"]


def test_memory_names_what_is_needed_and_had_and_what_fits() -> None:
    p = plan("agent", "max_num_seqs=8", "max_model_len=131072", "kv_cache_tokens=1048576", of=LLAMA_8B)
    (v,) = p.violations
    assert v.code == "memory"
    assert "8 slots of 131072 tokens need" in v.message
    assert "can be had" in v.message
    assert "--set kv_cache_tokens=" in v.remedy


def test_a_model_larger_than_memory_asks_for_another() -> None:
    p = plan("edge", of=CARDS["mla"])
    assert codes(p) == ["memory"]
    assert "--model" in p.violations[0].remedy


def test_what_others_were_promised_is_not_there() -> None:
    held = Reservations(memory_bytes=31 * 2**30)
    p = plan("edge", of=LLAMA_8B, reservations=held)
    assert codes(p) == ["memory"]
    assert "promised to others" in p.violations[0].message


def test_layers_that_a_gpu_cannot_hold_name_those_it_can() -> None:
    small = machine(gpus=[gpu(0, 4)])
    p = plan("edge", "gpu_layers=33", of=LLAMA_8B, on=small)
    assert codes(p) == ["gpu_memory"]
    (fits,) = re.findall("gpu_layers=([0-9]+) fits", p.violations[0].remedy)
    assert not plan("edge", f"gpu_layers={fits}", of=LLAMA_8B, on=small).violations


def test_a_config_can_be_planned_and_not_launched() -> None:
    config = card(format="config", path="/models/config", weights_estimated=True)
    planned = plan("edge", of=config)
    assert not planned.violations
    assert any("not launched" in w for w in planned.warnings)
    assert codes(make_plan(inputs("edge", of=config, launching=True))) == ["no_weights"]


def test_another_format_is_refused() -> None:
    assert codes(plan("edge", of=card(format="safetensors"))) == ["format_mismatch"]


def test_a_draft_of_another_family_is_refused() -> None:
    draft = card(path=__file__, vocab_size=32000)
    p = plan("latency", f"speculative={{method: draft_model, model: {__file__}}}", draft=draft)
    assert codes(p) == ["draft_vocabulary"]


def test_what_the_engine_has_no_word_for_is_listed() -> None:
    p = plan("edge", "scheduling_policy=priority", "chunked_prefill=false", "block_size=16")
    assert {"scheduling_policy", "chunked_prefill", "block_size"} <= set(p.not_expressible)
    assert any("without effect" in w and "scheduling_policy=priority" in w for w in p.warnings)
    assert "stream_interval" not in plan("latency").not_expressible


def test_a_refusal_is_exit_3_with_violations_and_the_plan() -> None:
    p = plan("edge", host="0.0.0.0")
    error = refusal(p)
    assert error.exit_code == Exit.REFUSED
    data = refused_json(p)
    assert data["error"]["code"] == "plan_refused"
    assert data["violations"][0]["code"] == "public_bind"
    assert data["plan"]["schema_version"] == data["schema_version"] == 1
