"""The model card: the facts that planning needs, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class HybridState:
    """Sizes of the recurrent state of a hybrid's linear layers (gated delta net, Mamba).

    `layers` are those that hold a state; `state_bytes_per_layer` is one sequence's state of one layer,
    None where no rule is known for the architecture.
    """

    layers: int
    state_bytes_per_layer: int | None
    key_heads: int | None = None
    value_heads: int | None = None
    key_head_dim: int | None = None
    value_head_dim: int | None = None
    conv_kernel: int | None = None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A checkpoint's facts. Sizes in bytes or tokens; None means the checkpoint does not say.

    `kv_heads` is the largest over the layers; `kv_heads_per_layer` is given where layers differ (0 = no
    attention in that layer). `sliding_layers[i]` is True where layer i sees only `sliding_window` tokens.
    `weights_bytes` is what is stored; `weights_estimated` is True where it was computed from a config alone.
    `head_dim_per_layer` is given where the head size differs too. A layer that shares another's KV counts 0
    kv heads.
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
