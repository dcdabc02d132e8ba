"""What kind of model a config.json describes: classes, modalities, whether its code must be trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.model_card.config import Config, classes, tables

_OTHER_SENSES = (
    "vision_config",
    "visual",
    "audio_config",
    "vision_tower",
    "mm_vision_tower",
    "image_token_id",
    "image_token_index",
    "img_processor",
    "audio_processor",
)
_MAX_SMALL_BYTES = 2048


def of(c: Config, beside: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """The card's fields on identity, by name. `beside` is ModelOpt's hf_quant_config.json, `tokenizer` its
    tokenizer_config.json."""
    experts = c.fact("experts", 0)
    wide = c.fact("feed_forward", 0)
    shared = 0
    if experts:
        shared = c.fact("shared_experts", 0) or int(
            bool(c.fact("shared_feed_forward", 0)) or c.model_type.startswith("llama4")
        )
    kinds = {c.model_type, str(c.outer.get("model_type"))}
    return {
        "architectures": _architectures(c),
        "model_type": str(c.outer.get("model_type") or c.model_type)[:64] or None,
        "quantization_config": _quantization(c, beside),
        "rope_scaling": _rope(c),
        "intermediate_size": c.fact("dense_feed_forward", 0) or wide or None,
        "moe_intermediate_size": (c.fact("expert_feed_forward", 0) or wide or None) if experts else None,
        "shared_experts": shared,
        "needs_remote_code": _runs_code(c) or _runs_tokenizer(c, tokenizer),
        "multimodal": any(c.outer.get(k) is not None for k in _OTHER_SENSES),
        "encoder_decoder": c.get("is_encoder_decoder") is True
        or bool(kinds & set(tables()["encoder_decoder"])),
        "class_known": _known(c),
        "generates": _generates(c),
        "index_head_dim": c.whole("index_head_dim") or None,
        "compressed_attention": bool(c.text.get("compress_ratios")),
        "activation": _activation(c),
    }


def _architectures(c: Config) -> tuple[str, ...]:
    for config in (c.outer, c.text):
        named = config.get("architectures")
        if isinstance(named, list):
            return tuple(n[:128] for n in named[:8] if isinstance(n, str))
    return ()


def _known(c: Config) -> bool:
    """Whether the class or the model type is one that an engine or transformers has."""
    own = {c.model_type, str(c.outer.get("model_type") or "")}
    # engines have few models with an encoder beside the decoder, and only by their class
    two_part = c.get("is_encoder_decoder") is True or bool(own & set(tables()["encoder_decoder"]))
    if not two_part and own & (classes()["model_types"] | set(tables()["native_despite_auto_map"])):
        return True
    return any(a in classes()["generators"] for a in _architectures(c))


def _generates(c: Config) -> bool:
    """Whether the class answers in text, by its name as vLLM takes it; the model type where none is named."""
    named = _architectures(c)
    if not named:
        return c.model_type not in tables()["encoders"]
    if any(a in classes()["generators"] or a.endswith(tuple(tables()["generator_endings"])) for a in named):
        return True
    return not all(a.endswith(tuple(tables()["other_endings"])) for a in named)


def _runs_code(c: Config) -> bool:
    """transformers asks to run a repository's code where auto_map names a configuration class and it has
    none of its own for the model type (dynamic_module_utils.resolve_trust_remote_code); nothing else can
    load a model whose class is not known here."""
    mapped = c.outer.get("auto_map")
    if not isinstance(mapped, dict):
        return False
    if "AutoConfig" in mapped and str(c.outer.get("model_type")) not in tables()["native_despite_auto_map"]:
        return True
    return any(str(name).startswith("AutoModel") for name in mapped) and not _known(c)


def _runs_tokenizer(c: Config, tokenizer: Mapping[str, Any]) -> bool:
    """transformers asks to run a repository's tokenizer where it has none of its own for the model type and
    does not know the tokenizer's class either (5.19.0 models/auto/tokenization_auto.py from_pretrained)."""
    mapped = tokenizer.get("auto_map")
    if not (mapped.get("AutoTokenizer") if isinstance(mapped, dict) else mapped):
        return False
    if str(c.outer.get("model_type")) in classes()["tokenizer_types"]:
        return False
    return str(tokenizer.get("tokenizer_class")).removesuffix("Fast") not in classes()["tokenizers"]


def _activation(c: Config) -> str | None:
    keys = ("hidden_act", "hidden_activation", "activation_function")
    named = next((c.text.get(key) for key in keys if c.text.get(key) is not None), None)
    return named[:64] if isinstance(named, str) else None


def _quantization(c: Config, beside: Mapping[str, Any]) -> dict[str, Any] | None:
    table = c.table("quantization_config") or c.table("compression_config")
    own = beside.get("quantization")
    if not table and isinstance(own, dict):
        table = {"quant_method": "modelopt"} | own
    return {k: v for k, v in table.items() if _small(v)} or None


def _rope(c: Config) -> dict[str, Any] | None:
    table = c.table("rope_scaling") or c.table("rope_parameters")
    return {k: v for k, v in table.items() if _small(v)} or None


def _small(value: Any) -> bool:
    try:
        return len(json.dumps(value)) <= _MAX_SMALL_BYTES
    except (TypeError, ValueError, RecursionError):
        return False
