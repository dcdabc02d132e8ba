"""From a Hugging Face folder's config.json and safetensors headers to a model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.errors import LlmserveError
from orchestrator.model_card import estimate, flaws, identity, safetensors, stored_shapes, weight_groups
from orchestrator.model_card.card import HybridState, ModelCard
from orchestrator.model_card.config import Config, Layers, layers_of, number_in
from orchestrator.model_card.quantization import dtype_bytes, quantization_of
from orchestrator.model_card.reading import Damaged, NotKnown, read_json, unreadable
from orchestrator.model_card.safetensors import SafetensorsHeader

MAX_CONFIG_BYTES = 16 << 20
MAX_TOKENIZER_CONFIG_BYTES = 64 << 20
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
MAX_CONTEXT_TOKENS = 2**31 - 1
"""The largest context that an engine's whole number holds."""
_FULL_TYPES = {"F64", "F32", "F16", "BF16"}


def read_folder(folder: Path, source: str, name: str) -> ModelCard:
    """The card of a folder with a config.json; format "config" where it holds no weights.

    Raises LlmserveError (`model_unreadable`) where a file is damaged or a shard is missing.
    """
    config = read_json(folder / "config.json", MAX_CONFIG_BYTES)
    beside: dict[str, Any] = {}
    if (folder / "hf_quant_config.json").exists():
        beside = read_json(folder / "hf_quant_config.json", MAX_CONFIG_BYTES)
    names = sorted(p.name for p in folder.iterdir())
    files, header = safetensors.read_folder(folder, names)
    tokenizer: dict[str, Any] = {}
    if (folder / "tokenizer_config.json").exists():
        tokenizer = read_json(folder / "tokenizer_config.json", MAX_TOKENIZER_CONFIG_BYTES)
    template = any((folder / f).exists() for f in TEMPLATE_FILES) or has_template(tokenizer)
    try:
        card = card_of(
            config,
            source=source,
            name=name,
            path=str(folder.absolute()),
            chat_template=template,
            tokenizer=tokenizer,
            beside=beside,
            files=files if header else [],
            header=header,
        )
    except Damaged as e:
        raise of_config(str(folder / "config.json"), config, e) from None
    if header is None:
        return replace(card, missing_shards=tuple(files))
    beside_weights = flaws.of_folder(folder, names, tokenizer, template=template)
    return replace(card, flaws=(*card.flaws, *beside_weights))


def of_config(name: str, config: Mapping[str, Any], e: Damaged) -> LlmserveError:
    """The refusal of a configuration: of an architecture that is not known here, or damaged (exit 3)."""
    if not isinstance(e, NotKnown):
        return unreadable(name, str(e))
    named = config.get("architectures")
    kind = named[0] if isinstance(named, list) and named else config.get("model_type")
    if not kind:
        return unreadable(name, f"describes no model: it {e}", "give the folder of a language model")
    what = f"describes {str(kind)[:128]}, an architecture that is not known here (it {e})"
    return unreadable(name, what, "llmserve plans language models of decoders: give another model")


def has_template(tokenizer_config: Mapping[str, Any]) -> bool:
    """Whether a tokenizer_config.json carries a chat template."""
    return bool(tokenizer_config.get("chat_template"))


def card_of(
    config: Mapping[str, Any],
    *,
    source: str,
    name: str,
    path: str | None,
    chat_template: bool = False,
    tokenizer: Mapping[str, Any] | None = None,
    beside: Mapping[str, Any] | None = None,
    files: list[str] | None = None,
    header: SafetensorsHeader | None = None,
) -> ModelCard:
    """config.json (and, where there are weights, their headers) to a card. Raises Damaged.

    `beside` is ModelOpt's hf_quant_config.json. `tokenizer` its tokenizer_config.json. Without a header the
    weights are estimated.
    """
    c = Config(config)
    layers = layers_of(c)
    count = len(layers.mixers)
    if header is not None and header.layers and count > header.layers:
        raise c.wrong("layers", f"and {header.layers} of its layers have tensors")
    heads = c.fact("heads", least=1, most=1 << 16)
    kv = _kv_heads(c, layers, heads)
    if header is not None:
        stored_shapes.check(c, layers, heads, kv, header.shapes)
    hidden = c.fact("hidden", least=1)
    rank = c.whole("kv_lora_rank")
    head_dim = estimate.head_dim_of(c, heads)
    value_dim = c.whole("v_head_dim") or head_dim
    if rank:
        head_dim = c.whole("qk_nope_head_dim") + c.whole("qk_rope_head_dim")
    if min(head_dim, max(kv)) < 1 and not all(m in ("mamba", "none") for m in layers.mixers):
        raise Damaged(f"cannot be right: {max(kv)} KV heads of size {head_dim}")
    wide = c.whole("global_head_dim")
    dims = (
        tuple(wide if m == "full" else head_dim for m in layers.mixers) if wide not in (0, head_dim) else None
    )
    dtype = _dtype(c)
    plain = dtype_bytes(dtype)
    quantization = quantization_of(c, _modelopt(beside or {}), plain)
    parameters = estimate.parameters_of(c, layers, heads, kv)
    counted: int | None = parameters.total()
    if header is not None and quantization.name is None and set(header.elements) <= _FULL_TYPES:
        counted = sum(header.elements.values())
    slides = tuple(m == "sliding" for m in layers.mixers)
    experts = c.fact("experts", 0)
    groups = estimate.weight_groups_of(parameters, quantization, plain)
    if header is not None and header.groups:
        query = sum(heads * head_dim for m in layers.mixers if m in ("full", "sliding"))
        groups = weight_groups.collected(
            header.groups, count, query=query, kv=sum(kv) * (head_dim + value_dim)
        )
    return ModelCard(
        source=source,
        name=name,
        path=path,
        format="config" if header is None else "safetensors",
        architecture=_architecture(c),
        layers=count,
        heads=heads,
        kv_heads=max(kv),
        kv_heads_per_layer=kv if len(set(kv)) > 1 else None,
        head_dim=head_dim,
        value_head_dim=value_dim,
        head_dim_per_layer=dims,
        hidden_size=hidden,
        vocab_size=c.fact("vocabulary", least=1),
        context_length=_context(c),
        weights_bytes=(
            header.data_bytes if header else estimate.weights_bytes_of(parameters, quantization, plain)
        ),
        weights_estimated=header is None,
        parameters=counted,
        quantization=quantization.name,
        dtype=dtype,
        chat_template=chat_template,
        mla_kv_lora_rank=rank or None,
        mla_qk_rope_head_dim=c.whole("qk_rope_head_dim") if rank else None,
        experts=experts or None,
        experts_per_token=(c.fact("experts_per_token", 0) or None) if experts else None,
        sliding_window=layers.window,
        sliding_layers=slides if any(slides) else None,
        hybrid=_hybrid(c, layers, plain),
        mtp_layers=c.fact("mtp", 0),
        files=tuple(files or ()),
        notes=_notes(c),
        expert_layers=tuple(f == "experts" for f in layers.feeds) if experts else None,
        tied_embeddings=estimate.tied(c) and "lm_head" not in groups,
        weight_groups=groups,
        flaws=flaws.of_config(c, name, quantization.name, header.elements if header else None),
        **identity.of(c, beside or {}, tokenizer or {}),
    )


def _kv_heads(c: Config, layers: Layers, heads: int) -> tuple[int, ...]:
    """KV heads of each layer, 0 where it keeps none."""
    count = len(layers.mixers)
    named = c.named("kv_heads")
    attention = c.table("attn_config")
    if isinstance(named, list):
        if len(named) < count or any(type(n) is not int or not 0 <= n <= 1 << 16 for n in named):
            raise Damaged("gives KV heads for layers it does not have")
        each = list(named[:count])
    else:
        one = c.fact("kv_heads", 0, most=1 << 16) or number_in(attention, "kv_n_heads")
        if named is not None and (not one or heads % one):
            raise c.wrong("kv_heads", f"which does not divide {heads} heads")
        if c.text.get("multi_query") is True and not c.text.get("new_decoder_architecture"):
            one = 1
        elif c.text.get("multi_query_attention") is True:
            one = c.whole("multi_query_group_num", 1)
        each = [one or heads] * count
    sliding = c.whole("swa_num_key_value_heads")
    full = c.whole("num_global_key_value_heads")
    shared = c.whole("num_kv_shared_layers")
    out = []
    for i, mixer in enumerate(layers.mixers):
        n = {"sliding": sliding or each[i], "full": full or each[i]}.get(mixer, 0)
        out.append(0 if i >= count - shared and shared < count else n)
    return tuple(out)


def _hybrid(c: Config, layers: Layers, plain_bytes: int) -> HybridState | None:
    """One sequence's state of one layer: the recurrent matrix in its own dtype, and the last columns of the
    convolution in the model's (vLLM's MambaStateShapeCalculator)."""
    held = [m for m in layers.mixers if m in ("delta", "kda", "mamba")]
    if not held:
        return None
    own = c.get("mamba_ssm_cache_dtype") or c.get("mamba_ssm_dtype")
    state_bytes = dtype_bytes(own) if isinstance(own, str) else plain_bytes
    if held[0] == "delta":
        keys, values = c.whole("linear_num_key_heads"), c.whole("linear_num_value_heads")
        key_dim, value_dim = c.whole("linear_key_head_dim"), c.whole("linear_value_head_dim")
        kernel = c.whole("linear_conv_kernel_dim", 4)
        conv = (2 * keys * key_dim + values * value_dim) * (kernel - 1)
        size = values * key_dim * value_dim * state_bytes + conv * plain_bytes
        matrix = values * key_dim * value_dim * state_bytes
        return HybridState(
            len(held),
            size or None,
            keys,
            values,
            key_dim,
            value_dim,
            kernel,
            kind="delta",
            matrix_bytes=matrix or None,
            column_bytes=conv // max(1, kernel - 1) * plain_bytes,
        )
    if held[0] == "kda":
        table = c.table("linear_attn_config")
        heads, dim = number_in(table, "num_heads"), number_in(table, "head_dim")
        kernel = number_in(table, "short_conv_kernel_size", 4)
        size = heads * dim * dim * 4 + 3 * heads * dim * (kernel - 1) * plain_bytes
        return HybridState(
            len(held),
            size or None,
            heads,
            heads,
            dim,
            dim,
            kernel,
            kind="kda",
            matrix_bytes=heads * dim * dim * 4 or None,
            column_bytes=3 * heads * dim * plain_bytes,
        )
    inner, groups, state, heads = estimate.mamba_sizes(c)
    kernel = c.whole("conv_kernel") or c.whole("mamba_d_conv", 4)
    size = inner * state * state_bytes + (inner + 2 * groups * state) * (kernel - 1) * plain_bytes
    head = inner // heads if heads else None
    return HybridState(
        len(held),
        size or None,
        groups or None,
        heads or None,
        state,
        head,
        kernel,
        kind="mamba",
        matrix_bytes=inner * state * state_bytes or None,
        column_bytes=(inner + 2 * groups * state) * plain_bytes,
    )


def _context(c: Config) -> int:
    """Tokens, after YaRN or linear scaling as vLLM derives it: original length x factor."""
    stated = c.fact("context", least=1, most=MAX_CONTEXT_TOKENS)
    rope = c.table("rope_scaling") or c.table("rope_parameters")
    nested = rope.get("full_attention")
    if isinstance(nested, dict):
        rope = nested
    kind = rope.get("rope_type") or rope.get("type")
    factor = rope.get("factor")
    if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 1 <= factor <= 4096:
        return stated
    if kind == "yarn":
        stated = int(number_in(rope, "original_max_position_embeddings", stated) * factor)
    elif kind in ("linear", "dynamic") and "gemma3" not in c.model_type:
        stated = int(stated * factor)
    if not 1 <= stated <= MAX_CONTEXT_TOKENS:
        raise c.wrong("context", f"and RoPE scaling by {factor:g} makes {stated:,} tokens of it")
    return stated


def _dtype(c: Config) -> str | None:
    value = c.get("dtype") or c.get("torch_dtype")
    return value.removeprefix("torch.")[:32] if isinstance(value, str) else None


def _architecture(c: Config) -> str:
    for config in (c.outer, c.text):
        named = config.get("architectures")
        if isinstance(named, list) and named and isinstance(named[0], str):
            return named[0][:128]
    if c.model_type:
        return c.model_type
    raise Damaged("names neither architectures nor a model_type")


def _modelopt(beside: Mapping[str, Any]) -> Mapping[str, Any]:
    table = beside.get("quantization")
    return table if isinstance(table, dict) else {}


def _notes(c: Config) -> tuple[str, ...]:
    notes = []
    if c.text.get("compress_ratios"):
        notes.append("compressed attention: KV is not linear in length, and no rule for it is known")
    elif c.whole("index_n_heads") or c.table("sparse_attention_config"):
        notes.append("sparse attention: its index keys are cached beside the KV")
    if c.whole("num_kv_shared_layers"):
        notes.append(f"the last {c.whole('num_kv_shared_layers')} layers share the KV of earlier ones")
    if c.table("vision_config"):
        notes.append("takes images too; the estimate of its vision part is rough")
    return tuple(notes)
