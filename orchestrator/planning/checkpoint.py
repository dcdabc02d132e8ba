"""What vLLM and SGLang make of a checkpoint's files: what ends them at start is refused, what only makes them
serve worse is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.model_card.card import ModelCard
from orchestrator.model_card.safetensors import INDEX
from orchestrator.model_families.versions import at_least
from orchestrator.planning.findings import Finding
from orchestrator.planning.situation import Situation
from orchestrator.planning.words import count

_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
_OWN_TOKENIZER = {"vllm": "--tokenizer", "sglang": "--tokenizer-path"}
_NO_TOKENIZER = "--skip-tokenizer-init"
_OTHER_VALUES = ("--hf-overrides", "--hf-config-path", "--json-model-override-args", "--model-impl")
"""Flags by which other values come than config.json's, or other code than the class's."""


@cache
def _table() -> dict[str, Any]:
    import yaml

    text = Path(__file__).with_name("checkpoint_values.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return data


def findings(s: Situation) -> Iterator[Finding]:
    """What ends the engine at start, or makes it answer nonsense."""
    if s.inputs.installation.kind not in _NAMES:
        return
    yield from _files(s)
    newest = _table()["upto"][s.inputs.installation.kind]
    version = s.inputs.installation.version
    newer = at_least(version, newest) and not at_least(newest, version)
    if not newer and not _passes(s, *_OTHER_VALUES):
        yield from _values(s)


def words(card: ModelCard) -> list[str]:
    """What an engine starts on and serves worse by, and what cannot be judged here; a sentence each."""
    out = [f"{card.name} {flaw.what}" for flaw in card.flaws if not flaw.fatal]
    if card.missing_shards:
        out.append(f"{card.name}: {missing(card)}")
    return out


def missing(card: ModelCard) -> str:
    """That an index names shards and none of them is here."""
    shards = card.missing_shards
    shown = ", ".join(shards[:3]) + (f" and {len(shards) - 3} more" if len(shards) > 3 else "")
    return (
        f"{INDEX} names {count(len(shards), 'shard')} and none is here ({shown}): an incomplete download, or "
        "configuration files alone"
    )


def _passes(s: Situation, *flags: str) -> bool:
    """Whether engine_args hold one of these flags."""
    words = s.profile.engine_args[s.inputs.installation.kind]
    return any(word.partition("=")[0] in flags for word in words)


def _files(s: Situation) -> Iterator[Finding]:
    kind, card = s.inputs.installation.kind, s.card
    own = _OWN_TOKENIZER[kind]
    for flaw in card.flaws:
        if not flaw.fatal:
            continue
        if flaw.code == "weights_not_quantized":
            remedy = "take quantization_config out of its config.json, or give --model another checkpoint"
            yield Finding(flaw.code, f"{card.name} {flaw.what}", remedy)
        elif not _passes(s, own, _NO_TOKENIZER):
            yield Finding(
                flaw.code,
                f"{card.name} {flaw.what}, and {_NAMES[kind]} ends at start without a tokenizer",
                f"fetch the model's files again, or name a tokenizer by {own} in engine_args.{kind}",
            )


def _values(s: Situation) -> Iterator[Finding]:
    """Values of config.json that are of a closed list."""
    i, card, table = s.inputs.installation, s.card, _table()
    who = f"{_NAMES[i.kind]} {i.version}"
    other = "give --model another checkpoint, or correct its config.json where it is wrong"
    method = _method(card.quantization_config or {})
    if method and method not in table["quantization"][i.kind] and s.is_free("quantization"):
        yield Finding(
            "unknown_quantization",
            f"the config.json of {card.name} says quant_method: {method}, and {who} has no such quantization",
            "give --model a checkpoint in another format"
            + (f"; where a plugin brings it: --set quantization={method}" if i.kind == "vllm" else ""),
        )
    kind = card.architectures[0] if card.architectures else ""
    if kind in table["silu"] and card.activation not in (None, "silu"):
        yield Finding(
            "unknown_activation",
            f"the config.json of {card.name} says hidden_act: {card.activation}, and {who} computes {kind} "
            "with silu alone",
            other,
        )
    if kind not in table["rope"]["classes"]:
        return
    for name in _rope_types(card.rope_scaling or {}):
        if name not in table["rope"]["types"]:
            yield Finding(
                "unknown_rope",
                f"the config.json of {card.name} says rope_type: {name}, and {who} has no such RoPE",
                other,
            )


def _method(table: Mapping[str, Any]) -> str | None:
    """The quantization's name as both engines compare it; None where the name is made from other keys."""
    name = table.get("quant_method")
    if not isinstance(name, str) or "producer" in table:
        return None
    return name.lower().replace("compressed_tensors", "compressed-tensors")[:64] or None


def _rope_types(table: Mapping[str, Any]) -> list[str]:
    """Of all layers, or of each kind of layer."""
    each = [v for v in table.values() if isinstance(v, Mapping)] or [table]
    named = (t.get("rope_type", t.get("type")) for t in each)
    return list(dict.fromkeys(n[:64] for n in named if isinstance(n, str)))
