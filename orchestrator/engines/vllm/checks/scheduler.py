"""Rules of the scheduler: tokens in a step, requests at once, thresholds, graphs, running ahead."""

from __future__ import annotations

from orchestrator.engines.vllm.checks.settings import Settings, rules
from orchestrator.plan import Violation


def check(s: Settings) -> list[Violation]:
    """SchedulerConfig's and VllmConfig's checks (vLLM 0.33.0 vllm/config/scheduler.py:317-362)."""
    return [*_step(s), *_thresholds(s), *_sharded(s), *_graphs(s), *_ahead(s)]


def _step(s: Settings) -> list[Violation]:
    found = []
    tokens, seqs = s.step()
    asked = s.number("--max-num-batched-tokens")
    if s.on("--enable-chunked-prefill") is False and asked is not None and s.context and asked < s.context:
        found.append(
            Violation(
                "batch_below_context",
                f"chunked prefill is off, so a step must hold a whole prompt: max_num_batched_tokens is "
                f"{tokens} and max_model_len {s.context}",
                f"use --set chunked_prefill=true, --set max_num_batched_tokens={s.context}, "
                f"or --set max_model_len={tokens}",
            )
        )
    if s.number("--max-num-seqs") is not None and 1 <= tokens < seqs:
        found.append(
            Violation(
                "batch_below_seqs",
                f"max_num_batched_tokens {tokens}"
                + ("" if asked is not None else " (vLLM's default here)")
                + f" is less than max_num_seqs {seqs}: every running request needs a token in each step",
                f"use --set max_num_batched_tokens={seqs} or more, or --set max_num_seqs={tokens}",
            )
        )
    active = s.number("--max-num-active-seqs")
    if active is not None and active > seqs:
        found.append(
            Violation(
                "active_above_seqs",
                f"--max-num-active-seqs {active} is more than max_num_seqs {seqs}",
                f"use --set max_num_seqs={active}, or a smaller --max-num-active-seqs",
            )
        )
    return found


def _thresholds(s: Settings) -> list[Violation]:
    threshold = s.number("--long-prefill-token-threshold")
    if threshold is None or not s.context or threshold <= s.context:
        return []
    return [
        Violation(
            "long_prefill_above_context",
            f"long_prefill_token_threshold {threshold} is more than max_model_len {s.context}",
            f"use --set long_prefill_token_threshold={s.context // 2}, or 0 for none",
        )
    ]


def _sharded(s: Settings) -> list[Violation]:
    """Sampling spread over ranks (vLLM 0.33.0 vllm/config/vllm.py, _validate_batch_sharded_sampling)."""
    if s.on("--enable-batch-sharded-sampling") is not True:
        return []
    size, (_, seqs) = s.count("--tensor-parallel-size"), s.step()
    if s.device == "cpu" or s.env.get("VLLM_USE_V2_MODEL_RUNNER") == "0":
        said = "needs the V2 model runner"
    elif size <= 1:
        said = "has nothing to spread: tensor_parallel_size is 1"
    elif seqs < size:
        said = f"needs a request for each rank: max_num_seqs is {seqs} and tensor_parallel_size {size}"
    elif (s.number("--max-logprobs") or 0) < 0:
        said = "does not go with --max-logprobs -1"
    else:
        return []
    return [
        Violation("batch_sharding", f"--enable-batch-sharded-sampling {said}", "take it out of engine_args")
    ]


def _graphs(s: Settings) -> list[Violation]:
    """CUDA graph sizes (vLLM 0.33.0 vllm/config/vllm.py:2619, vllm/engine/arg_utils.py:2834)."""
    found = []
    compilation = s.json("--compilation-config")
    for flag, key in (
        ("--cudagraph-capture-sizes", "cudagraph_capture_sizes"),
        ("--max-cudagraph-capture-size", "max_cudagraph_capture_size"),
    ):
        if s.given(flag) and compilation.get(key) is not None:
            found.append(
                Violation(
                    "graph_sizes_twice",
                    f"{flag} and {key} of --compilation-config say the same",
                    f"take {key} out of --compilation-config",
                )
            )
    sizes = s.parsed.values.get("--cudagraph-capture-sizes")
    largest = s.number("--max-cudagraph-capture-size")
    eager = s.on("--enforce-eager") is True
    given = [n for n in sizes if isinstance(n, int)] if isinstance(sizes, list) else []
    if given and largest is not None and s.device != "cpu" and not eager:
        tokens, _ = s.step()
        valid = [n for n in given if n <= tokens]
        if valid and max(valid) != largest:
            found.append(
                Violation(
                    "graph_sizes_differ",
                    f"the largest of --cudagraph-capture-sizes is {max(valid)} and "
                    f"--max-cudagraph-capture-size {largest}",
                    "give one of the two",
                )
            )
    return found


def _ahead(s: Settings) -> list[Violation]:
    """Async scheduling asked for where it cannot be (vLLM 0.33.0 vllm/config/vllm.py:1600-1684; 0.12.0 the
    same file:529; 0.10.0 vllm/engine/arg_utils.py:1135)."""
    if s.on("--async-scheduling") is not True:
        return []
    found = []
    speculation = s.speculation or {}
    method = speculation.get("method")
    v1_only = s.env.get("VLLM_USE_V2_MODEL_RUNNER") == "0" or not s.at_least("0.33") or s.device == "cpu"
    goes = _goes_ahead(s)
    if speculation and (
        (method in rules()["speculative"]["no_async"] and (v1_only or method != "ngram"))
        or (goes is not None and method not in goes and not str(method).endswith("_mtp"))
    ):
        others = "draft_model, eagle3, mtp" if goes is None else ", ".join(goes)
        found.append(
            Violation(
                "async_with_speculation",
                f"async_scheduling does not work with speculation by {method}",
                "use --set async_scheduling=auto"
                + (f", or another speculative.method ({others})" if others else ""),
            )
        )
    if speculation.get("disable_padded_drafter_batch"):
        found.append(
            Violation(
                "async_with_unpadded_drafts",
                "async_scheduling does not work with disable_padded_drafter_batch",
                "use --set async_scheduling=auto, or take disable_padded_drafter_batch out",
            )
        )
    stages, older = s.count("--pipeline-parallel-size"), not s.at_least("0.16")
    if stages > 1 and (older or (s.at_least("0.33") and v1_only)):
        found.append(
            Violation(
                "async_with_stages",
                "async_scheduling does not work with pipeline_parallel_size above 1 "
                + ("in this release" if older else "on the V1 model runner"),
                "use --set async_scheduling=auto, or --set pipeline_parallel_size=1",
            )
        )
    executor = s.text("--distributed-executor-backend")
    if (executor == "ray" and not s.at_least("0.20")) or (executor == "uni" and not s.at_least("0.12")):
        found.append(
            Violation(
                "async_with_executor",
                f"async_scheduling does not work with distributed_executor_backend {executor}",
                "use --set async_scheduling=auto, or --set distributed_executor_backend=mp",
            )
        )
    return found


def _goes_ahead(s: Settings) -> tuple[str, ...] | None:
    """The methods an older release can run ahead with; None where `no_async` says those that it cannot."""
    if not s.at_least("0.12"):
        return ()
    if not s.at_least("0.16"):
        return ("eagle", "eagle3", "mtp")
    return None
