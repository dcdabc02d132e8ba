"""Families: found by class and name, parsers that the engines list, published facts kept whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.vllm import captured
from orchestrator.machine.machine import Gpu
from orchestrator.model_card.card import ModelCard
from orchestrator.model_families import Family, family, gpu_generation
from orchestrator.model_families.arguments import LEFT_OUT, OTHER_BACKEND, merged, read
from orchestrator.model_families.families import _table
from orchestrator.model_families.versions import at_least

HERE = Path(__file__).parent
RECIPES = [json.loads(x) for x in (HERE.parent / "paged" / "vllm_recipes.jsonl").read_text().splitlines()]
LISTED: dict[str, list[str]] = json.loads((HERE / "parsers.json").read_text())
NEWEST = {"vllm": "0.33.0", "sglang": "0.5.23"}


def card(name: str, cls: str, *, path: str | None = None, **facts: Any) -> ModelCard:
    return ModelCard(
        source=path or name,
        name=name,
        path=path,
        format="config",
        architecture=cls,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        hidden_size=1,
        vocab_size=1,
        context_length=1,
        weights_bytes=1,
        architectures=(cls,),
        **facts,
    )


def found(name: str, cls: str) -> Family:
    f = family(card(name, cls))
    assert f is not None, name
    return f


@pytest.mark.parametrize(
    ("name", "cls", "expected"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "LlamaForCausalLM", "llama-3.1"),
        ("meta-llama/Meta-Llama-3.1-70B", "LlamaForCausalLM", "llama-3.1-base"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "LlamaForCausalLM", "deepseek-r1-distill"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "Qwen2ForCausalLM", "deepseek-r1-distill"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "LlamaForCausalLM", "hermes"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "Qwen3MoeForCausalLM", "qwen3-thinking"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3MoeForCausalLM", "qwen3-instruct-2507"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3MoeForCausalLM", "qwen3-coder"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepseekV3ForCausalLM", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V3.1", "DeepseekV3ForCausalLM", "deepseek-v3.1"),
        ("moonshotai/Kimi-K2-Thinking", "DeepseekV3ForCausalLM", "kimi-k2-thinking"),
        ("zai-org/GLM-4.6-FP8", "Glm4MoeForCausalLM", "glm-4.5"),
    ],
)
def test_one_class_with_several_kinds_is_told_apart_by_name(name: str, cls: str, expected: str) -> None:
    assert found(name, cls).name == expected


def test_a_local_folder_is_matched_by_class_and_folder_name() -> None:
    f = family(card("mine", "Qwen3MoeForCausalLM", path="/models/Qwen3-30B-A3B-Thinking-2507/"))
    assert f is not None
    assert f.name == "qwen3-thinking"
    assert not f.recipe


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "LlamaForCausalLM"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct", "LlamaForCausalLM"),
        ("somebody/Llama-3.3-70B-Instruct", "NobodyForCausalLM"),
        ("Qwen/Qwen2.5-7B", "Qwen2ForCausalLM"),
    ],
)
def test_a_likeness_alone_is_no_family(name: str, cls: str) -> None:
    assert family(card(name, cls)) is None


def test_a_gguf_file_has_no_family() -> None:
    gguf = replace(card("Qwen3-8B-Q4_K_M", "qwen3"), format="gguf", architectures=(), model_type=None)
    assert family(gguf) is None


def test_every_parser_of_the_table_is_one_that_the_engine_lists() -> None:
    wrong = []
    for row in _table()["families"]:
        for what in ("tools", "reasoning"):
            for kind, names in row.get(what, {}).items():
                for name in [names] if isinstance(names, str) else [n for n, _ in names]:
                    # renamed: vLLM 0.10.0 registered GLM's as glm4_moe
                    if name != "glm4_moe" and name not in LISTED[f"{kind}_{what}"]:
                        wrong.append((row["family"], what, kind, name))
    assert wrong == []


def test_every_row_says_where_it_comes_from() -> None:
    sources = _table()["sources"]
    assert all(row["source"] and set(row["source"]) <= set(sources) for row in _table()["families"])
    assert {key for row in _table()["families"] for key in row["source"]} == set(sources)


def test_no_row_is_hidden_behind_an_earlier_one() -> None:
    open_rows: dict[str, str] = {}
    for row in _table()["families"]:
        for cls in row.get("architectures", ()):
            assert cls not in open_rows, f"{row['family']} never matches {cls}: {open_rows[cls]} takes all"
            if "name" not in row and "not_name" not in row:
                open_rows[cls] = row["family"]


# what a recipe says and the table does not, each with its reason
OTHERWISE = {
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "reasoning"): "a plugin file; built in as nemotron_v3",
    ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", "reasoning"): "a plugin file; built in as nemotron_v3",
}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: str(r["model_id"]))
def test_a_model_with_a_recipe_keeps_all_that_is_published(recipe: dict[str, Any]) -> None:
    f = found(recipe["model_id"], "UnknownToEveryTable")
    assert f.min_version("vllm") == recipe["min_vllm_version"]
    verified = f.verified
    assert verified is not None
    assert list(verified.hardware) == recipe.get("verified_hardware", [])
    assert list(verified.layouts) == recipe["strategies"]
    for name, variant in recipe["variants"].items():
        assert verified.memory_gb[name] == variant["vram_minimum_gb"]
    newest = "0.99.0"
    told = f.requirements("vllm", newest, "unknown", tools=True)
    words = " ".join((*told.flags, *told.why, *told.left_out))
    for part in (recipe.get("base_args", []), recipe["features"].get("tool_calling", [])):
        for argument in (a for a in part if a.startswith("--")):
            flag = argument.split()[0].split("=")[0].split(".")[0].replace("_", "-")
            lever = {
                "--no-enable-prefix-caching": "prefix_caching",
                "--enable-prefix-caching": "prefix_caching",
                "--enable-expert-parallel": "expert_parallel",
                "--enable-chunked-prefill": "chunked_prefill",
            }.get(flag, flag[2:].replace("-", "_"))
            parsers = ("tool_call_parser", "reasoning_parser")
            automatic = flag == "--max-model-len" and "auto" in f"{argument} {part[-1]}"
            assert flag in words or lever in words or lever in parsers or automatic, flag
    for variable, value in recipe.get("base_env", {}).items():
        assert told.env[variable] == value
    for what, lever in (("tool_calling", "tool_call_parser"), ("reasoning", "reasoning_parser")):
        named = read(recipe["features"].get(what, ())).levers.get(lever)
        got = getattr(f, lever)("vllm", newest)
        if named is not None and (recipe["model_id"], what) not in OTHERWISE:
            assert got == named


def test_families_agree_with_the_recipes_of_their_models() -> None:
    for model, cls, version in [
        ("Qwen/Qwen3-32B", "Qwen3ForCausalLM", "0.10.0"),
        ("MiniMaxAI/MiniMax-M2.5", "MiniMaxM2ForCausalLM", "0.20.2"),
        ("zai-org/GLM-4.7", "Glm4MoeForCausalLM", "0.33.0"),
        ("deepseek-ai/DeepSeek-V3.2", "DeepseekV32ForCausalLM", "0.18.0"),
        ("deepseek-ai/DeepSeek-V4-Pro", "DeepseekV4ForCausalLM", "0.20.0"),
        ("moonshotai/Kimi-K2.5", "KimiK25ForConditionalGeneration", "0.19.1"),
        ("google/gemma-4-E2B-it", "Gemma4ForConditionalGeneration", "0.19.1"),
        ("tencent/Hy3", "HYV3ForCausalLM", "0.26.0"),
        ("stepfun-ai/Step-3.7-Flash", "Step3p7FlashForCausalLM", "0.23.0"),
        ("poolside/Laguna-XS.2", "LagunaForCausalLM", "0.21.0"),
        ("Qwen/Qwen3.5-397B-A17B", "Qwen3_5MoeForConditionalGeneration", "0.17.0"),
        ("internlm/Intern-S1", "InternS1ForConditionalGeneration", "0.10.0"),
        ("openai/gpt-oss-20b", "GptOssForCausalLM", "0.33.0"),
    ]:
        f, alone = found(model, cls), found(model, "UnknownToEveryTable")
        assert f.row
        assert f.tool_call_parser("vllm", version) == alone.tool_call_parser("vllm", version), model
        published = alone.reasoning_parser("vllm", version)
        assert published in (None, f.reasoning_parser("vllm", version)), model


def test_a_parser_is_not_named_for_a_version_that_is_not_known_to_have_it() -> None:
    glm = found("zai-org/GLM-4.7", "Glm4MoeForCausalLM")
    assert glm.tool_call_parser("vllm", "0.33.0") == "glm47"
    assert glm.tool_call_parser("vllm", "0.12.0") == "glm45"
    assert found("x/GLM-4.5", "Glm4MoeForCausalLM").tool_call_parser("vllm", "0.10.0") == "glm4_moe"
    assert found("tencent/Hy3", "HYV3ForCausalLM").tool_call_parser("vllm", "0.19.0") is None


def test_requirements_follow_the_device() -> None:
    v4 = found("deepseek-ai/DeepSeek-V4-Flash", "DeepseekV4ForCausalLM")
    hopper, blackwell = (v4.requirements("vllm", "0.33.0", g) for g in ("hopper", "blackwell"))
    amd = v4.requirements("vllm", "0.33.0", "amd")
    assert hopper.levers == {"kv_cache_dtype": "fp8", "block_size": 256}
    assert not hopper.trust_remote_code
    assert "trust_remote_code" in hopper.why
    assert hopper.flags == ()
    assert blackwell.flags == ("--attention-config", '{"use_fp4_indexer_cache":true}')
    assert amd.env == {"VLLM_ROCM_USE_AITER": "1"}
    assert amd.suggested["max_num_batched_tokens"] == 8192
    one = v4.requirements("vllm", "0.33.0", "blackwell", layout="single_node_tp")
    assert one.flags[-1] == "--no-enable-flashinfer-autotune"
    assert "published for deepseek-ai/DeepSeek-V4-Flash on blackwell" in blackwell.why["--attention-config"]


def test_requirements_of_a_variant_and_of_tool_calls() -> None:
    nvfp4 = found("nvidia/MiniMax-M3-NVFP4", "MiniMaxM3SparseForConditionalGeneration")
    told = nvfp4.requirements("vllm", "0.33.0", "blackwell")
    assert told.levers == {"block_size": 128, "kv_cache_dtype": "fp8"}
    assert json.loads(told.flags[1])["minimax_m3_msa_decode_backend"] == "cutlass"
    v32 = found("deepseek-ai/DeepSeek-V3.2", "DeepseekV32ForCausalLM")
    assert "--tokenizer-mode" not in v32.requirements("vllm", "0.33.0", "hopper").flags
    assert v32.requirements("vllm", "0.33.0", "hopper", tools=True).flags[-2:] == (
        "--tokenizer-mode",
        "deepseek_v32",
    )


def test_a_published_context_is_a_ceiling() -> None:
    scout = found("meta-llama/Llama-4-Scout-17B-16E-Instruct", "Llama4ForConditionalGeneration")
    told = scout.requirements("vllm", "0.33.0", "amd")
    assert (told.max_model_len, told.levers) == (32000, {"prefix_caching": False})
    assert "max_model_len" in told.why
    assert scout.requirements("vllm", "0.33.0", "hopper").max_model_len is None


def test_another_engine_gets_only_the_consent() -> None:
    v4 = family(card("deepseek-ai/DeepSeek-V4-Flash", "DeepseekV4ForCausalLM", needs_remote_code=True))
    assert v4 is not None
    told = v4.requirements("sglang", "0.5.23", "blackwell")
    assert (told.levers, told.flags, told.env, told.trust_remote_code) == ({}, (), {}, True)


@pytest.mark.parametrize("version", captured.versions())
def test_every_flag_is_one_that_the_engine_version_has(version: str) -> None:
    there = {s for flag in captured.captured(version).flags for s in flag.spellings}
    generations = ("hopper", "blackwell", "ampere", "amd", "cpu", "unknown")
    layouts = (None, "single_node_tp", "single_node_tep", "single_node_dep")
    unknown = set()
    for recipe in RECIPES:
        f = found(recipe["model_id"], "UnknownToEveryTable")
        if not at_least(version, recipe["min_vllm_version"]):
            continue
        for generation in generations:
            for layout in layouts:
                told = f.requirements("vllm", version, generation, layout=layout, tools=True)
                unknown |= {w for w in told.flags if w.startswith("--") and w not in there}
        for draft in f.drafts("vllm", version):
            unknown |= {w for w in draft.flags if w.startswith("--") and w not in there}
    assert unknown == set()


def test_a_flag_that_a_version_has_not_is_named_as_left_out() -> None:
    f = found("openai/gpt-oss-20b", "GptOssForCausalLM")
    old, new = (f.requirements("vllm", v, "amd") for v in ("0.12.0", "0.16.0"))
    assert "--attention-backend" in new.flags
    assert "--attention-backend" not in old.flags
    assert "ROCM_AITER_UNIFIED_ATTN" not in old.flags
    assert "--attention-backend" in old.left_out
    assert old.flags[0] == "--compilation-config"


def test_consent_is_asked_for_only_where_the_checkpoint_holds_code() -> None:
    kimi, qwen = "moonshotai/Kimi-K2.5", "Qwen/Qwen3-8B"
    for name, code, expected in ((kimi, True, True), (kimi, False, False), (qwen, True, False)):
        f = family(card(name, "UnknownToEveryTable", needs_remote_code=code))
        assert f is not None
        assert f.requirements("vllm", "0.33.0", "hopper").trust_remote_code is expected


def test_drafts_of_the_model_itself_come_before_those_in_the_checkpoint() -> None:
    kimi = found("moonshotai/Kimi-K2.5", "KimiK25ForConditionalGeneration")
    (head,) = kimi.drafts("vllm", "0.33.0")
    assert (head.method, head.model, head.tokens) == ("eagle3", "lightseekorg/kimi-k2.5-eagle3-mla", 3)
    assert kimi.drafts("vllm", "0.18.0") == ()
    (mtp,) = found("zai-org/GLM-4.6", "Glm4MoeForCausalLM").drafts("vllm", "0.33.0")
    assert (mtp.method, mtp.model, mtp.tokens) == ("mtp", None, 1)
    (here,) = found("zai-org/GLM-4.6", "Glm4MoeForCausalLM").drafts("sglang", "0.5.23")
    (path,) = found("XiaomiMiMo/MiMo-7B-RL", "MiMoForCausalLM").drafts("sglang", "0.5.23")
    assert (here.give_target, path.give_target) == (False, True)
    laguna = found("poolside/Laguna-S-2.1", "LagunaForCausalLM").drafts("vllm", "0.33.0")[0]
    assert (laguna.method, laguna.tokens, laguna.flags) == ("dflash", 15, ("--moe-backend", "triton"))
    assert found("MiniMaxAI/MiniMax-M2.7", "MiniMaxM2ForCausalLM").drafts("vllm", "0.33.0") == ()


def test_a_device_s_attention_backend_goes_before_the_settings_of_another() -> None:
    f = found("nvidia/MiniMax-M3-NVFP4", "MiniMaxM3ForCausalLM")
    on_amd = f.requirements("vllm", "0.33.0", "amd")
    assert "--attention-config" not in on_amd.flags
    assert on_amd.flags[on_amd.flags.index("--attention-backend") + 1] == "TRITON_ATTN"
    assert on_amd.left_out["--attention-config"] == OTHER_BACKEND
    on_nvidia = f.requirements("vllm", "0.33.0", "blackwell")
    assert "--attention-backend" not in on_nvidia.flags
    assert '"backend":"FLASHINFER"' in on_nvidia.flags[on_nvidia.flags.index("--attention-config") + 1]


def test_arguments_are_read_in_every_spelling() -> None:
    told = read(
        ["--a_b.c_d=1", "--a-b.e", "True", "-cc.x=2", "--compilation-config", '{"y":3}', "--max-model-len 9",
         "--config_format", "mistral", "--no-enable-prefix-caching", "--served-model-name", "x"]
    )  # fmt: skip
    assert told.flags == (
        "--a-b", '{"c_d":1,"e":true}', "--compilation-config", '{"x":2,"y":3}', "--config-format", "mistral"
    )  # fmt: skip
    assert told.levers == {"max_model_len": 9, "prefix_caching": False}
    assert told.left_out == ("--served-model-name",)
    both = merged(told, read(["--compilation-config", '{"y":4}']))
    assert '{"x":2,"y":4}' in both.flags
    assert set(told.left_out) <= set(LEFT_OUT)


@pytest.mark.parametrize(
    ("version", "lowest", "expected"),
    [
        ("0.20.2", "0.20.2", True),
        ("0.20.2rc1", "0.20.2", True),
        ("0.9.2", "0.10", False),
        ("0.10", "0.10.0", True),
        ("0.33.0+cu129", "0.27.1", True),
        ("0.33.0", "nightly", False),
        ("unknown", "0.33.0", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, lowest: str, expected: bool) -> None:
    assert at_least(version, lowest) is expected


@pytest.mark.parametrize(
    ("capability", "vendor", "expected"),
    [("9.0", "nvidia", "hopper"), ("10.0", "nvidia", "blackwell"), ("12.0", "nvidia", "blackwell"),
     ("8.0", "nvidia", "ampere"), ("8.9", "nvidia", "ada"), ("7.5", "nvidia", "turing"),
     (None, "amd", "amd"), (None, "nvidia", "unknown")],
)  # fmt: skip
def test_generations_come_from_the_compute_capability(capability: Any, vendor: Any, expected: str) -> None:
    gpu = Gpu(0, "GPU-0", "x", 1, 1, compute_capability=capability, vendor=vendor)
    assert gpu_generation(gpu) == expected
    assert gpu_generation(None) == "cpu"


def test_a_note_is_said_where_it_concerns_somebody() -> None:
    row = {
        "notes": [
            {"say": "everywhere"},
            {"say": "a template", "for": ["vllm", "tools"]},
            {"say": "a draft", "for": ["vllm"]},
            {"say": "a parser", "for": ["sglang", "tools"]},
        ]
    }
    made = Family("x", row, {}, {})
    assert made.notes_for("vllm", tools=True) == ("everywhere", "a template", "a draft")
    assert made.notes_for("vllm", tools=False) == ("everywhere", "a draft")
    assert made.notes_for("sglang", tools=False) == ("everywhere",)
    assert made.notes_for("sglang", tools=True) == ("everywhere", "a parser")


def test_notes_of_the_table_name_whom_they_concern() -> None:
    notes = [n for row in _table()["families"] for n in row.get("notes", ())]
    assert notes
    for n in notes:
        assert set(n) <= {"say", "for"}
        assert set(n.get("for", ())) <= {"vllm", "sglang", "tools"}
        named = {kind for kind, word in (("vllm", "vLLM"), ("sglang", "SGLang")) if word in n["say"]}
        assert named <= set(n.get("for", ())), n
