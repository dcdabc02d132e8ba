"""Inputs to plan with: cards, machines and installations that need nothing on this machine."""

from collections.abc import Sequence
from typing import Any

from orchestrator import profiles
from orchestrator.engines.base import Flag, Installation
from orchestrator.engines.llamacpp.embedded_args import listing, load_table
from orchestrator.engines.llamacpp.engine import LlamaCpp
from orchestrator.machine import Gpu, Machine
from orchestrator.model_card.card import HybridState, ModelCard
from orchestrator.plan import Plan
from orchestrator.planning.planner import make_plan
from orchestrator.planning.request import Choice, PlanInputs, Reservations

GIB = 2**30
GOALS = ("throughput", "latency", "agent", "edge")
ENGINE = LlamaCpp()


def card(**changes: Any) -> ModelCard:
    """SmolLM2-135M's card, with changes."""
    facts: dict[str, Any] = {
        "source": "smollm2-135m",
        "name": "smollm2-135m",
        "path": "/models/smollm2.gguf",
        "format": "gguf",
        "architecture": "llama",
        "layers": 30,
        "heads": 9,
        "kv_heads": 3,
        "head_dim": 64,
        "hidden_size": 576,
        "vocab_size": 49152,
        "context_length": 8192,
        "weights_bytes": 98_362_432,
    }
    return ModelCard(**facts | changes)


LLAMA_8B = card(
    name="llama-8b",
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    hidden_size=4096,
    vocab_size=128256,
    context_length=131072,
    weights_bytes=4_900_000_000,
)
CARDS = {
    "small": card(),
    "gqa": LLAMA_8B,
    "mha": card(
        name="mha",
        layers=40,
        heads=40,
        kv_heads=40,
        head_dim=128,
        hidden_size=5120,
        context_length=4096,
        weights_bytes=7_400_000_000,
    ),
    "sliding": card(
        name="sliding",
        layers=36,
        heads=64,
        kv_heads=8,
        hidden_size=2880,
        vocab_size=201088,
        context_length=131072,
        weights_bytes=12_000_000_000,
        sliding_window=128,
        sliding_layers=tuple(i % 2 == 0 for i in range(36)),
    ),
    "mla": card(
        name="mla",
        layers=61,
        heads=128,
        kv_heads=128,
        head_dim=192,
        value_head_dim=128,
        hidden_size=7168,
        vocab_size=129280,
        context_length=163840,
        weights_bytes=380_000_000_000,
        mla_kv_lora_rank=512,
        mla_qk_rope_head_dim=64,
    ),
    "hybrid": card(
        name="hybrid",
        layers=48,
        heads=16,
        kv_heads=2,
        head_dim=256,
        hidden_size=2048,
        vocab_size=151936,
        context_length=262144,
        weights_bytes=45_000_000_000,
        kv_heads_per_layer=tuple(2 if i % 4 == 3 else 0 for i in range(48)),
        hybrid=HybridState(layers=36, state_bytes_per_layer=None),
    ),
    "odd heads": card(name="odd", head_dim=80, context_length=2048),
    "short": card(name="short", context_length=200),
}


def gpu(index: int, memory_gib: float, free_gib: float | None = None) -> Gpu:
    total = int(memory_gib * GIB)
    free = total if free_gib is None else int(free_gib * GIB)
    return Gpu(index, f"GPU-{index}", "test card", total, free)


def machine(cores: int = 8, memory_gib: float = 32, gpus: Sequence[Gpu] = (), **changes: Any) -> Machine:
    there = int(memory_gib * GIB)
    facts: dict[str, Any] = {
        "name": "test",
        "source": "test",
        "platform": "linux-x86_64",
        "cpus": float(cores),
        "logical_cpus": cores * 2,
        "physical_cores": cores,
        "memory_total_bytes": there,
        "memory_limit_bytes": there,
        "memory_available_bytes": there,
        "gpus": tuple(gpus),
    }
    return Machine(**facts | changes)


def _installation(name: str, embedded: bool) -> Installation:
    rows = listing(load_table().flags)
    flags = tuple(
        Flag(tuple(r["spellings"]), r["takes_value"], tuple(r["choices"]), r["default"]) for r in rows
    )
    variables = {r["env"]: r["spellings"][0] for r in rows if r["env"]}
    extras = {"variables": variables, "removed": {}, "embedded": embedded}
    return Installation(name, "llamacpp", "1", (f"/opt/{name}",), flags, extras=extras)


EMBEDDED = _installation("embedded", True)
SERVER = _installation("llama-server", False)


def inputs(
    goal: str,
    *sets: str,
    of: ModelCard | None = None,
    on: Machine | None = None,
    engine: Installation = SERVER,
    **more: Any,
) -> PlanInputs:
    return PlanInputs(
        resolved=profiles.resolve(goal=goal, sets=sets),
        card=of or card(),
        machine=on or machine(),
        installation=engine,
        engine=ENGINE,
        served_model="small",
        name=f"{goal}-small",
        model_choice=Choice("smollm2-135m", "given by --model", "asked"),
        engine_choice=Choice(engine.name, "installed", "gguf_llamacpp"),
        **{"reservations": Reservations(), **more},
    )


def plan(goal: str, *sets: str, **more: Any) -> Plan:
    return make_plan(inputs(goal, *sets, **more))


def values(p: Plan) -> dict[str, Any]:
    return {name: d.value for name, d in p.levers.items()}


def codes(p: Plan) -> list[str]:
    return [v.code for v in p.violations]
