"""The model card: the facts that planning needs, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class HybridState:
    """Sizes of the recurrent state of a hybrid's linear layers (gated delta net, Mamba).

    `layers` are those that hold a state; `state_bytes_per_layer` is one sequence's state of one layer,
    None where no rule is known for the architecture. It is `matrix_bytes` (the recurrent matrix) and
    `column_bytes` for each of `conv_kernel` - 1 columns of the convolution, as a safetensors checkpoint is
    kept by vLLM and SGLang; both None for GGUF. `kind` is "delta", "kda" or "mamba".
    """

    layers: int
    state_bytes_per_layer: int | None
    key_heads: int | None = None
    value_heads: int | None = None
    key_head_dim: int | None = None
    value_head_dim: int | None = None
    conv_kernel: int | None = None
    kind: str | None = None
    matrix_bytes: int | None = None
    column_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with a checkpoint's small files, said of the model ("holds no tokenizer"). `fatal`: vLLM
    and SGLang end at start by it."""

    code: str
    what: str
    fatal: bool


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A checkpoint's facts. Sizes in bytes or tokens; None means the checkpoint does not say.

    `kv_heads` is the largest over the layers; `kv_heads_per_layer` is given where layers differ (0 = no
    attention in that layer). `sliding_layers[i]` is True where layer i sees only `sliding_window` tokens.
    `weights_bytes` is what is stored; `weights_estimated` is True where it was computed from a config alone.
    `head_dim_per_layer` is given where the head size differs too. A layer that shares another's KV counts 0
    kv heads.
    `architectures` are the Hugging Face class names, `model_type` its name in transformers (both empty for
    GGUF); `quantization_config` is the checkpoint's own, without its long lists; `rope_scaling` likewise.
    `intermediate_size` is a dense layer's feed-forward, `moe_intermediate_size` one expert's;
    `shared_experts` counts experts that every token visits. `expert_layers[i]` is True where layer i has
    experts, None where there are none or the checkpoint does not say.
    `weight_groups` are stored bytes by what the tensor is (`weight_groups.GROUPS`), empty where unknown; a
    model with tied embeddings has no "lm_head". `needs_remote_code`: transformers does not know the model and
    would run code of the repository. `index_head_dim` is the size of a sparse-attention index key;
    `compressed_attention` is True where KV is not linear in length. `class_known` False: neither class nor
    model type is known here, and the figures follow common keys. `generates` False: the model answers with
    vectors or classes, not with text.
    `path` is the local absolute path (file or folder), None for a hub id that is not on this machine.
    """

    source: str
    name: str
    path: str | None
    format: Literal["gguf", "safetensors", "config"]
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    context_length: int
    weights_bytes: int
    weights_estimated: bool = False
    value_head_dim: int | None = None
    kv_heads_per_layer: tuple[int, ...] | None = None
    head_dim_per_layer: tuple[int, ...] | None = None
    parameters: int | None = None
    quantization: str | None = None
    dtype: str | None = None
    chat_template: bool = False
    mla_kv_lora_rank: int | None = None
    mla_qk_rope_head_dim: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] | None = None
    hybrid: HybridState | None = None
    mtp_layers: int = 0
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    model_type: str | None = None
    quantization_config: Mapping[str, Any] | None = field(default=None, hash=False)
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    intermediate_size: int | None = None
    moe_intermediate_size: int | None = None
    shared_experts: int = 0
    expert_layers: tuple[bool, ...] | None = None
    tied_embeddings: bool = False
    needs_remote_code: bool = False
    multimodal: bool = False
    encoder_decoder: bool = False
    index_head_dim: int | None = None
    compressed_attention: bool = False
    class_known: bool = True
    generates: bool = True
    weight_groups: Mapping[str, int] = field(default_factory=dict, hash=False)
    activation: str | None = None
    missing_shards: tuple[str, ...] = ()
    flaws: tuple[Flaw, ...] = ()
