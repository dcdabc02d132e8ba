"""What is wrong beside the weights: shards, tokenizers, generation settings, names that contradict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import CONFIG, folder

from orchestrator.errors import LlmserveError
from orchestrator.model_card import read_card
from orchestrator.model_card.huggingface import card_of

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def flaws(path: Path, config: dict[str, Any] = CONFIG, **files: str) -> dict[str, bool]:
    """Of a folder with these files beside its weights: code, and whether it is fatal."""
    folder(path, config)
    (path / "chat_template.jinja").write_text("{{ messages }}")
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return {f.code: f.fatal for f in read_card(str(path)).flaws}


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    said = r"model\.safetensors\.index\.json names 3 shards, and model-00002-of-00003\.safetensors is missing"
    with pytest.raises(LlmserveError, match=said) as e:
        read_card(str(tmp_path))
    assert "fetch it again" in e.value.remedy
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(LlmserveError, match=r"00002\S+ and \S+00003-of\S+ are missing"):
        read_card(str(tmp_path))
    # configuration files alone can be planned, and which shards are not there is known
    (tmp_path / "model-00001-of-00003.safetensors").unlink()
    c = read_card(str(tmp_path))
    assert c.format == "config"
    assert len(c.missing_shards) == 3


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer__json": '\n{"model": {}}\n'},
        {"tokenizer__model": "\n\x0e"},
        {"vocab__json": "{}", "merges__txt": "a b"},
        {"qwen__tiktoken": "IQ== 0"},
        {"tekken__json": "{}", "tokenizer__json": POINTER},
        {
            "tokenizer_config__json": json.dumps(
                {"auto_map": {"AutoTokenizer": ["tokenization_x.XTok", None]}}
            )
        },
    ],
    ids=lambda f: " ".join(f),
)
def test_a_tokenizer_of_any_kind_is_enough(tmp_path: Path, files: dict[str, str]) -> None:
    assert flaws(tmp_path, **files) == {}


def test_a_folder_without_a_tokenizer_has_a_flaw(tmp_path: Path) -> None:
    assert flaws(tmp_path) == {"no_tokenizer": True}


@pytest.mark.parametrize("text", ["garbage", "", POINTER, '{"model": {"vocab": {"a": 1'])
def test_a_damaged_tokenizer_is_a_flaw(tmp_path: Path, text: str) -> None:
    assert flaws(tmp_path, tokenizer__json=text) == {"tokenizer_damaged": True}


def test_only_the_ends_of_a_tokenizer_are_read(tmp_path: Path) -> None:
    large = folder(tmp_path) / "tokenizer.json"
    with large.open("wb") as f:
        f.write(b"{")
        f.seek(1 << 36)
        f.write(b"}")
    assert read_card(str(tmp_path)).flaws == ()


def test_generation_settings_that_are_no_json_are_a_flaw_that_is_not_fatal(tmp_path: Path) -> None:
    assert flaws(tmp_path, tokenizer__json="{}", generation_config__json="{oops") == {
        "generation_config": False
    }
    assert flaws(tmp_path / "b", tokenizer__json="{}", generation_config__json="{}") == {}


def test_a_model_without_a_chat_template_has_a_flaw_that_is_not_fatal(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    found = read_card(str(tmp_path)).flaws
    assert [(f.code, f.fatal) for f in found] == [("no_chat_template", False)]
    (tmp_path / "tokenizer.json").rename(tmp_path / "tekken.json")
    assert read_card(str(tmp_path)).flaws == ()


def test_plain_tensors_that_are_called_fp8_are_a_flaw(tmp_path: Path) -> None:
    said = CONFIG | {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    assert flaws(tmp_path, said, tokenizer__json="{}") == {"weights_not_quantized": True}
    # compressed-tensors may quantize the KV cache alone
    said = CONFIG | {"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": {}}}
    assert flaws(tmp_path / "b", said, tokenizer__json="{}") == {}


@pytest.mark.parametrize(
    ("name", "changes", "codes"),
    [
        ("Llama-3.3-70B-Instruct-FP8", {}, ["called_quantized"]),
        ("nvidia/Qwen3-8B-NVFP4", {}, ["called_quantized"]),
        ("Qwen3-8B-FP8", {"quantization_config": {"quant_method": "fp8"}}, []),
        ("Llama-3.3-70B-Instruct", {}, []),
        ("m", {"architectures": ["FooForCausalLM"]}, ["unknown_class"]),
        ("m", {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3"}, []),
    ],
)
def test_a_configuration_alone_can_have_flaws_that_are_not_fatal(
    name: str, changes: dict[str, Any], codes: list[str]
) -> None:
    found = card_of(CONFIG | changes, source=name, name=name, path=None).flaws
    assert [f.code for f in found] == codes
    assert not any(f.fatal for f in found)


def test_modelopts_file_beside_it_says_how_it_is_quantized() -> None:
    beside = {"quantization": {"quant_algo": "NVFP4"}}
    assert card_of(CONFIG, source="s", name="m-NVFP4", path=None, beside=beside).flaws == ()


@pytest.mark.parametrize(
    ("model_type", "tokenizer", "needed"),
    [
        ("llama", {"auto_map": {"AutoTokenizer": ["t.XTok", None]}, "tokenizer_class": "XTok"}, True),
        ("llama", {"auto_map": ["t.XTok", None], "tokenizer_class": "XTok"}, True),
        # transformers has the class, or a tokenizer for the model type
        (
            "llama",
            {"auto_map": {"AutoTokenizer": ["t.X", None]}, "tokenizer_class": "LlamaTokenizerFast"},
            False,
        ),
        ("qwen2", {"auto_map": {"AutoTokenizer": ["t.X", None]}, "tokenizer_class": "XTok"}, False),
        ("llama", {"auto_map": {"AutoProcessor": "p.P"}, "tokenizer_class": "XTok"}, False),
        ("llama", {"tokenizer_class": "XTok"}, False),
    ],
)
def test_a_tokenizer_of_the_repository_needs_consent(
    tmp_path: Path, model_type: str, tokenizer: dict[str, Any], needed: bool
) -> None:
    folder(tmp_path, CONFIG | {"model_type": model_type})
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert read_card(str(tmp_path)).needs_remote_code is needed


def test_an_auto_map_for_a_model_that_transformers_has_runs_no_code() -> None:
    mapped = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XLM"}
    assert not card_of(CONFIG | {"auto_map": mapped}, source="s", name="m", path=None).needs_remote_code
