from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.base import Installation
from orchestrator.engines.llamacpp.checks import check, slot_context
from orchestrator.engines.llamacpp.facts import compare
from orchestrator.engines.llamacpp.stock import stock
from orchestrator.plan import Decision, EngineRef, Plan


def plan(argv: tuple[str, ...] = (), **levers: Any) -> Plan:
    from orchestrator.plan import ProcessPlan

    return Plan(
        goal="edge",
        profile="edge",
        model={"name": "small", "context_length": 8192},
        machine={},
        engine=EngineRef("llama-server", "llamacpp", "1"),
        levers={k: Decision(v, "because", "rule") for k, v in levers.items()},
        predictions={},
        processes=(ProcessPlan("server", argv),),
    )


def test_a_plan_that_starts_has_no_violation(binary: Installation) -> None:
    levers = {"max_num_seqs": 2, "max_model_len": 4096, "max_num_batched_tokens": 512, "ubatch_tokens": 512}
    assert check(plan(**levers, kv_cache_dtype="q8_0", flash_attention="auto"), binary) == []


@pytest.mark.parametrize(
    ("levers", "code"),
    [
        ({"max_num_seqs": 0}, "below_one"),
        ({"threads": 0}, "below_one"),
        ({"ubatch_tokens": 1024, "max_num_batched_tokens": 512}, "ubatch_above_batch"),
        ({"max_model_len": 8193}, "context_above_model"),
        ({"kv_unified": True, "kv_cache_tokens": 512, "max_model_len": 1024}, "pool_below_context"),
        ({"max_num_seqs": 1 << 20, "max_model_len": 8192}, "context_too_large"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "q4_0", "flash_attention": "off"}, "quantised_kv_needs_flash_attention"),
        ({"speculative": {"method": "draft"}}, "draft_model_missing"),
        ({"speculative": {"method": "draft", "model": "/nope.gguf"}}, "draft_model_missing"),
        ({"chat_template": "/nope.jinja"}, "chat_template_missing"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_llama_server_would_refuse_is_found_first(
    binary: Installation, levers: dict[str, Any], code: str
) -> None:
    found = check(plan(**levers), binary)
    assert [v.code for v in found] == [code]
    assert found[0].remedy


def test_all_violations_come_at_once(binary: Installation) -> None:
    found = check(plan(max_num_seqs=0, kv_cache_dtype="q3", chat_template="/nope"), binary)
    assert [v.code for v in found] == ["below_one", "kv_cache_dtype", "chat_template_missing"]


@pytest.mark.parametrize("stretch", [(), ("--rope-scaling", "yarn"), ("--rope-freq-scale", "0.5")])
def test_no_rope_scaling_lifts_the_models_context(binary: Installation, stretch: tuple[str, ...]) -> None:
    found = check(plan(("x", *stretch), max_model_len=16384), binary)
    assert [v.code for v in found] == ["context_above_model"]
    assert "--set max_model_len=8192" in found[0].remedy
    assert "[--override-kv, ARCHITECTURE.context_length=int:16384]" in found[0].remedy


def test_a_build_without_overrides_is_not_advised_to_use_them(embedded: Installation) -> None:
    found = check(plan(("x",), max_model_len=16384), embedded)
    assert "--override-kv" not in found[0].remedy


def test_a_draft_that_is_a_file_passes(binary: Installation, tmp_path: Path) -> None:
    draft = tmp_path / "d.gguf"
    draft.touch()
    assert check(plan(speculative={"method": "draft", "model": str(draft)}), binary) == []


# (ctx-size, slots, unified, per slot) and the n_ctx that /slots of xllamacpp 2026.10 reported
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ((1000, 3, False, 0), 512), ((600, 2, False, 0), 512), ((3000, 3, False, 0), 1024),
        ((4096, 4, False, 0), 1024), ((4096, 4, True, 0), 4096), ((2048, 4, True, 1024), 1024),
        ((20000, 4, True, 0), 20224), ((40000, 2, False, 0), 20224),
    ],
)  # fmt: skip
def test_a_slots_context_is_rounded_as_llama_cpp_rounds_it(
    given: tuple[int, int, bool, int], seen: int
) -> None:
    size, slots, unified, per_slot = given
    assert slot_context(size, slots, unified=unified, per_slot=per_slot) == seen


def outcome(levers: dict[str, Any], facts: dict[str, Any]) -> dict[str, bool]:
    return {c.what: c.ok for c in compare(plan(**levers), facts)}


def test_what_the_engine_reports_is_compared_and_nothing_else() -> None:
    levers = {"max_num_seqs": 3, "max_model_len": 1000, "speculative": {"method": "ngram"}}
    facts = {
        "slots": 3, "slot_context": 1024, "served_models": ["small"], "speculative": True,
        "n_ctx_train": 8192,
    }  # fmt: skip
    assert outcome(levers, facts) == dict.fromkeys(
        ("max_num_seqs", "max_model_len", "served_model", "speculative", "context_length"), True
    )
    assert outcome(levers, {}) == {}


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"slots": 4}, "max_num_seqs"),
        ({"slot_context": 768}, "max_model_len"),
        ({"slot_context": 4096}, "max_model_len"),
        ({"served_models": ["other"]}, "served_model"),
        ({"speculative": True}, "speculative"),
        ({"n_ctx_train": 2048}, "context_length"),
    ],
)
def test_a_lever_that_is_not_in_effect_shows(facts: dict[str, Any], what: str) -> None:
    levers = {"max_num_seqs": 3, "max_model_len": 1000, "speculative": "off"}
    assert outcome(levers, facts) == {what: False}


def test_stock_values_are_the_installations_own(binary: Installation, embedded: Installation) -> None:
    expected = {
        "max_num_seqs": 4, "kv_unified": True, "max_num_batched_tokens": 2048, "ubatch_tokens": 512,
        "kv_cache_dtype": "f16", "flash_attention": "auto", "prefix_caching": True, "cache_reuse_tokens": 0,
        "kv_offload_bytes": 8 << 30, "speculative": "off", "max_model_len": None, "threads": None,
        "reasoning_parser": "auto",
    }  # fmt: skip
    for installation in (binary, embedded):
        assert {lever: stock(lever, installation) for lever in expected} == expected
