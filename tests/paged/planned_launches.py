"""Public launches (launch_cases.jsonl) as plans: their flags as levers, their GPUs as a machine."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import launches
import planned
from launches import Case

from orchestrator.machine import Link, Machine, load
from orchestrator.plan import Plan
from orchestrator.planning.paged.memory import GIB, rules

NAMES = {
    "H100": "NVIDIA H100 80GB HBM3",
    "H200": "NVIDIA H200",
    "B200": "NVIDIA B200",
    "B300": "NVIDIA B300 SXM6 AC",
    "A100-80": "NVIDIA A100-SXM4-80GB",
    "A100-40": "NVIDIA A100-SXM4-40GB",
    "H20": "NVIDIA H20",
    "A6000": "NVIDIA RTX A6000",
    "RTX 3090": "NVIDIA GeForce RTX 3090",
    "RTX 5090 Laptop": "NVIDIA GeForce RTX 5090 Laptop GPU",
    "RTX 5090": "NVIDIA GeForce RTX 5090",
    "RTX 5070 Ti": "NVIDIA GeForce RTX 5070 Ti",
    "MI300X": "AMD Instinct MI300X",
    "MI355X": "AMD Instinct MI355X",
}
"""The names of the launches' GPUs as NVML and amdsmi print them."""

CLASSES = {
    "weights_do_not_fit": "weights",
    "kv_does_not_fit": "kv_cache",
    "memory_not_free": "free_memory",
}
WARNINGS = {
    "is unknown before the start": "unknown_rule",
    "recording CUDA graphs has run out of memory": "graph_capture",
}
"""What a plan's refusals and warnings say, in the classes of launch_cases.jsonl."""

OLDEST_TOLD = {"vllm": "0.11.0", "sglang": "0.5.9"}
"""Versions that stand for one that a launch does not tell."""


def machine(case: Case) -> Machine:
    """The launch's GPUs, all joined as one NVLink island, in a large host."""
    totals = case["total_gib"]
    totals = totals if isinstance(totals, list) else [totals] * case["gpus"]
    told = [t.strip() for t in case["gpu"].split("+")]
    gpus = []
    for i, gib in enumerate(totals):
        name = next(full for short, full in NAMES.items() if told[min(i, len(told) - 1)].startswith(short))
        amd = name.startswith("AMD")
        # NVML's figure of what CUDA shows
        table = rules()["visible"]
        less = (
            0.0
            if amd
            else next((v for k, v in table["by_name"].items() if k in name.lower()), table["default_gib"])
        )
        size = int((gib + less) * GIB)
        free = case["observed"].get("free_at_start_gib")
        gpus.append(
            dataclasses.replace(
                launches.gpu(case | {"total_gib": gib}),
                index=i,
                uuid=f"GPU-{i}",
                name=name,
                memory_bytes=size,
                free_bytes=int(free * GIB) if free is not None else size,
            )
        )
    links = tuple(Link(a.uuid, b.uuid, "nvlink") for a in gpus for b in gpus if a.index < b.index)
    return dataclasses.replace(load("8xh100"), name=case["id"], gpus=tuple(gpus), links=links)


def sets(case: Case) -> list[str]:
    """The launch's flags, and the engine's defaults for what it left alone, as `--set` takes them."""
    f = launches.flags(case)
    layout = launches.layout(case)
    tokens, sequences = launches.batch(case)
    graphs = 0 if case.get("eager") else min(512, 2 * max(sequences, 1))
    graphs = f.get("cuda_graph_max", graphs)
    levers: dict[str, Any] = {
        "tensor_parallel_size": layout.tensor,
        "pipeline_parallel_size": layout.pipeline,
        "data_parallel_size": 1,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": max(1, sequences),
        "cuda_graph": graphs or "off",
        "trust_remote_code": True,
        "kv_offload_bytes": 0,
    }
    if launches.cards()[case["card"]].experts:
        levers |= {"attention_data_parallel_size": layout.attention_data, "expert_parallel": layout.expert}
    own = "mem_fraction_static" if case["engine"] == "sglang" else "gpu_memory_utilization"
    levers[own] = launches.utilization(case)
    if own == "mem_fraction_static":
        levers["gpu_memory_utilization"] = 1.0
    told = {
        "max_model_len": case["max_model_len"],
        "kv_cache_dtype": case["kv_dtype"],
        "block_size": f.get("block_size"),
        "prefix_caching": f.get("enable_prefix_caching"),
        "async_scheduling": f.get("async_scheduling"),
        "kv_cache_bytes": int(f["kv_cache_gib"] * GIB) if "kv_cache_gib" in f else None,
    }
    levers |= {name: value for name, value in told.items() if value is not None}
    mtp = f.get("mtp")
    levers["speculative"] = {"method": "mtp", "num_tokens": mtp} if mtp else "off"
    if mtp and not launches.cards()[case["card"]].mtp_layers:
        # its heads are a checkpoint of their own, which the log does not name
        levers["speculative"]["model"] = "its/heads"
    out = [f"{name}={json.dumps(value)}" for name, value in levers.items()]
    # one block is enough where the length is not told
    return [*out, "workload.input_tokens=8", "workload.output_tokens=8"]


def plan(case: Case) -> Plan:
    """The latency goal's plan: it takes no smaller KV than was asked for."""
    kind = case["engine"]
    version = case["version"] if case["version"] not in (None, "0.5") else OLDEST_TOLD[kind]
    if version.count(".") == 1:
        version += ".0"
    card = launches.cards()[case["card"]]
    # the engine took the length, so the checkpoint's own configuration has it
    longest = max(card.context_length, case["max_model_len"] or 0)
    card = dataclasses.replace(card, context_length=longest)
    return planned.plan(card, machine(case), goal="latency", kind=kind, version=version, sets=sets(case))


def verdict(case: Case) -> str:
    """ "starts", "refused:CLASS" or "warned:CLASS", as `launches.verdict` says it, of the plan."""
    made = plan(case)
    if made.violations:
        codes = [v.code for v in made.violations]
        return f"refused:{next((CLASSES[c] for c in codes if c in CLASSES), codes[0])}"
    return next(
        (f"warned:{name}" for words, name in WARNINGS.items() if words in " ".join(made.warnings)), "starts"
    )
