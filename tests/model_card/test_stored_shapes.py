"""Tensors that disprove their config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import CONFIG, folder, safetensors

from orchestrator.errors import LlmserveError
from orchestrator.model_card import read_card

SHAPES = {"embed": (40, 64), "q": (64, 64), "k": (32, 64), "v": (32, 64)}


def model(path: Path, config: dict[str, Any], dtype: str = "BF16", **shapes: tuple[int, int]) -> str:
    """CONFIG's checkpoint, with changes: 4 heads of 16, 2 of them KV."""
    found = SHAPES | shapes
    tensors = {"model.embed_tokens.weight": found.pop("embed")}
    for layer in range(2):
        for part, shape in found.items():
            tensors[f"model.layers.{layer}.self_attn.{part}_proj.weight"] = shape
    size = {"BF16": 2, "U8": 1}[dtype]
    raw = safetensors({n: (dtype, list(s), s[0] * s[1] * size) for n, s in tensors.items()})
    (folder(path, config) / "model.safetensors").write_bytes(raw)
    return str(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 41}, "vocab_size is 41, and the stored embeddings have 40 rows"),
        ({"hidden_size": 128, "head_dim": 16}, "hidden_size is 128, and the stored embeddings are 64 wide"),
        (
            {"num_key_value_heads": 4},
            "num_key_value_heads is 4, of 4 heads, and the stored k_proj has 32 rows",
        ),
        (
            {"num_key_value_heads": 4, "head_dim": 16},
            "num_key_value_heads is 4, and the stored k_proj has 32",
        ),
        (
            {"num_attention_heads": 8, "head_dim": 16},
            "num_attention_heads is 8, and the stored q_proj has 64",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_figure_that_the_tensors_disprove_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(LlmserveError, match=r"config\.json cannot be right") as e:
        read_card(model(tmp_path, CONFIG | changes))
    assert said in e.value.message


@pytest.mark.parametrize(
    ("changes", "shapes"),
    [
        ({}, {}),
        # a padded vocabulary, an output gate, a head size that only the class knows
        ({}, {"embed": (64, 64)}),
        ({"head_dim": 16}, {"q": (128, 64)}),
        ({"head_dim": 16}, {"q": (68, 64)}),
        ({}, {"q": (128, 64), "k": (64, 64), "v": (64, 64)}),
        # values of another size, another model's embeddings, and families of another build
        ({"num_key_value_heads": 4}, {"v": (64, 64)}),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, {"embed": (40, 128)}),
        ({"num_key_value_heads": None}, {}),
        ({"num_key_value_heads": 4, "block_configs": [{}]}, {}),
    ],
)
def test_what_can_be_right_is_left(
    tmp_path: Path, changes: dict[str, Any], shapes: dict[str, tuple[int, int]]
) -> None:
    assert read_card(model(tmp_path, CONFIG | changes, **shapes)).format == "safetensors"


def test_packed_tensors_are_not_judged(tmp_path: Path) -> None:
    packed = CONFIG | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    assert read_card(model(tmp_path, packed, "U8", embed=(20, 64), k=(16, 64), v=(16, 64))).kv_heads == 2


def test_a_ranks_part_is_not_judged(tmp_path: Path) -> None:
    path = Path(model(tmp_path, CONFIG, embed=(20, 64)))
    with pytest.raises(LlmserveError, match="have 20 rows"):
        read_card(str(path))
    (path / "model.safetensors").rename(path / "model-rank-0-part-0.safetensors")
    assert read_card(str(path)).vocab_size == 40
