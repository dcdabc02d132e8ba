from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import LLAMA, TENSORS, Tensor, gguf

from orchestrator.errors import LlmserveError
from orchestrator.model_card import ModelCard, read_card


def card(tmp_path: Path, pairs: dict[str, Any], **kw: Any) -> ModelCard:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(pairs, **({"tensors": with_layers(pairs)} | kw)))
    return read_card(str(path))


def with_layers(pairs: dict[str, Any]) -> list[Tensor]:
    """Tensors, one of them in the last of the layers that the header tells of."""
    count = pairs[f"{pairs['general.architecture']}.block_count"][1]
    return [*TENSORS, (f"blk.{count - 1}.x", (64,), 0, 256)] if count > 2 else TENSORS


def of(architecture: str, layers: int = 8, **keys: Any) -> dict[str, Any]:
    """A minimal model of an architecture; keys with __ for dots, below the architecture's name."""
    pairs: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": ("I", layers),
        f"{architecture}.context_length": ("I", 4096),
        f"{architecture}.embedding_length": ("I", 256),
        f"{architecture}.attention.head_count": ("I", 4),
        "tokenizer.ggml.tokens": ["a", "b"],
    }
    return pairs | {f"{architecture}.{k.replace('__', '.')}": v for k, v in keys.items()}


def test_a_card_holds_what_the_header_says(tmp_path: Path) -> None:
    c = card(tmp_path, LLAMA)
    assert (c.architecture, c.layers, c.heads, c.kv_heads, c.head_dim) == ("llama", 2, 4, 2, 16)
    assert (c.vocab_size, c.context_length, c.quantization, c.chat_template) == (40, 512, "Q8_0", True)
    assert c.weights_bytes == sum(t[3] for t in TENSORS)
    assert c.parameters == 64 * 40 + 2 * 64
    assert (c.name, c.format, c.weights_estimated, c.files) == ("m", "gguf", False, ("m.gguf",))
    assert c.path == str(tmp_path / "m.gguf")


def test_version_two_is_read_too(tmp_path: Path) -> None:
    assert card(tmp_path, LLAMA, version=2).layers == 2


def test_kv_heads_may_differ_by_layer_and_zero_means_no_kv(tmp_path: Path) -> None:
    c = card(tmp_path, of("deci", 4, attention__head_count_kv=("I", [4, 0, 2, 4])))
    assert c.kv_heads == 4
    assert c.kv_heads_per_layer == (4, 0, 2, 4)


def test_mla_ranks_are_read_where_the_file_keeps_kv_compressed(tmp_path: Path) -> None:
    keys = {
        "attention__head_count_kv": ("I", 1),
        "attention__key_length": ("I", 576),
        "attention__value_length": ("I", 512),
        "attention__key_length_mla": ("I", 192),
        "attention__value_length_mla": ("I", 128),
        "attention__kv_lora_rank": ("I", 512),
        "rope__dimension_count": ("I", 64),
        "expert_count": ("I", 256),
        "expert_used_count": ("I", 8),
    }
    c = card(tmp_path, of("deepseek2", 9, nextn_predict_layers=("I", 1), **keys))
    assert (c.mla_kv_lora_rank, c.mla_qk_rope_head_dim, c.head_dim, c.value_head_dim) == (512, 64, 192, 128)
    assert (c.experts, c.experts_per_token, c.layers, c.mtp_layers) == (256, 8, 8, 1)


def test_an_old_mla_file_is_said_to_cache_every_head(tmp_path: Path) -> None:
    keys = {"attention__key_length": ("I", 192), "attention__kv_lora_rank": ("I", 512)}
    c = card(tmp_path, of("deepseek2", **keys))
    assert c.mla_kv_lora_rank is None
    assert any("in full" in n for n in c.notes)


@pytest.mark.parametrize(
    ("architecture", "layers", "full"),
    [
        ("gemma2", 6, [1, 3, 5]),
        ("gemma3", 13, [5, 11]),
        ("gpt-oss", 4, [1, 3]),
        ("cohere2", 8, [3, 7]),
        ("smallthinker", 8, [0, 4]),
        ("llama4", 8, [3, 7]),
    ],
)
def test_sliding_layers_follow_the_architectures_rule(
    tmp_path: Path, architecture: str, layers: int, full: list[int]
) -> None:
    c = card(tmp_path, of(architecture, layers, attention__sliding_window=("I", 1024)))
    assert c.sliding_layers is not None
    assert [i for i, s in enumerate(c.sliding_layers) if not s] == full
    assert c.sliding_window == {"smallthinker": 4096, "llama4": 8192}.get(architecture, 1024)


def test_a_pattern_in_the_file_wins_over_the_rule(tmp_path: Path) -> None:
    keys = {
        "attention__sliding_window": ("I", 64),
        "attention__sliding_window_pattern": ("?", [True, False, True, True]),
        "attention__key_length": ("I", 512),
        "attention__key_length_swa": ("I", 256),
    }
    c = card(tmp_path, of("gemma4", 4, **keys))
    assert c.sliding_layers == (True, False, True, True)
    assert c.head_dim_per_layer == (256, 512, 256, 256)


def test_a_window_that_the_engine_ignores_is_not_on_the_card(tmp_path: Path) -> None:
    c = card(tmp_path, of("phi3", attention__sliding_window=("I", 2047)))
    assert (c.sliding_window, c.sliding_layers) == (None, None)


def test_a_gated_delta_hybrid_has_a_state_and_kv_in_every_fourth_layer(tmp_path: Path) -> None:
    # 16 key heads, 32 value heads of 128 and a kernel of 4: llama.cpp keeps both parts in f32
    keys = {
        "attention__head_count_kv": ("I", 2),
        "ssm__conv_kernel": ("I", 4),
        "ssm__inner_size": ("I", 4096),
        "ssm__state_size": ("I", 128),
        "ssm__group_count": ("I", 16),
        "ssm__time_step_rank": ("I", 32),
    }
    c = card(tmp_path, of("qwen35moe", 8, **keys))
    assert c.hybrid is not None
    assert c.hybrid.layers == 6
    assert c.hybrid.state_bytes_per_layer == 4 * (3 * (4096 + 2 * 16 * 128) + 128 * 4096)
    assert c.kv_heads_per_layer == (0, 0, 0, 2, 0, 0, 0, 2)


def test_layers_that_share_kv_keep_none_of_their_own(tmp_path: Path) -> None:
    c = card(tmp_path, of("gemma4", 4, attention__shared_kv_layers=("I", 1)))
    assert c.kv_heads_per_layer == (4, 4, 4, 0)


def test_an_unknown_tensor_type_is_noted_and_counted_by_the_files_size(tmp_path: Path) -> None:
    tensors = [*TENSORS[:1], ("blk.1.x", (64,), 77, 256)]
    c = card(tmp_path, LLAMA, tensors=tensors)
    assert c.weights_bytes == TENSORS[0][3] + 256
    assert any("77" in n for n in c.notes)


def test_a_split_model_is_read_from_its_first_part(tmp_path: Path) -> None:
    first = LLAMA | {"split.count": ("H", 2), "split.no": ("H", 0)}
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(gguf(first))
    second = {"split.count": ("H", 2), "split.no": ("H", 1)}
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(gguf(second, [("x", (32,), 0, 128)]))
    c = read_card(str(tmp_path / "m-00001-of-00002.gguf"))
    assert c.weights_bytes == sum(t[3] for t in TENSORS) + 128
    assert (c.name, len(c.files)) == ("m", 2)
    assert read_card(str(tmp_path)).weights_bytes == c.weights_bytes


def test_a_missing_part_and_a_later_part_are_named(tmp_path: Path) -> None:
    first = LLAMA | {"split.count": ("H", 2)}
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(gguf(first))
    with pytest.raises(LlmserveError, match=r"m-00002-of-00002\.gguf is missing"):
        read_card(str(tmp_path / "m-00001-of-00002.gguf"))
    with pytest.raises(LlmserveError) as e:
        read_card(str(tmp_path / "m-00002-of-00002.gguf"))
    assert e.value.exit_code == 3
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(gguf({}, []))
    with pytest.raises(LlmserveError) as e:
        read_card(str(tmp_path / "m-00002-of-00002.gguf"))
    assert "m-00001-of-00002.gguf" in e.value.remedy


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("attention.head_count", ("I", 0), "attention.head_count is 0"),
        ("attention.head_count", ("I", [0, 0]), "attention.head_count is [0, 0]"),
        ("attention.head_count_kv", ("I", 0), "attention.head_count_kv is 0"),
        ("attention.head_count_kv", ("I", [0, 0]), "attention.head_count_kv is [0, 0]"),
        ("attention.head_count_kv", ("I", 3), "attention.head_count_kv is 3, which does not divide the 4"),
        ("attention.head_count_kv", ("I", [2, 3]), "does not divide the 4 of layer 1"),
        ("block_count", ("I", 3), "block_count is 3, and 2 of its layers have tensors"),
        ("block_count", ("I", 0), "block_count is 0"),
        ("context_length", ("I", 0), "context_length is 0"),
        ("context_length", ("I", 2**31), "context_length is 2147483648"),
        ("embedding_length", ("I", 0), "embedding_length is 0"),
        ("embedding_length", ("I", 3), "embedding_length is 3, which leaves nothing for each of 4 heads"),
        ("attention.key_length", ("I", 0), "attention.key_length is 0"),
    ],
)
def test_a_figure_that_cannot_be_right_is_named_with_its_value(
    tmp_path: Path, key: str, value: Any, said: str
) -> None:
    with pytest.raises(LlmserveError) as e:
        card(tmp_path, LLAMA | {f"llama.{key}": value}, tensors=TENSORS)
    assert (e.value.code, e.value.exit_code) == ("model_unreadable", 3)
    assert f"llama.{said}" in e.value.message or said in e.value.message


def test_the_largest_context_that_an_engine_can_hold_is_read(tmp_path: Path) -> None:
    assert card(tmp_path, LLAMA | {"llama.context_length": ("I", 2**31 - 1)}).context_length == 2**31 - 1


def test_a_hybrid_may_have_layers_without_heads_and_a_recurrent_model_only_such(tmp_path: Path) -> None:
    keys = {"attention__head_count": ("I", [0, 4, 0, 4]), "attention__head_count_kv": ("I", [0, 2, 0, 2])}
    assert card(tmp_path, of("deci", 4, **keys)).kv_heads_per_layer == (0, 2, 0, 2)
    pure = of(
        "mamba", 4, attention__head_count=("I", 0), ssm__inner_size=("I", 512), ssm__state_size=("I", 16)
    )
    assert card(tmp_path, pure).kv_heads == 0


def test_a_folder_with_several_models_asks_which(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf", "mmproj-a.gguf"):
        (tmp_path / name).write_bytes(gguf())
    with pytest.raises(LlmserveError) as e:
        read_card(str(tmp_path))
    assert e.value.code == "model_ambiguous"
    (tmp_path / "b.gguf").unlink()
    assert read_card(str(tmp_path)).files == ("a.gguf",)
