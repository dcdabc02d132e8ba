"""What llama-server would refuse at its start, or do differently without a word, found in a Plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from orchestrator.engines.base import Installation
from orchestrator.engines.llamacpp.render import NGRAM_METHODS, cache_type, cache_types, spec_method
from orchestrator.plan import Plan, Violation

CONTEXT_STEP_TOKENS = 256
"""llama_context rounds the whole context, and then each sequence's share of it, up to this."""

_UNQUANTISED = ("f32", "f16", "bf16")


def slot_context(ctx_size: int, slots: int, *, unified: bool, per_slot: int = 0) -> int:
    """Context in tokens that one slot gets out of `--ctx-size`, before the model's own limit.

    From llama_context's constructor in llama.cpp's src/llama-context.cpp: n_ctx is padded to 256; without
    a unified cache it is divided by the sequences and padded again. `--kv-unified-per-slot` caps it.
    """
    whole = _padded(ctx_size)
    each = whole if unified else _padded(whole // slots)
    return min(each, per_slot) if per_slot else each


def check(plan: Plan, installation: Installation) -> list[Violation]:
    """All at once; empty where llama-server would take the plan. `model.context_length` is what the engine
    will believe: the file's, or what `--override-kv` puts in its place."""
    if installation.extras.get("broken"):
        return []
    levers = {name: d.value for name, d in plan.levers.items()}
    found: list[Violation] = []
    found += _sizes(levers)
    found += _context(levers, plan.model, overrides=installation.flag("--override-kv") is not None)
    found += _cache(levers, installation)
    found += _speculation(levers.get("speculative"), plan.model)
    found += _template(levers.get("chat_template"))
    return found


def _padded(tokens: int) -> int:
    return -(-tokens // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS


def _sizes(levers: Mapping[str, Any]) -> list[Violation]:
    found = []
    for lever in ("max_num_seqs", "max_num_batched_tokens", "ubatch_tokens", "threads"):
        value = levers.get(lever)
        if value is not None and value < 1:
            found.append(
                Violation(
                    "below_one",
                    f"{lever} is {value}: llama.cpp needs at least 1",
                    f"use --set {lever}=1 or more, or leave it to the plan with --set {lever}=auto",
                )
            )
    batch, ubatch = levers.get("max_num_batched_tokens"), levers.get("ubatch_tokens")
    if batch is not None and ubatch is not None and ubatch > batch:
        found.append(
            Violation(
                "ubatch_above_batch",
                f"ubatch_tokens is {ubatch} and max_num_batched_tokens {batch}: "
                "the physical batch cannot hold more than the logical one, and is cut without a word",
                f"use --set ubatch_tokens={batch}, or --set max_num_batched_tokens={ubatch}",
            )
        )
    return found


def _context(levers: Mapping[str, Any], model: Mapping[str, Any], *, overrides: bool) -> list[Violation]:
    length, slots = levers.get("max_model_len"), levers.get("max_num_seqs") or 1
    found = []
    trained = model.get("context_length")
    if length and trained and length > trained:
        key = f"{model.get('architecture') or 'ARCHITECTURE'}.context_length"
        more = (
            "; where the model is known to hold more, "
            f"--set 'engine_args.llamacpp=[--override-kv, {key}=int:{length}]' says so"
        )
        found.append(
            Violation(
                "context_above_model",
                f"max_model_len is {length} tokens and the model has {trained}: "
                "llama.cpp cuts every slot to that, with RoPE scaling too",
                f"use --set max_model_len={trained}" + (more if overrides else ""),
            )
        )
    pool = levers.get("kv_cache_tokens")
    if levers.get("kv_unified") and pool is not None and length and pool < length:
        found.append(
            Violation(
                "pool_below_context",
                f"the unified KV pool holds {pool} tokens and one request may need {length}",
                f"use --set kv_cache_tokens={length} or more, or a smaller max_model_len",
            )
        )
    if length and slots * length >= 2**31:
        found.append(
            Violation(
                "context_too_large",
                f"max_num_seqs {slots} times max_model_len {length} is more than --ctx-size can say",
                "lower one of them",
            )
        )
    return found


def _cache(levers: Mapping[str, Any], installation: Installation) -> list[Violation]:
    kind = cache_type(levers.get("kv_cache_dtype"))
    if kind is None:
        return []
    allowed = cache_types(installation)
    if allowed and kind not in allowed:
        return [
            Violation(
                "kv_cache_dtype",
                f"kv_cache_dtype {levers['kv_cache_dtype']!r}: this llama.cpp ({installation.version}) "
                f"offers {', '.join(allowed)}",
                "choose one of those with --set kv_cache_dtype=TYPE (q8_0 is the 8-bit one)",
            )
        ]
    if kind not in _UNQUANTISED and levers.get("flash_attention") in ("off", False):
        return [
            Violation(
                "quantised_kv_needs_flash_attention",
                f"kv_cache_dtype {kind} quantises V, which llama.cpp does only with flash attention, "
                "and flash_attention is off",
                "use --set flash_attention=auto, or --set kv_cache_dtype=f16",
            )
        ]
    return []


def _speculation(value: Any, model: Mapping[str, Any]) -> list[Violation]:
    if not isinstance(value, Mapping):
        return []
    method = spec_method(value)
    if method in NGRAM_METHODS or method == "draft-mtp":
        return []
    draft = value.get("model")
    if not draft:
        return [
            Violation(
                "draft_model_missing",
                f"speculative.method {value.get('method')!r} drafts with a second model, and none is named",
                "use --set speculative='{method: draft, model: FILE.gguf}', or method: ngram-simple",
            )
        ]
    if not os.path.isfile(draft):
        return [
            Violation(
                "draft_model_missing",
                f"the draft model {draft} is not a file here",
                "correct speculative.model, or use --set speculative=off",
            )
        ]
    return []


def _template(value: Any) -> list[Violation]:
    if value in (None, "auto", "off", False) or os.path.isfile(value):
        return []
    return [
        Violation(
            "chat_template_missing",
            f"chat_template {value!r} is not a file here",
            "give the path of a jinja file, or leave it to the model with --set chat_template=auto",
        )
    ]
