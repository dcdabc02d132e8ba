"""Rules of speculative decoding: the method, its draft, its tokens, and what it does not go with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.engines.vllm.checks.settings import SPEC_FLAGS, Settings, numbers, rules
from orchestrator.plan import Violation

_NGRAM = "use --set 'speculative={method: ngram, num_tokens: 4}', or --set speculative=off"


def check(s: Settings) -> list[Violation]:
    """SpeculativeConfig's checks and the rest's with it (vLLM 0.33.0 vllm/config/speculative.py:1292-2055,
    vllm/config/vllm.py:2350-2377, vllm/engine/arg_utils.py:2108-2121, 2712-2724)."""
    spec = s.speculation
    if spec is None:
        if s.text("--per-request-spec-decode-metrics") not in (None, "none"):
            return [
                Violation(
                    "metrics_without_speculation",
                    "--per-request-spec-decode-metrics needs speculation",
                    f"{_NGRAM.partition(', or')[0]}, or take the flag out",
                )
            ]
        return []
    return [
        *_twice(s),
        *_keys(s, spec),
        *_method(s, spec),
        *_tokens(s, spec),
        *_draft(s, spec),
        *_room(s, spec),
        *_options(spec),
        *_rejection(s, spec),
        *_fast_prefill(s, spec),
    ]


def _twice(s: Settings) -> list[Violation]:
    whole = s.json("--speculative-config")
    return [
        Violation(
            "speculation_twice",
            f"{flag} and {key} of --speculative-config say the same",
            f"take {flag} out of engine_args",
        )
        for flag, key in SPEC_FLAGS.items()
        if s.given(flag) and key in {k.replace("-", "_") for k in whole}
    ]


def _keys(s: Settings, spec: Mapping[str, Any]) -> list[Violation]:
    found = []
    known = s.installation.extras.get("spec_keys") or ()
    if spec.get("tensor_parallel_size") is not None:
        found.append(
            Violation(
                "draft_tensor_key",
                "tensor_parallel_size in --speculative-config is called draft_tensor_parallel_size",
                "rename it",
            )
        )
    strange = [k for k in spec if known and k not in known]
    if strange:
        found.append(
            Violation(
                "speculation_key",
                f"vLLM {s.installation.version} knows no {', '.join(strange)} in --speculative-config",
                "take it out",
            )
        )
    return found


def _method(s: Settings, spec: Mapping[str, Any]) -> list[Violation]:
    table, method = rules()["speculative"], spec.get("method")
    if method is None:
        return []
    offered = s.installation.extras.get("spec_methods") or ()
    gone = table["removed"].get(method)
    absent = method not in offered if offered else (gone is not None and s.version >= numbers(gone))
    if absent:
        return [
            Violation(
                "speculation_method",
                f"vLLM {s.installation.version} has no speculation by {method}"
                + (f": it went with {gone}" if gone else f" (it has {', '.join(offered)})"),
                _NGRAM,
            )
        ]
    if (
        method == "suffix"
        and (s.installation.extras.get("dependencies") or {}).get("arctic-inference", "") is None
    ):
        return [
            Violation(
                "suffix_needs_arctic",
                "speculation by suffix needs the package arctic-inference, which vLLM's environment lacks",
                f"install arctic-inference==0.1.1 into the engine's environment, or {_NGRAM}",
            )
        ]
    predicts = s.model.get("mtp_layers")
    if method.endswith("mtp") and not spec.get("model") and "mtp_layers" in s.model and not predicts:
        return [
            Violation(
                "no_predicting_layers",
                f"the model has no layers that predict ahead (MTP), which {method} drafts with",
                _NGRAM,
            )
        ]
    return []


def _tokens(s: Settings, spec: Mapping[str, Any]) -> list[Violation]:
    method, tokens = spec.get("method"), spec.get("num_speculative_tokens")
    found = []
    if isinstance(tokens, str) and tokens.strip().isdigit():
        # JSON's text of a number is one to vLLM
        tokens = int(tokens)
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        found.append(
            Violation(
                "speculation_tokens",
                f"num_speculative_tokens is {tokens}, and must be 1 or more",
                "use 3 to 5",
            )
        )
    if tokens is None and _needs_tokens(spec):
        by = f" by {method}" if method else f" with {spec.get('model')}"
        found.append(
            Violation(
                "speculation_tokens_missing",
                f"speculation{by} does not say how many tokens it drafts",
                "add num_tokens to speculative (3 to 5)",
            )
        )
    own = s.model.get("mtp_layers")
    if (
        method in ("mtp", "deepseek_mtp")
        and isinstance(own, int)
        and isinstance(tokens, int)
        and own > 1
        and tokens > own
        and tokens % own
    ):
        found.append(
            Violation(
                "speculation_tokens_multiple",
                f"the model predicts {own} tokens ahead, and num_speculative_tokens {tokens} is no multiple",
                f"use num_tokens {tokens // own * own} or {own}",
            )
        )
    low, high = spec.get("prompt_lookup_min"), spec.get("prompt_lookup_max")
    for name, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
        if isinstance(value, int) and value < 1:
            found.append(
                Violation("lookup_below_one", f"{name} is {value}, and must be 1 or more", f"correct {name}")
            )
    if isinstance(low, int) and isinstance(high, int) and low > high:
        found.append(
            Violation(
                "lookup_bounds",
                f"prompt_lookup_min {low} is more than prompt_lookup_max {high}",
                f"use a minimum of {high} or less",
            )
        )
    return found


def _needs_tokens(spec: Mapping[str, Any]) -> bool:
    """Whether the number of tokens must be said. Some draft models have one of their own, `own_tokens`, and
    are known by their method or name; suffix decoding always has (vLLM 0.32.0
    vllm/config/speculative.py:1147, 1480-1507, 1819)."""
    table, method, draft = rules()["speculative"], spec.get("method"), spec.get("model")
    if method == "suffix" or (method is None and not draft):
        return False
    if not draft or method in table["drafts_without"]:
        return True
    return method is None and not any(word in str(draft).lower() for word in table["own_tokens"])


def _draft(s: Settings, spec: Mapping[str, Any]) -> list[Violation]:
    table, method, found = rules()["speculative"], spec.get("method"), []
    if not spec.get("model") and (method in table["drafted"] or method is None):
        said = f"speculation by {method}" if method else "speculation without a method"
        found.append(
            Violation("draft_missing", f"{said} drafts with a second model, and none is named", _NGRAM)
        )
    size, tensor = spec.get("draft_tensor_parallel_size"), s.count("--tensor-parallel-size")
    if size is not None and size not in (1, tensor):
        found.append(
            Violation(
                "draft_tensor_size",
                f"draft_tensor_parallel_size {size} is neither 1 nor the model's {tensor}",
                f"use 1, or {tensor}",
            )
        )
    draft = s.model.get("draft")
    mapped = spec.get("use_heterogeneous_vocab")
    if method in ("draft_model", None) and isinstance(draft, Mapping) and not mapped:
        ours, theirs = s.model.get("vocab_size"), draft.get("vocab_size")
        if isinstance(ours, int) and isinstance(theirs, int) and ours != theirs:
            found.append(
                Violation(
                    "draft_vocabulary",
                    f"the draft model has a vocabulary of {theirs} tokens and the model one of {ours}",
                    f"name a draft of the same family in speculative.model, or {_NGRAM}",
                )
            )
    limit = spec.get("max_model_len")
    if isinstance(limit, int):
        most = [s.context, draft.get("context_length") if isinstance(draft, Mapping) else None]
        least = min((m for m in most if isinstance(m, int)), default=None)
        if least is not None and limit > least:
            found.append(
                Violation(
                    "draft_context",
                    f"max_model_len {limit} of the draft is more than the {least} that it or the model has",
                    f"use {least} or less, or leave it out",
                )
            )
    return found


def _room(s: Settings, spec: Mapping[str, Any]) -> list[Violation]:
    """Whether a step holds the drafted tokens too."""
    tokens, seqs = s.step()
    drafted, method = spec.get("num_speculative_tokens"), spec.get("method")
    if not isinstance(drafted, int) or drafted < 1:
        return []
    parallel = spec.get("parallel_drafting")
    slots = 0
    if method == "dflash" or (parallel and method == "draft_model"):
        slots = drafted
    elif parallel or method == "dspark":
        slots = drafted - 1
    elif method == "draft_model":
        slots = 1
    found = []
    if slots and tokens <= slots and s.at_least("0.20"):
        found.append(
            Violation(
                "no_room_for_drafts",
                f"max_num_batched_tokens {tokens} leaves no room beside {slots} drafted tokens",
                f"use --set max_num_batched_tokens={max(512, slots * 2)}",
            )
        )
    if s.on("--enable-lora") is True and tokens < seqs * (drafted + 1):
        found.append(
            Violation(
                "no_room_for_drafts_with_lora",
                f"with adapters a step must hold {drafted + 1} tokens of each of {seqs} requests, "
                f"and max_num_batched_tokens is {tokens}",
                f"use --set max_num_batched_tokens={seqs * (drafted + 1)}, or a smaller max_num_seqs",
            )
        )
    return found


def _options(spec: Mapping[str, Any]) -> list[Violation]:
    found, method = [], spec.get("method")
    if spec.get("use_heterogeneous_vocab"):
        if method not in ("draft_model", None):
            found.append(
                Violation(
                    "vocabulary_mapping",
                    "use_heterogeneous_vocab is for method draft_model alone",
                    "take it out of --speculative-config",
                )
            )
        elif spec.get("draft_sample_method", "greedy") != "greedy":
            found.append(
                Violation(
                    "vocabulary_mapping_greedy",
                    "use_heterogeneous_vocab drafts greedily alone",
                    "take draft_sample_method out",
                )
            )
    made = [
        k for k in ("synthetic_acceptance_rates", "synthetic_acceptance_length") if spec.get(k) is not None
    ]
    if made and spec.get("rejection_sample_method") != "synthetic":
        found.append(
            Violation(
                "synthetic_acceptance",
                f"{made[0]} needs rejection_sample_method synthetic",
                "take it out of --speculative-config",
            )
        )
    if spec.get("rejection_sample_method") == "synthetic" and len(made) != 1:
        found.append(
            Violation(
                "synthetic_acceptance_one",
                "rejection_sample_method synthetic needs one of rates and length",
                "give one of synthetic_acceptance_rates and synthetic_acceptance_length",
            )
        )
    tokens, rates = spec.get("num_speculative_tokens"), spec.get("synthetic_acceptance_rates")
    length, wrong = spec.get("synthetic_acceptance_length"), None
    if isinstance(tokens, int) and isinstance(length, (int, float)) and not 1 <= length <= tokens + 1:
        wrong = f"synthetic_acceptance_length {length} is not between 1 and {tokens + 1}"
    elif isinstance(tokens, int) and isinstance(rates, list) and len(rates) != tokens:
        wrong = f"synthetic_acceptance_rates are {len(rates)} for {tokens} drafted tokens"
    elif isinstance(rates, list) and any(isinstance(r, (int, float)) and not 0 <= r <= 1 for r in rates):
        wrong = "synthetic_acceptance_rates are not all between 0 and 1"
    if wrong is not None:
        found.append(Violation("synthetic_acceptance_value", wrong, "correct it in --speculative-config"))
    return found


def _rejection(s: Settings, spec: Mapping[str, Any]) -> list[Violation]:
    """How drafts are judged: a table by version, and "fly" needs two tokens to judge."""
    way = spec.get("rejection_sample_method")
    if way is None or not s.at_least("0.27"):
        return []
    known = [w for w, since in rules()["speculative"]["rejection"].items() if s.at_least(since)]
    if way not in known:
        return [
            Violation(
                "rejection_method",
                f"rejection_sample_method {way!r} is none of {', '.join(known)}",
                "take it out of --speculative-config",
            )
        ]
    tokens = spec.get("num_speculative_tokens")
    if way == "fly" and isinstance(tokens, int) and tokens < 2:
        return [
            Violation(
                "rejection_fly",
                "rejection_sample_method fly needs two drafted tokens",
                "use num_tokens 2 or more",
            )
        ]
    return []


def _fast_prefill(s: Settings, spec: Mapping[str, Any]) -> list[Violation]:
    """vllm/config/vllm.py:2018; which methods use the model's hidden states: speculative.py:2116."""
    method = str(spec.get("method"))
    if s.on("--kv-sharing-fast-prefill") is not True or not (
        method in ("eagle", "eagle3", "dflash", "dspark") or method.endswith("mtp")
    ):
        return []
    return [
        Violation(
            "fast_prefill_with_drafts",
            f"--kv-sharing-fast-prefill does not work with speculation by {method}",
            "take it out of engine_args, or use --set speculative=off",
        )
    ]
