"""What vLLM starts with and does otherwise than asked, without refusing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.engines.vllm.checks.connectors import connector_names
from orchestrator.engines.vllm.checks.context import dtype
from orchestrator.engines.vllm.checks.settings import Settings, rules
from orchestrator.planning.paged.graphs import covering, within


def warnings(s: Settings) -> list[str]:
    """One sentence each (vLLM 0.33.0: the place stands at each rule)."""
    return [
        *_step(s),
        *_types(s),
        *_graphs(s),
        *_speculation(s),
        *_layout(s),
        *_cpu(s),
        *_connector(s),
    ]


def _step(s: Settings) -> Iterator[str]:
    tokens, seqs = s.step()
    default = s.step_defaults()[1]
    # vllm/engine/arg_utils.py:3232
    if (
        s.number("--max-num-batched-tokens") is not None
        and s.number("--max-num-seqs") is None
        and seqs < default
    ):
        yield (
            f"max_num_batched_tokens {tokens} alone lowers max_num_seqs from vLLM's {default} to {seqs}: "
            "set max_num_seqs too where that is not meant"
        )
    if s.context and s.number("--max-num-batched-tokens") and tokens > seqs * s.context:
        yield (
            f"max_num_batched_tokens {tokens} is more than max_num_seqs {seqs} times max_model_len "
            f"{s.context} can ever fill"
        )
    # vllm/engine/arg_utils.py:3054
    if s.on("--enable-chunked-prefill") is False:
        yield "vLLM warns that running without chunked prefill is not officially supported"


def _types(s: Settings) -> Iterator[str]:
    capability, kind = s.capability(), dtype(s)
    if capability is None or s.device != "cuda":
        return
    # vllm/config/model.py, _resolve_auto_dtype
    if kind == "bfloat16" and s.text("--dtype") in (None, "auto") and capability < 8.0:
        yield f"compute capability {capability} has no bfloat16, which the weights are in: vLLM uses float16"
    kv = s.text("--kv-cache-dtype") or ""
    if kv.startswith("fp8") and capability < 8.9:
        yield (
            f"kv_cache_dtype {kv} on compute capability {capability}: the GPU has no fp8 units, so it saves "
            "memory and costs time"
        )
    quantization = s.text("--quantization") or s.model.get("quantization")
    if quantization == "fp8" and capability < 8.9:
        yield (
            f"fp8 weights on compute capability {capability} are computed in 16 bits (Marlin): "
            "they save memory, not time"
        )


def _graphs(s: Settings) -> Iterator[str]:
    """A largest size between those that are recorded (vllm/config/vllm.py:2470, 2508 of 0.32.0)."""
    largest = s.number("--max-cudagraph-capture-size")
    if largest is None or largest < 1 or s.device == "cpu" or s.on("--enforce-eager") is True:
        return
    if s.parsed.values.get("--cudagraph-capture-sizes") is not None:
        return
    asked, tokens = int(largest), s.step()[0]
    fine = s.text("--performance-mode") == "interactivity" and asked <= 32
    taken = min(asked, tokens)
    if not fine and tokens > taken:
        taken = within(taken)
    if taken < asked:
        yield (
            f"cuda_graph={asked} is none of the sizes that vLLM records: it takes {taken}, and larger "
            f"batches run without one: --set cuda_graph={covering(asked)} holds them"
        )


def _speculation(s: Settings) -> Iterator[str]:
    spec = s.speculation
    if spec is None:
        return
    table, method = rules()["speculative"], spec.get("method")
    first = s.device == "cpu" or not s.at_least("0.33")
    # vllm/config/vllm.py:1639
    if method in table["no_async"] and s.on("--async-scheduling") is None and (first or method != "ngram"):
        yield f"speculation by {method} turns async scheduling off"
    # vllm/config/vllm.py:3053
    if method in table["runner_v1"] and s.at_least("0.20"):
        yield f"speculation by {method} makes vLLM fall back to its V1 model runner"
    # vllm/config/vllm.py:1110
    if spec.get("num_speculative_tokens_per_batch_size") and s.count("--data-parallel-size") > 1:
        yield "with data_parallel_size above 1 vLLM drafts a fixed number of tokens, not one by batch size"
    draft = s.model.get("draft")
    length = draft.get("context_length") if isinstance(draft, Mapping) else None
    # vllm/config/vllm.py:3025
    if isinstance(length, int) and s.context and length < s.context and method in table["drafted"]:
        yield (
            f"the draft model holds {length} tokens and max_model_len is {s.context}: vLLM's V2 runner "
            f"lowers max_model_len to {length}"
        )
    own, tokens = s.model.get("mtp_layers"), spec.get("num_speculative_tokens")
    if method in ("mtp", "deepseek_mtp") and own == 1 and isinstance(tokens, int) and tokens > 1:
        yield f"one layer that predicts ahead is run {tokens} times: later tokens are accepted more rarely"


def _layout(s: Settings) -> Iterator[str]:
    tensor, kv_heads = s.count("--tensor-parallel-size"), s.model.get("kv_heads")
    # vllm/config/model.py:1663
    if isinstance(kv_heads, int) and 0 < kv_heads < tensor and not s.model.get("mla"):
        yield (
            f"tensor_parallel_size {tensor} is more than the model's {kv_heads} KV heads: they are copied, "
            "and the KV cache on a GPU gets no smaller"
        )
    layers, stages = s.model.get("layers"), s.count("--pipeline-parallel-size")
    if isinstance(layers, int) and layers and stages > layers:
        yield f"pipeline_parallel_size {stages} is more than the model's {layers} layers: stages stay empty"


def _cpu(s: Settings) -> Iterator[str]:
    if s.device != "cpu":
        return
    # vllm/platforms/cpu.py:346
    if s.on("--async-scheduling") is True:
        yield "on a CPU vLLM turns async scheduling off"
    # vllm/platforms/cpu.py:340
    if s.env.get("VLLM_CPU_KVCACHE_SPACE") and s.given("--kv-cache-memory-bytes"):
        yield "VLLM_CPU_KVCACHE_SPACE overrides --kv-cache-memory-bytes"
    # vllm/platforms/cpu.py:310
    size = s.number("--block-size")
    if size is not None and size > 0 and size % 32:
        yield f"block_size {int(size)} is no multiple of 32, which the CPU's attention wants"
    # vllm/platforms/cpu.py:533
    if s.model.get("mla") and s.on("--enable-prefix-caching") is not False:
        yield "on a CPU latent attention (MLA) runs without chunked prefill and prefix caching"


def _connector(s: Settings) -> Iterator[str]:
    names = list(connector_names(s.json("--kv-transfer-config")))
    plain = [n for n in names if n in rules()["not_hybrid"]]
    # vllm/config/vllm.py:2257
    if plain and s.on("--disable-hybrid-kv-cache-manager") is None:
        hybrid = s.model.get("hybrid") or s.model.get("sliding_window")
        yield f"{plain[0]} turns the hybrid KV cache manager off" + (
            ": this model's windows or states then cost full-length KV" if hybrid else ""
        )
