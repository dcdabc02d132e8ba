from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import CONFIG, folder, gguf, safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import LlmserveError
from orchestrator.model_card import read_card
from orchestrator.model_card.huggingface import card_of
from orchestrator.model_card.reading import Damaged
from orchestrator.model_card.safetensors import read_header
from orchestrator.model_card.weight_groups import group_of

PUBLISHED = [
    json.loads(line) for line in (Path(__file__).parent / "configs.jsonl").read_text().splitlines() if line
]
"""Facts of public configurations (hub id in `model`) with the size their publishers state."""


def of(**changes: Any) -> Any:
    config = {k: v for k, v in (CONFIG | changes).items() if v is not ...}
    return card_of(config, source="s", name="n", path=None)


@pytest.mark.parametrize("case", PUBLISHED, ids=[c["model"] for c in PUBLISHED])
def test_an_estimate_from_a_config_is_close_to_the_published_size(case: dict[str, Any]) -> None:
    c = card_of(case["config"], source=case["model"], name=case["model"], path=None)
    assert c.parameters is not None
    assert c.parameters / 1e9 == pytest.approx(case["parameters_b"], rel=0.01)
    assert c.weights_estimated
    if "weights_gb" in case:
        assert c.weights_bytes / 1e9 == pytest.approx(case["weights_gb"], rel=0.02)
    for key, wanted in case["expect"].items():
        assert getattr(c, key) == wanted, key


def published(model: str) -> Any:
    case = next(c for c in PUBLISHED if c["model"] == model)
    return card_of(case["config"], source=model, name=model, path=None)


def test_a_gated_delta_hybrids_state_is_the_published_formula() -> None:
    # value heads x 128 x 128 in f32, and 3 columns of (2 x key heads + value heads) x 128 in bf16
    c = published("Qwen/Qwen3.5-35B-A3B")
    assert c.hybrid is not None
    assert c.hybrid.layers == 30
    assert c.hybrid.state_bytes_per_layer == 32 * 128 * 128 * 4 + (2 * 16 + 32) * 128 * 3 * 2
    assert c.kv_heads_per_layer == (0, 0, 0, 2) * 10


def test_a_block_pattern_gives_attention_to_few_layers() -> None:
    c = published("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    assert c.hybrid is not None
    assert c.hybrid.layers == 23
    assert sum(1 for n in c.kv_heads_per_layer or () if n) == 6


def test_every_second_layer_of_gpt_oss_slides_and_three_of_four_of_llama_4() -> None:
    oss, four = published("openai/gpt-oss-20b"), published("meta-llama/Llama-4-Maverick-17B-128E-Instruct")
    assert oss.sliding_layers == (True, False) * 12
    assert four.sliding_layers == (True, True, True, False) * 12


@pytest.mark.parametrize(
    ("changes", "kv"),
    [
        ({"num_key_value_heads": ...}, 4),
        ({"num_key_value_heads": ..., "multi_query": True}, 1),
        ({"num_key_value_heads": ..., "n_head_kv": 2}, 2),
        ({"num_key_value_heads": ..., "multi_query_attention": True, "multi_query_group_num": 2}, 2),
        ({"num_key_value_heads": [2, 1]}, 2),
    ],
)
def test_kv_heads_are_found_under_every_spelling(changes: dict[str, Any], kv: int) -> None:
    assert of(**changes).kv_heads == kv


def test_head_size_is_the_configs_own_before_the_quotient() -> None:
    assert of().head_dim == 16
    assert of(head_dim=24).head_dim == 24


@pytest.mark.parametrize(
    ("changes", "slides"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, (True, True)),
        ({"model_type": "mistral", "sliding_window": 4096}, None),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, None),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1},
            (False, True),
        ),
        ({"model_type": "gemma2", "sliding_window": 64}, (True, False)),
        ({"model_type": "x", "sliding_window": 64, "sliding_window_pattern": 2}, (True, False)),
        ({"model_type": "x", "sliding_window": 64, "hybrid_layer_pattern": [0, 1]}, (False, True)),
        ({"model_type": "x", "sliding_window": 64}, None),
    ],
)
def test_sliding_layers_are_found_by_the_familys_rule(changes: dict[str, Any], slides: Any) -> None:
    assert of(**changes).sliding_layers == slides


def test_yarn_and_linear_scaling_lengthen_the_context() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert of(rope_scaling=yarn).context_length == 1024
    assert of(rope_scaling={"type": "linear", "factor": 2.0}).context_length == 1024
    assert of(rope_parameters={"full_attention": yarn, "sliding_attention": {}}).context_length == 1024


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq-int4"),
        ({"quant_method": "gptq", "bits": 4}, "gptq-int4"),
        ({"quant_method": "gptq", "bits": 8}, "gptq-int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes-nf4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "compressed-tensors-fp8",
        ),
    ],
)
def test_quantization_has_a_name_and_makes_the_estimate_smaller(quantization: Any, name: str) -> None:
    c = of(quantization_config=quantization)
    assert c.quantization == name
    assert c.weights_bytes < of().weights_bytes


def test_heads_of_two_sizes_are_given_layer_by_layer() -> None:
    c = of(
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"],
        head_dim=32,
        global_head_dim=64,
        num_global_key_value_heads=1,
    )
    assert c.head_dim_per_layer == (32, 64)
    assert c.kv_heads_per_layer == (2, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 1 << 40},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": "many"},
        {"num_hidden_layers": True},
        {"hidden_size": None},
        {"num_attention_heads": 0},
        {"vocab_size": []},
        {"max_position_embeddings": ...},
        {"layer_types": ["full_attention"], "sliding_window": 8},
        {"num_key_value_heads": ["x", "y"]},
        {"architectures": ..., "model_type": ...},
    ],
)
def test_a_config_that_cannot_be_right_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Damaged):
        of(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0, which does not divide 4 heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide 4 heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings is 2147483648"),
        (
            {"max_position_embeddings": 2**30, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            "max_position_embeddings is 1073741824, and RoPE scaling by 4",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_figure_that_cannot_be_right_is_named_with_its_value(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Damaged) as e:
        of(**changes)
    assert said in str(e.value)


def test_a_config_with_more_layers_than_the_weights_is_refused(tmp_path: Path) -> None:
    weights = safetensors({f"model.layers.{i}.mlp.weight": ("BF16", [8, 8], 128) for i in range(2)})
    (folder(tmp_path / "m") / "model.safetensors").write_bytes(weights)
    assert read_card(str(tmp_path / "m")).layers == 2
    (folder(tmp_path / "m", CONFIG | {"num_hidden_layers": 3}) / "model.safetensors").write_bytes(weights)
    with pytest.raises(LlmserveError) as e:
        read_card(str(tmp_path / "m"))
    assert e.value.code == "model_unreadable"
    assert "num_hidden_layers is 3, and 2 of its layers have tensors" in e.value.message


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from(
        [*CONFIG, "rope_scaling", "text_config", "layer_types", "quantization_config", "num_experts"]
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
        max_leaves=5,
    ),
)
def test_any_value_under_any_key_gives_a_card_or_one_clear_error(key: str, value: Any) -> None:
    try:
        c = of(**{key: value})
    except Damaged as e:
        assert str(e)  # noqa: PT017
    else:
        assert c.weights_bytes >= 0


def test_a_folder_is_counted_as_stored(tmp_path: Path) -> None:
    c = read_card(str(folder(tmp_path / "tiny", shards=3)))
    assert (c.format, c.weights_bytes, c.weights_estimated, len(c.files)) == ("safetensors", 384, False, 3)
    assert (c.name, c.chat_template, c.parameters) == ("tiny", True, 192)


def test_a_config_alone_gives_an_estimated_card(tmp_path: Path) -> None:
    c = read_card(str(folder(tmp_path / "tiny", shards=0)), name="called")
    assert (c.format, c.weights_estimated, c.name) == ("config", True, "called")
    assert c.weights_bytes > 0


def test_a_folder_with_a_gguf_beside_its_config_is_the_gguf(tmp_path: Path) -> None:
    folder(tmp_path, shards=0)
    (tmp_path / "m.gguf").write_bytes(gguf())
    assert read_card(str(tmp_path)).format == "gguf"


def test_an_index_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    folder(tmp_path, shards=2)
    index = {"weight_map": {"a": "../../etc/passwd.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(LlmserveError, match="no file beside it"):
        read_card(str(tmp_path))


def test_modelopts_own_file_names_the_quantization(tmp_path: Path) -> None:
    folder(tmp_path, shards=0)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert read_card(str(tmp_path)).quantization == "fp8"


WHOLE = safetensors({"a": ("BF16", [4, 8], 64), "b": ("F32", [4], 16)})


def test_a_shard_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    folder(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(WHOLE)
    assert read_card(str(tmp_path)).weights_bytes == 80
    for length in range(len(WHOLE) - 1, -1, -1):
        os.truncate(path, length)
        with pytest.raises(LlmserveError) as e:
            read_card(str(tmp_path))
        assert e.value.code == "model_unreadable"


class InMemory:
    def __init__(self, data: bytes) -> None:
        self.name, self.data, self.size = "memory", data, len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 81), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes_of_a_shard_give_sizes_or_one_clear_error(flips: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for at, byte in flips:
        data[at] = byte
    try:
        header = read_header(InMemory(bytes(data)))
    except Damaged as e:
        assert str(e)  # noqa: PT017
    else:
        assert 0 <= header.data_bytes <= len(WHOLE)


def shard(header: Any) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (struct.pack("<Q", 1 << 60) + b"{}", "the format's most"),
        (struct.pack("<Q", 90_000_000) + b"{}", "is cut"),
        (shard(b"[" * 100_000), "not JSON"),
        (shard(b"\xff\xfe"), "not JSON"),
        (shard([1]), "no object"),
        (shard({"a": 1}), "'a'"),
        (shard({"a": {"dtype": "F32", "shape": [1 << 61, 8], "data_offsets": [0, 4]}}), "absurd"),
        (shard({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}), "cannot be right"),
        (shard({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}), "cannot be right"),
        (shard({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}) + b"x" * 8, "holes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "git-lfs pointer"),
        (b"", "is empty"),
    ],
    ids=[
        "2^60",
        "long",
        "deep",
        "binary",
        "list",
        "no entry",
        "2^64",
        "backwards",
        "half",
        "holes",
        "lfs",
        "empty",
    ],
)
def test_hostile_shards_end_in_one_clear_error(tmp_path: Path, data: bytes, said: str) -> None:
    folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(LlmserveError, match=said):
        read_card(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 50_000, b'{"a": ' * 50_000])
def test_a_damaged_config_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(LlmserveError, match=r"config\.json"):
        read_card(str(tmp_path))


def test_a_fifo_as_config_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(LlmserveError, match="not a regular file"):
        read_card(str(tmp_path))


def test_one_file_of_a_model_points_to_its_folder(tmp_path: Path) -> None:
    folder(tmp_path)
    with pytest.raises(LlmserveError) as e:
        read_card(str(tmp_path / "model.safetensors"))
    assert str(tmp_path) in e.value.remedy


@pytest.mark.parametrize("source", ["", "no such thing", "a/b/c", "../x", "x\0y", "a--b/c--d", "http://h/x"])
def test_what_is_neither_path_nor_hub_id_is_not_found(source: str) -> None:
    with pytest.raises(LlmserveError) as e:
        read_card(source, offline=True)
    assert (e.value.code, e.value.exit_code) == ("model_not_found", 3)


LLAMA_TENSORS: dict[str, tuple[str, list[int], int]] = {
    "model.embed_tokens.weight": ("BF16", [40, 64], 5120),
    "lm_head.weight": ("BF16", [40, 64], 5120),
    "model.norm.weight": ("BF16", [64], 128),
} | {
    f"model.layers.{layer}.{name}.weight": ("BF16", shape, 2 * shape[0] * (shape[1] if len(shape) > 1 else 1))
    for layer in (0, 1, 2)
    for name, shape in {
        "input_layernorm": [64],
        "self_attn.q_proj": [64, 64],
        "self_attn.k_proj": [32, 64],
        "self_attn.v_proj": [32, 64],
        "self_attn.o_proj": [64, 64],
        "mlp.gate_proj": [128, 64],
    }.items()
}


def test_stored_bytes_are_grouped_by_what_engines_split(tmp_path: Path) -> None:
    # the config names two layers: the third is multi-token prediction
    path = folder(tmp_path / "m", CONFIG | {"tie_word_embeddings": False})
    (path / "model.safetensors").write_bytes(safetensors(LLAMA_TENSORS))
    c = read_card(str(path))
    assert c.weight_groups == {
        "embedding": 5120,
        "lm_head": 5120,
        "attention": 2 * 2 * 8192,
        "kv_proj": 2 * 2 * 4096,
        "mlp": 2 * 16384,
        "norm": 128 + 2 * 128,
        "mtp": 128 + 2 * 8192 + 2 * 4096 + 16384,
    }
    assert sum(c.weight_groups.values()) == c.weights_bytes


@pytest.mark.parametrize(
    ("tensor", "group"),
    [
        ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", "mla"),
        ("model.layers.3.self_attn.indexer.wq_b.weight", "mla"),
        ("model.layers.3.self_attn.kv_b_proj.weight_scale_inv", "attention"),
        ("model.layers.3.self_attn.kv_a_layernorm.weight", "norm"),
        ("model.layers.3.mlp.experts.17.down_proj.weight", "experts"),
        ("model.layers.3.mlp.experts.gate_up_proj_blocks", "experts"),
        ("model.layers.3.block_sparse_moe.experts.1.w2.weight", "experts"),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", "shared"),
        ("model.layers.3.mlp.gate.weight", "router"),
        ("model.layers.3.mlp.gate_proj.weight", "mlp"),
        ("model.layers.3.linear_attn.in_proj_qkvz.weight", "recurrent"),
        ("backbone.layers.3.mixer.conv1d.weight", "recurrent"),
        ("visual.blocks.3.attn.qkv.weight", "vision"),
        ("model.visual.merger.mlp.0.weight", "vision"),
        ("mtp.layers.0.mlp.experts.1.up_proj.weight", "mtp"),
        ("transformer.h.3.attn.c_attn.weight", "qkv"),
        ("model.something_new.weight", "norm"),
    ],
)
def test_a_tensor_is_known_by_its_name(tensor: str, group: str) -> None:
    assert group_of(tensor)[1] == group


@pytest.mark.parametrize("case", PUBLISHED, ids=[c["model"] for c in PUBLISHED])
def test_estimated_groups_add_up_to_the_weights(case: dict[str, Any]) -> None:
    c = published(case["model"])
    assert sum(c.weight_groups.values()) == pytest.approx(c.weights_bytes, abs=20)


def test_latent_attention_keeps_its_down_projections_on_every_rank() -> None:
    c = of(
        kv_lora_rank=32,
        q_lora_rank=48,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        num_key_value_heads=4,
    )
    assert c.weight_groups["mla"] == 2 * 2 * 64 * (48 + 32 + 8)
    assert "kv_proj" not in c.weight_groups


def test_identity_comes_from_the_config() -> None:
    c = of(
        architectures=["NewForConditionalGeneration"],
        model_type="brand_new",
        auto_map={"AutoConfig": "configuration_new.NewConfig"},
        vision_config={"hidden_size": 8},
        num_experts=4,
        moe_intermediate_size=32,
        n_shared_experts=1,
        quantization_config={
            "quant_method": "fp8",
            "ignore": ["a" * 9] * 999,
            "weight_block_size": [128, 128],
        },
    )
    assert c.architectures == ("NewForConditionalGeneration",)
    assert (c.model_type, c.needs_remote_code, c.multimodal) == ("brand_new", True, True)
    assert (c.intermediate_size, c.moe_intermediate_size, c.shared_experts) == (128, 32, 1)
    assert c.expert_layers == (True, True)
    assert c.quantization_config == {"quant_method": "fp8", "weight_block_size": [128, 128]}


def test_a_known_model_with_an_auto_map_runs_no_code_of_the_repository() -> None:
    mapped = {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}
    assert not of(model_type="deepseek_v3", auto_map=mapped).needs_remote_code
    assert not of(auto_map={"AutoModelForCausalLM": "modeling.M"}).needs_remote_code


def test_an_encoder_decoder_is_told_apart() -> None:
    assert of(model_type="t5").encoder_decoder
    assert of(is_encoder_decoder=True).encoder_decoder
    assert not of().encoder_decoder
