"""Guessing tokens: which way pays, what stands against the others, and what it costs."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import planned
import pytest

from orchestrator.model_card.card import ModelCard
from orchestrator.model_families import family
from orchestrator.plan import Decision
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.speculation import choose, cost, cost_of, decide, gain, why_not

VLLM = {"kind": "vllm", "version": "0.33.0"}
SGLANG = {"kind": "sglang", "version": "0.5.23"}
LISTED_BY_VLLM = ("ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark")
LISTED_BY_SGLANG = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH")


def card(name: str, cls: str, **facts: Any) -> ModelCard:
    base = ModelCard(
        source=name,
        name=name,
        path=f"/models/{name}",
        format="safetensors",
        architecture=cls,
        layers=32,
        heads=32,
        kv_heads=8,
        head_dim=128,
        hidden_size=4096,
        vocab_size=151936,
        context_length=32768,
        weights_bytes=16 << 30,
        architectures=(cls,),
    )
    return replace(base, **facts)


QWEN = card("Qwen/Qwen3-8B", "Qwen3ForCausalLM")
DEEPSEEK = card(
    "deepseek-ai/DeepSeek-V3",
    "DeepseekV3ForCausalLM",
    mtp_layers=1,
    mla_kv_lora_rank=512,
    mla_qk_rope_head_dim=64,
)
KIMI = card("moonshotai/Kimi-K2.5", "KimiK25ForConditionalGeneration")


def chosen(model: ModelCard, engine: dict[str, str], goal: str, concurrency: int, **more: Any) -> Decision:
    listed = LISTED_BY_VLLM if engine["kind"] == "vllm" else LISTED_BY_SGLANG
    known = {"spec_methods": listed} | more
    return choose(model, family(model), goal=goal, concurrency=concurrency, **engine, **known)  # type: ignore[arg-type]


def against(d: Decision, method: str) -> str:
    """Why a method was not taken."""
    return next(r.why for r in d.rejected if r.value != "off" and r.value["method"] == method)


@pytest.mark.parametrize("engine", [VLLM, SGLANG])
@pytest.mark.parametrize("concurrency", [1, 16, 500])
def test_throughput_guesses_nothing_at_any_load(engine: dict[str, str], concurrency: int) -> None:
    d = chosen(DEEPSEEK, engine, "throughput", concurrency, repetitive=True)
    assert (d.value, d.rule) == ("off", "no_spare_arithmetic")
    assert "spare arithmetic" in against(d, "mtp")


def test_layers_in_the_checkpoint_are_used_first_and_need_no_model() -> None:
    d = chosen(DEEPSEEK, VLLM, "agent", 8, repetitive=True)
    assert d.value == {"method": "mtp", "num_tokens": 1}
    assert d.rule == "mtp_in_checkpoint"
    assert d.lossless
    assert "mtp comes first" in against(d, "ngram")
    on_sglang = chosen(DEEPSEEK, SGLANG, "latency", 8)
    assert on_sglang.value == {"method": "mtp", "num_tokens": 4, "num_steps": 3, "topk": 1}


def test_an_engine_that_wants_the_draft_path_gets_the_models_own() -> None:
    mimo = card("XiaomiMiMo/MiMo-7B-RL", "MiMoForCausalLM", mtp_layers=1)
    assert chosen(mimo, SGLANG, "latency", 1).value["model"] == mimo.path


def test_layers_that_the_files_do_not_hold_are_not_used() -> None:
    stripped = replace(DEEPSEEK, weight_groups={"experts": 1 << 30})
    assert "files hold none" in against(chosen(stripped, VLLM, "latency", 1), "mtp")
    assert "layers that predict" in against(
        chosen(replace(DEEPSEEK, mtp_layers=0), VLLM, "latency", 1), "mtp"
    )


def test_a_head_that_is_only_on_the_hub_is_named_with_its_command() -> None:
    d = chosen(KIMI, VLLM, "latency", 1)
    why = against(d, "eagle3")
    assert d.value == "off"
    assert "llmserve models pull lightseekorg/kimi-k2.5-eagle3-mla" in why
    assert "method: eagle3, model: lightseekorg/kimi-k2.5-eagle3-mla, num_tokens: 3" in why


def test_a_head_that_is_here_is_taken() -> None:
    d = chosen(KIMI, VLLM, "latency", 1, local={"lightseekorg/kimi-k2.5-eagle3-mla": "/models/head"})
    assert d.value == {"method": "eagle3", "num_tokens": 3, "model": "/models/head"}
    assert d.rule == "trained_head"


@pytest.mark.parametrize(("goal", "last"), [("latency", 32), ("agent", 32), ("edge", 8)])
def test_a_trained_draft_ends_with_the_spare_arithmetic(goal: str, last: int) -> None:
    assert chosen(DEEPSEEK, VLLM, goal, last).value["method"] == "mtp"
    d = chosen(DEEPSEEK, VLLM, goal, last + 1)
    assert (d.value, d.rule) == ("off", "no_spare_arithmetic")


def test_load_counts_in_one_copy_and_by_the_slots_there_are() -> None:
    assert chosen(DEEPSEEK, VLLM, "latency", 256, layout=Layout(attention_data=8)).value["method"] == "mtp"
    assert chosen(DEEPSEEK, VLLM, "latency", 256, max_num_seqs=16).value["method"] == "mtp"
    assert chosen(DEEPSEEK, VLLM, "latency", 256).value == "off"


def test_look_up_pays_where_answers_repeat_and_nowhere_else() -> None:
    agent = chosen(QWEN, VLLM, "agent", 4, repetitive=True)
    assert agent.value == {"method": "ngram", "num_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    assert chosen(QWEN, VLLM, "agent", 16, repetitive=True).value["num_tokens"] == 3
    assert chosen(QWEN, VLLM, "agent", 17, repetitive=True).value == "off"
    prose = chosen(QWEN, VLLM, "latency", 4)
    assert prose.value == "off"
    assert "repeat" in against(prose, "ngram")


def test_suffix_needs_its_package() -> None:
    d = chosen(QWEN, VLLM, "agent", 4, repetitive=True)
    assert "arctic-inference" in against(d, "suffix")
    d = chosen(QWEN, VLLM, "agent", 4, repetitive=True, dependencies={"arctic-inference": "0.1.1"})
    assert d.value == {"method": "suffix", "num_tokens": 24}
    assert "async scheduling off" in d.reason


def test_a_method_that_the_installation_does_not_list_is_not_used() -> None:
    d = chosen(QWEN, VLLM, "agent", 4, repetitive=True, spec_methods=("eagle",))
    assert d.value == "off"
    assert "has no ngram" in against(d, "ngram")
    old = chosen(QWEN, {"kind": "vllm", "version": "0.10.0"}, "agent", 4, repetitive=True, spec_methods=())
    assert old.value["method"] == "ngram"
    assert "from vllm 0.12.0 on" in against(old, "suffix")
    assert "async scheduling off" in old.reason


def test_a_draft_model_needs_the_same_vocabulary_and_to_be_small() -> None:
    small = card("Qwen/Qwen3-0.6B", "Qwen3ForCausalLM", weights_bytes=1 << 30)
    d = chosen(QWEN, VLLM, "latency", 2, draft_card=small)
    assert d.value == {"method": "draft_model", "model": small.path, "num_tokens": 4}
    other = replace(small, vocab_size=32000)
    assert "32000 words" in against(chosen(QWEN, VLLM, "latency", 2, draft_card=other), "draft_model")
    large = replace(small, weights_bytes=8 << 30)
    assert "quarter" in against(chosen(QWEN, VLLM, "latency", 2, draft_card=large), "draft_model")
    old = chosen(QWEN, {"kind": "vllm", "version": "0.12.0"}, "latency", 2, draft_card=small)
    assert "from vllm 0.16.0 on" in against(old, "draft_model")


def test_a_cpu_guesses_nothing_of_its_own_accord() -> None:
    d = chosen(QWEN, VLLM, "agent", 2, repetitive=True, device="cpu")
    assert d.value == "off"
    assert "busy cores" in against(d, "ngram")
    assert "own passes" in against(chosen(DEEPSEEK, VLLM, "latency", 1, device="cpu"), "mtp")
    none = chosen(DEEPSEEK, SGLANG, "agent", 2, repetitive=True, device="cpu")
    assert (none.value, none.rule) == ("off", "engine_has_none")


def test_layouts_forbid_some_ways() -> None:
    stages, replicated = Layout(pipeline=2), Layout(attention_data=4, expert=True)
    assert why_not("sglang", "mtp", "cuda", stages)
    assert why_not("sglang", "ngram", "cuda", replicated)
    assert why_not("sglang", "draft_model", "cuda", replicated)
    assert why_not("sglang", "mtp", "cuda", replicated) is None
    assert why_not("sglang", "ngram", "rocm", Layout())
    assert why_not("vllm", "eagle3", "cuda", stages)
    assert why_not("vllm", "ngram", "cuda", stages) is None
    assert chosen(DEEPSEEK, SGLANG, "latency", 1, layout=stages).value == "off"


def test_prediction_layers_guess_a_multiple_of_themselves() -> None:
    step = card("stepfun-ai/Step-3.7-Flash", "Step3p7FlashForCausalLM", mtp_layers=3)
    assert chosen(step, VLLM, "latency", 1).value["num_tokens"] == 3
    two = replace(step, mtp_layers=2)
    assert chosen(two, VLLM, "latency", 1).value["num_tokens"] == 2
    many = card("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "NemotronHForCausalLM", mtp_layers=1)
    assert chosen(many, VLLM, "latency", 1).value["num_tokens"] == 5
    assert chosen(many, VLLM, "latency", 16).value["num_tokens"] == 1


def test_a_model_of_no_family_is_left_to_look_up() -> None:
    unknown = card("x/y", "LlamaForCausalLM", mtp_layers=1)
    assert family(unknown) is None
    assert chosen(unknown, VLLM, "latency", 1).value == "off"
    assert chosen(unknown, SGLANG, "agent", 1, repetitive=True).value == {"method": "ngram", "num_tokens": 12}


def test_gain_falls_with_load_and_turns_into_a_loss() -> None:
    assert [gain(1), gain(16), gain(64)] == [2.0, 1.7, 1.38]
    figures = [gain(n) for n in range(1, 600)]
    assert figures == sorted(figures, reverse=True)
    assert gain(600) < 1


def test_every_choice_is_lossless_and_says_why_about_everything_else() -> None:
    for model in (QWEN, DEEPSEEK, KIMI):
        for engine in (VLLM, SGLANG):
            for goal in ("throughput", "latency", "agent", "edge"):
                for concurrency in (1, 20, 300):
                    d = chosen(model, engine, goal, concurrency, repetitive=goal == "agent")
                    assert d.lossless
                    assert d.reason
                    assert d.rule
                    assert all(r.why for r in d.rejected)
                    assert d.value not in [r.value for r in d.rejected]


def test_cost_of_each_way() -> None:
    assert cost_of("off", QWEN, None, Layout()) is None
    free = cost_of({"method": "ngram", "num_tokens": 5}, QWEN, None, Layout())
    assert free is not None
    assert (free.weights_bytes, free.kv_bytes_per_token, free.tokens, free.mtp) == (0, 0, 5, False)
    mtp = cost_of({"method": "mtp", "num_tokens": 1}, DEEPSEEK, None, Layout(tensor=8))
    assert mtp is not None
    assert (mtp.weights_bytes, mtp.kv_bytes_per_token, mtp.mtp) == (0, 2 * (512 + 64), True)
    small = card("Qwen/Qwen3-0.6B", "Qwen3ForCausalLM", weights_bytes=1 << 30, layers=28)
    whole = cost_of({"method": "draft_model", "model": "x", "num_tokens": 4}, QWEN, small, Layout())
    half = cost_of({"method": "draft_model", "model": "x", "num_tokens": 4}, QWEN, small, Layout(tensor=2))
    assert whole is not None
    assert half is not None
    assert whole.weights_bytes == 1 << 30
    assert whole.kv_bytes_per_token == 28 * 2 * 2 * 8 * 128
    assert half.kv_bytes_per_token * 2 == whole.kv_bytes_per_token
    assert half.weights_bytes < whole.weights_bytes


def situation(model: ModelCard, draft: ModelCard | None = None, **levers: Any) -> Any:
    """What a decision asks of the planner's situation, and nothing else."""
    workload = SimpleNamespace(concurrency=4, turns=1)
    extras = {"spec_methods": LISTED_BY_VLLM, "dependencies": {"arctic-inference": None}}
    return SimpleNamespace(
        card=model,
        family=family(model),
        kind="vllm",
        version_text="0.33.0",
        device="cuda",
        goal="latency",
        profile=SimpleNamespace(workload=workload),
        inputs=SimpleNamespace(draft=draft, installation=SimpleNamespace(extras=extras, captured=False)),
        given=levers.get,
        is_free=lambda name: name not in levers,
        as_given=lambda name: Decision(levers[name], "set by --set", "user"),
    )


def test_what_somebody_could_bring_is_named_with_how() -> None:
    d = chosen(QWEN, VLLM, "latency", 8, captured=True)
    assert d.value == "off"
    assert "--set 'speculative={method: eagle3, model: HEAD, num_tokens: 3}'" in against(d, "eagle3")
    assert "the same 151936 words" in against(d, "draft_model")
    assert "--set 'speculative={method: draft_model, model: MODEL" in against(d, "draft_model")
    # no environment is spoken of where none is
    assert "environment" not in against(chosen(QWEN, VLLM, "agent", 4, captured=True), "suffix")
    assert "environment" in against(chosen(QWEN, VLLM, "agent", 4), "suffix")
    # a load that leaves no arithmetic has no use for them
    methods = [r.value["method"] for r in chosen(QWEN, VLLM, "latency", 200).rejected]
    assert not {"eagle3", "draft_model"} & set(methods)


def test_a_plan_says_what_guessing_brings_where_it_was_laid_out() -> None:
    def reason(model: str) -> str:
        return planned.plan(model, "8xh200", goal="agent").levers["speculative"].reason

    found = re.search(r"about (\d\.\d) times faster at 4 at once \(85%", reason("deepseek-ai/DeepSeek-V3"))
    assert found is not None
    assert 1.2 <= float(found[1]) <= 1.6


def test_a_plans_situation_is_asked_and_the_layout_that_was_set_counts() -> None:
    assert decide(situation(DEEPSEEK), Layout()).value == {"method": "mtp", "num_tokens": 1}
    staged = decide(situation(DEEPSEEK), Layout(pipeline=2))
    assert staged.value == "off"
    assert "pipeline stage" in against(staged, "mtp")
    told = cost(situation(DEEPSEEK), decide(situation(DEEPSEEK), Layout(tensor=8)), Layout(tensor=8))
    assert told is not None
    assert told.mtp


def test_what_somebody_set_is_kept_and_a_draft_goes_by_its_file() -> None:
    asked = {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_tokens": 7}
    small = card("Qwen/Qwen3-0.6B", "Qwen3ForCausalLM")
    kept = decide(situation(QWEN, small, speculative=asked), Layout())
    assert kept.value == {**asked, "model": small.path}
    assert kept.rule == "user"
    assert decide(situation(QWEN, speculative="off"), Layout()).value == "off"
    assert cost(situation(QWEN), decide(situation(QWEN, speculative="off"), Layout()), Layout()) is None
