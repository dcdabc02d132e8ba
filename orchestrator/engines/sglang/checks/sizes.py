"""What SGLang's sizes must divide, and what must have room: the rules that calculate."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.engines.checkpoint_format import method
from orchestrator.engines.sglang.checks.args import Args
from orchestrator.plan import Violation


def ranks(args: Args) -> Iterator[Violation]:
    """How the ranks divide (0.5.23, arg_groups/parallel_hook.py, validation_hook.py; the same in 0.5.1)."""
    tensor, attention, nodes = args.tensor, args.attention, args.number("--nnodes") or 1
    for flag, lever in (
        ("--tp-size", "tensor_parallel_size"),
        ("--pp-size", "pipeline_parallel_size"),
        ("--dp-size", "data_parallel_size"),
        ("--attn-dp-size", "attention_data_parallel_size"),
    ):
        size = args.number(flag)
        if size is not None and size < 1:
            yield Violation("below_one", f"{flag} is {size}", f"use --set {lever}=1 or more")
    if tensor % attention:
        yield Violation(
            "attention_dp_division",
            f"{attention} attention ranks do not divide the tensor size {tensor}",
            "choose an attention_data_parallel_size that divides tensor_parallel_size times itself: "
            f"{_divisors(tensor)}",
        )
    if (tensor * args.pipeline) % nodes:
        yield Violation(
            "nodes_division",
            f"{tensor} times {args.pipeline} ranks do not spread evenly over {nodes} nodes",
            "use a tensor_parallel_size or pipeline_parallel_size that the number of nodes divides",
        )
    context = args.number("--attn-cp-size") or 1
    if context > 1 and tensor % (attention * context):
        yield Violation(
            "attention_context_division",
            f"--attn-cp-size {context} times {attention} attention ranks does not divide {tensor} ranks",
            "correct --attn-cp-size in engine_args",
        )
    dense = args.number("--moe-dense-tp-size")
    if dense is not None and dense not in (1, tensor) and args.version >= (0, 5, 12):
        yield Violation(
            "dense_tensor_size",
            f"--moe-dense-tp-size {dense}: SGLang takes 1 or the tensor size {tensor}",
            "correct it in engine_args, or take it out",
        )
    yield from _experts(args)
    yield from _expert_copies(args, context)
    shared, cut = args.number("--shared-experts-tp-size"), args.attention_tensor // max(1, context)
    if shared is not None and (shared < 1 or cut % shared):
        # 0.5.23, arg_groups/parallel_hook.py:214
        yield Violation(
            "shared_experts_division",
            f"--shared-experts-tp-size {shared} does not divide the {cut} ranks of one attention layer",
            f"use one of {_divisors(cut)} in engine_args",
        )


def heads(args: Args) -> Iterator[Violation]:
    """How the model divides over the ranks of one attention layer (0.5.23, models/llama.py:183-196). On a
    CPU it need not: SGLang pads the heads there (observed of 0.5.23)."""
    parts = args.attention_tensor
    total, kv = args.model.get("heads"), args.model.get("kv_heads")
    if parts == 1 or not isinstance(total, int) or args.device == "cpu":
        return
    if total % parts:
        yield Violation(
            "heads_division",
            f"the model has {total} attention heads, which {parts} devices do not divide",
            f"use a --set tensor_parallel_size among {_divisors(total)}",
        )
    elif isinstance(kv, int) and kv > 0 and not args.model.get("mla") and kv % parts and parts % kv:
        yield Violation(
            "kv_heads_division",
            f"the model has {kv} KV heads, which neither divide nor are divided by {parts} devices",
            f"use a --set tensor_parallel_size among {_divisors(total)} that fits {kv}",
        )


def devices(args: Args) -> Iterator[Violation]:
    """Whether there are as many devices as ranks on this node."""
    nodes, gpus = args.number("--nnodes") or 1, args.machine.get("gpus")
    here = args.tensor * args.pipeline * args.data // nodes
    if args.device in ("cuda", "rocm") and gpus and here > len(gpus):
        yield Violation(
            "too_few_devices",
            f"the plan has {here} ranks on a machine of {len(gpus)} GPUs",
            "lower tensor_parallel_size, pipeline_parallel_size or data_parallel_size",
        )
    numa = args.machine.get("numa_nodes")
    told = args.env.get("SGLANG_CPU_OMP_THREADS_BIND")
    if args.device == "cpu" and isinstance(numa, int) and not told and here > max(1, numa):
        # 0.5.23, utils/numa_utils.py:463
        yield Violation(
            "ranks_above_numa_nodes",
            f"{here} ranks on a CPU with {numa} NUMA node(s): SGLang asks to be told which cores each has",
            f"use --set tensor_parallel_size={max(1, numa)}, or set SGLANG_CPU_OMP_THREADS_BIND in env",
        )


def pages(args: Args) -> Iterator[Violation]:
    """Pages and prefill chunks (0.5.23, arg_groups/validation_hook.py:240; the same in 0.5.1)."""
    page, chunk = args.number("--page-size"), args.number("--chunked-prefill-size")
    if page is not None and page < 1:
        yield Violation("below_one", f"--page-size is {page}", "use --set block_size=1 or more")
        return
    if chunk is not None and chunk > 0 and page and args.pd != "decode":
        each = chunk // args.attention
        if each % page or not each:
            shared = f" ({each} on each of {args.attention} attention ranks)" if args.attention > 1 else ""
            yield Violation(
                "chunk_and_page",
                f"prefill chunks of {chunk} tokens{shared} are no whole pages of {page}",
                f"use --set max_num_batched_tokens to a multiple of {page}, or another --set block_size",
            )


def room(args: Args) -> Iterator[Violation]:
    """Whether a request fits: SGLang takes a context above the model's only by force (0.5.23,
    configs/model_config.py:1303), and one above its pool without a word."""
    length, trained = args.number("--context-length"), args.model.get("context_length")
    forced = args.env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in (
        "1",
        "true",
        "yes",
        "y",
    )
    overridden = args.given("--json-model-override-args")
    if length and isinstance(trained, int) and length > trained and not forced and not overridden:
        yield Violation(
            "context_above_model",
            f"max_model_len is {length} tokens and the model has {trained}",
            f"use --set max_model_len={trained}; where the model is known to hold more, set "
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 in env",
        )
    pool = args.number("--max-total-tokens")
    if pool is None:
        pool = args.predictions.get("kv_cache_tokens")
    if pool is not None and pool < 2 * args.attention and args.given("--max-total-tokens"):
        yield Violation(
            "pool_without_room",
            f"a KV pool of {pool} tokens holds no request",
            "use --set kv_cache_tokens=auto, or more tokens",
        )
    elif pool is not None and length and pool < length:
        yield Violation(
            "pool_below_context",
            f"the KV pool holds {int(pool)} tokens and one request may need {length}: "
            "SGLang starts all the same, and cuts longer answers short",
            f"use --set max_model_len={int(pool)} or less, or a larger pool",
        )
    share = args.number("--mem-fraction-static")
    if share is not None and not 0 < share < 1:
        yield Violation(
            "memory_share",
            f"mem_fraction_static {share} is no share of the memory",
            "use --set mem_fraction_static between 0 and 1",
        )
    most = args.number("--max-running-requests")
    if most is not None and most < 1:
        yield Violation("below_one", f"--max-running-requests is {most}", "use --set max_num_seqs=1 or more")


def draft(args: Args) -> Iterator[Violation]:
    """Draft sizes (0.5.23, arg_groups/speculative_hook.py:1160 and 376; the first the same in 0.5.1)."""
    if args.speculation in ("EAGLE", "EAGLE3", "STANDALONE") and not args.on("--speculative-adaptive"):
        topk, tokens = args.given("--speculative-eagle-topk"), args.given("--speculative-num-draft-tokens")
        if not args.given("--speculative-num-steps") and (topk or tokens):
            yield Violation(
                "draft_steps_missing",
                "--speculative-eagle-topk and --speculative-num-draft-tokens count only beside "
                "--speculative-num-steps",
                "set speculative.num_steps, or take the other two out",
            )
    block = args.number("--speculative-dflash-block-size")
    tokens = args.number("--speculative-num-draft-tokens")
    if args.speculation == "DFLASH" and block and tokens and block != tokens:
        yield Violation(
            "draft_block",
            f"--speculative-num-draft-tokens {tokens} is not --speculative-dflash-block-size {block}",
            "set one of the two",
        )
    for flag in ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"):
        value = args.number(flag)
        if args.speculation and value is not None and value < 1:
            yield Violation("below_one", f"{flag} is {value}", "use 1 or more in speculative")


def quantization(args: Args) -> Iterator[Violation]:
    """Whether the weights are in the format, GPUs can run it (0.5.23, model_loader/loader.py:252), and its
    blocks divide over the ranks (model_executor/model_runner_components/moe_ep_setup.py:140)."""
    asked, own = str(args.get("--quantization") or ""), method(args.model.get("quantization"))
    yield from _format(args, asked, own)
    name = asked or own or ""
    least = _table()["capability"].get(name)
    if least is not None and args.capability is not None and round(args.capability * 10) < least:
        yield Violation(
            "quantization_gpu",
            f"{name} quantization needs GPUs of capability {least / 10}, and one here has {args.capability}",
            "use a checkpoint in another quantization",
        )
    block = (args.model.get("quantization_config") or {}).get("weight_block_size")
    inner = args.model.get("moe_intermediate_size")
    if not block or not isinstance(inner, int):
        return
    parts = args.tensor // args.expert // _at_least_one(args.number("--moe-dp-size"))
    if parts > 1 and (inner % parts or (inner // parts) % block[0]):
        yield Violation(
            "quantization_blocks",
            f"the experts' {inner} rows in blocks of {block[0]} do not divide over {parts} devices",
            "use --set expert_parallel=true, or a smaller tensor_parallel_size",
        )


def _format(args: Args, asked: str, own: str | None) -> Iterator[Violation]:
    """0.5.23, model_loader/weight_utils.py:269 (no quantization config to be found) and
    configs/model_config.py:2108 (another one than the checkpoint's)."""
    table = _table()
    if not asked or "quantization" not in args.model or args.model.get("format") == "gguf":
        return
    if own is None and asked in table["serialized"]:
        yield Violation(
            "quantization_without_weights",
            f"quantization is {asked}, and the weights are not quantised so",
            "use --set quantization=auto, a checkpoint in that format, or one made while loading (fp8)",
        )
        return
    alike = asked == own or any(asked in row and own in row for row in table["alike"])
    if own in table["known"] and not alike:
        yield Violation(
            "quantization_differs",
            f"quantization is {asked} and the weights are {args.model['quantization']}",
            "use --set quantization=auto: the checkpoint says it itself",
        )


@functools.cache
def _table() -> dict[str, Any]:
    import yaml

    text = (Path(__file__).parent / "quantizations.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


def _at_least_one(value: int | None) -> int:
    return max(1, value or 1)


def _experts(args: Args) -> Iterator[Violation]:
    expert, tensor = args.expert, args.tensor
    if expert > 1 and tensor % expert:
        yield Violation(
            "expert_division",
            f"--ep-size {expert} does not divide the tensor size {tensor}",
            "use --set expert_parallel=true or false",
        )
    runner = args.get("--moe-runner-backend")
    if runner in ("flashinfer_cutlass", "flashinfer_cutedsl") and expert not in (1, tensor):
        # 0.5.23, arg_groups/moe_hook.py:89 and 102
        yield Violation(
            "runner_experts",
            f"--moe-runner-backend {runner} takes --ep-size 1 or {tensor}, not {expert}",
            "correct them in engine_args",
        )
    experts = args.model.get("experts")
    if isinstance(experts, int) and experts and expert > experts:
        yield Violation(
            "experts_below_ranks",
            f"the model has {experts} experts for {expert} ranks of them",
            "use fewer devices, or --set expert_parallel=false",
        )
    if args.a2a in ("flashinfer", "flashinfer_megamoe") and args.attention != tensor:
        # 0.5.23, arg_groups/moe_hook.py:43 and 325
        yield Violation(
            "a2a_needs_attention_dp",
            f"--moe-a2a-backend {args.a2a} needs as many attention ranks as the tensor size {tensor}",
            "use --set tensor_parallel_size=1 with attention_data_parallel_size, or another backend",
        )


def _expert_copies(args: Args, context: int) -> Iterator[Violation]:
    """--moe-dp-size (0.5.23, arg_groups/parallel_hook.py:171; the same in 0.5.9 but for the last rule)."""
    copies, expert, tensor = args.number("--moe-dp-size"), args.expert, args.tensor
    if copies is None or copies == 1:
        return
    ranks = expert * copies
    if copies > 1 and (tensor % copies or ranks > tensor or (expert > 1 and ranks != tensor)):
        yield Violation(
            "expert_copies_division",
            f"--moe-dp-size {copies} times {expert} ranks of experts is not the tensor size {tensor}",
            "correct --moe-dp-size in engine_args, or use --set expert_parallel=false",
        )
    elif copies > 1 and args.pipeline > 1:
        yield Violation(
            "expert_copies_with_stages",
            f"--moe-dp-size {copies} does not work with pipeline stages",
            "use --set pipeline_parallel_size=1, or take it out of engine_args",
        )
    elif copies != context and args.version >= (0, 5, 15):
        yield Violation(
            "expert_copies_and_context",
            f"--moe-dp-size {copies} is neither 1 nor the --attn-cp-size {context}",
            "use the same number for both in engine_args, or take --moe-dp-size out",
        )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, min(number, 64) + 1) if number % n == 0)
