"""What the published vLLM recipes say of a model on a machine, and where a plan says otherwise.

`expectations` turns a recipe into facts to hold a plan against, one for each variant whose configuration is
known and each verified machine that a plan can be made for; `judge` compares. A plan may do otherwise where
it gives its reason: among a lever's rejected values, in a warning or a violation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.machine import Gpu, Link, Machine, load
from orchestrator.model_card.card import ModelCard
from orchestrator.model_card.huggingface import card_of
from orchestrator.model_families import gpu_generation
from orchestrator.model_families.arguments import Arguments, merged, read
from orchestrator.model_families.versions import at_least
from orchestrator.plan import Plan, Violation

HERE = Path(__file__).parent
GB, GIB = 10**9, 2**30

FILES = {"h100": "8xh100", "h200": "8xh200", "b200": "8xb200", "a100": "8xa100-80", "mi300x": "8xmi300x"}
"""Hardware names of the recipes that have a machine file."""

# name, GPUs of one machine, bytes a GPU, compute capability, links. Sizes: the makers' data sheets, in GB
BUILT: Mapping[str, tuple[str, int, int, str | None, str]] = {
    "b300": ("NVIDIA B300", 8, 288 * GB, "10.3", "nvlink"),
    "gb200": ("NVIDIA GB200", 4, 186 * GB, "10.0", "nvlink"),
    "gb300": ("NVIDIA GB300", 4, 279 * GB, "10.3", "nvlink"),
    "dgx_station_gb300": ("NVIDIA GB300", 1, 252 * GB, "10.3", "nvlink"),
    "dgx_spark_gb10": ("NVIDIA GB10", 1, 128 * GB, "12.1", "nvlink"),
    "h20": ("NVIDIA H20", 8, 95 * GIB, "9.0", "nvlink"),
    "rtx_5090": ("NVIDIA GeForce RTX 5090", 1, 32 * GIB, "12.0", "pcie-host"),
    "rtx_5090_2x": ("NVIDIA GeForce RTX 5090", 2, 32 * GIB, "12.0", "pcie-host"),
    "rtx_pro_6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1, 96 * GIB, "12.0", "pcie-host"),
    "rtx_pro_6000_2x": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 2, 96 * GIB, "12.0", "pcie-host"),
    "rtx_pro_6000_8x": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 8, 96 * GIB, "12.0", "pcie-host"),
    "mi325x": ("AMD Instinct MI325X", 8, 256 * GB, None, "nvlink"),
    "mi350x": ("AMD Instinct MI350X", 8, 288 * GB, None, "nvlink"),
    "mi355x": ("AMD Instinct MI355X", 8, 288 * GB, None, "nvlink"),
}
CPUS = {"xeon6": (128, 1024 * GIB)}
NO_MACHINE = {
    "trillium": "a TPU",
    "ironwood": "a TPU",
    "arc_pro_b60": "an Intel GPU",
    "arc_pro_b70": "an Intel GPU",
    "ascend_950pr": "an Ascend NPU",
}
"""Hardware that no machine file can describe yet: NVIDIA and AMD GPUs and CPUs are."""

# recipe: (variant, model whose configuration stands for it, why it may)
_SAME = "the same checkpoint in other bits: class and sizes are equal"
STANDS_FOR: Mapping[tuple[str, str], tuple[str, str]] = {
    ("deepseek-ai/DeepSeek-V3.2-Exp", "default"): (
        "deepseek-ai/DeepSeek-V3.2",
        "same class, 671B and context",
    ),
    ("deepseek-ai/DeepSeek-R1", "r1_0528"): ("deepseek-ai/DeepSeek-R1", "a later training of the same model"),
    ("deepseek-ai/DeepSeek-V4-Flash", "default"): (
        "deepseek-ai/DeepSeek-V4-Flash",
        "a later training of the same model",
    ),
    ("deepseek-ai/DeepSeek-V4-Pro", "default"): (
        "deepseek-ai/DeepSeek-V4-Pro",
        "a later training of the same model",
    ),
    ("MiniMaxAI/MiniMax-M2", "default"): ("MiniMaxAI/MiniMax-M2.5", "same class, 230B and context"),
    ("meta-llama/Llama-3.1-8B", "default"): ("meta-llama/Meta-Llama-3.1-8B", "the same model, renamed"),
    ("meta-llama/Llama-3.1-8B-Instruct", "default"): (
        "meta-llama/Meta-Llama-3.1-8B",
        "trained from it: equal configuration",
    ),
    ("zai-org/GLM-4.6", "default"): ("zai-org/GLM-4.7", "same class, context, and 357B against 358B"),
    ("moonshotai/Kimi-K2.6", "default"): ("moonshotai/Kimi-K2.5", "same class, 1T, bits and context"),
    ("moonshotai/Kimi-K2.7-Code", "default"): ("moonshotai/Kimi-K2.5", "same class, 1T, bits and context"),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "default"): (
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
        _SAME,
    ),
    ("poolside/Laguna-S-2.1", "default"): ("poolside/Laguna-S-2.1-FP8", _SAME),
    ("poolside/Laguna-XS.2", "default"): ("poolside/Laguna-XS.2-FP8", _SAME),
    ("poolside/Laguna-XS-2.1", "fp8"): ("poolside/Laguna-XS.2-FP8", "same class, 33B, bits and context"),
}


NO_ROOM = ("weights_do_not_fit", "kv_does_not_fit", "no_kv_memory")
TOO_OLD = ("version", "unknown_flag")
"""Refusals that can hold against a recipe: see `_holds`."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a recipe says of one variant on one machine. `needed` and `suggested` are levers."""

    recipe: str
    variant: str
    model: str
    hardware: str
    basis: str
    min_version: str
    layouts: tuple[str, ...]
    tensor: int | None
    memory_gb: int
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    needed: Mapping[str, Any] = field(default_factory=dict)
    suggested: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.model} on {self.hardware}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """`kept` and `explained` name what was compared; `contradictions` say what differs without a reason. A
    refusal counts as explained, by its first violation, where every violation holds by the recipe itself."""

    kept: tuple[str, ...]
    explained: tuple[str, ...]
    contradictions: tuple[str, ...]


@lru_cache(maxsize=1)
def recipes() -> tuple[dict[str, Any], ...]:
    return tuple(_lines(HERE / "vllm_recipes.jsonl"))


@lru_cache(maxsize=1)
def configs() -> dict[str, dict[str, Any]]:
    """Published configurations by model id: `config`, and `beside` where ModelOpt's file lies beside it."""
    shared = _lines(HERE.parent / "model_card" / "configs.jsonl")
    return {d["model"]: d for d in (*shared, *_lines(HERE / "model_configs.jsonl"))}


def known(recipe: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The variants of a recipe whose configuration is known: variant to (configuration's model, basis)."""
    out = {}
    for variant, facts in recipe["variants"].items():
        model = facts["model_id"] or recipe["model_id"]
        if model in configs():
            out[variant] = (model, "published")
        elif (recipe["model_id"], variant) in STANDS_FOR:
            out[variant] = STANDS_FOR[recipe["model_id"], variant]
    return out


def card_for(e: Expectation) -> ModelCard:
    """The card of an expectation's model, under the model's own name."""
    found = configs()[_stand_in(e)]
    config = dict(found["config"])
    if e.basis == _SAME:
        config.pop("quantization_config", None)
        found = {**found, "beside": None}
    return card_of(config, source=e.model, name=e.model, path=None, beside=found.get("beside"))


def machine_for(hardware: str) -> Machine | None:
    """The machine that a recipe's hardware name means, None where no machine file can say it."""
    if hardware in FILES:
        return load(FILES[hardware])
    if hardware in CPUS:
        cores, memory = CPUS[hardware]
        return _machine(hardware, cores, memory, (), ())
    if hardware not in BUILT:
        return None
    name, count, size, capability, kind = BUILT[hardware]
    gpus = tuple(
        Gpu(
            index=i,
            uuid=f"GPU-{hardware}-{i}",
            name=name,
            memory_bytes=size,
            free_bytes=size - GIB // 2,
            compute_capability=capability,
            vendor="nvidia" if capability else "amd",
        )
        for i in range(count)
    )
    links = tuple(
        Link(a.uuid, b.uuid, "nvlink" if kind == "nvlink" else "pcie-host")
        for a in gpus
        for b in gpus
        if a.index < b.index
    )
    return _machine(hardware, 16 * max(1, count), max(128, 256 * count) * GIB, gpus, links)


def expectations(recipe: Mapping[str, Any]) -> list[Expectation]:
    """One for each variant with a known configuration and each verified machine that a plan can be for."""
    out = []
    for variant, (_, basis) in known(recipe).items():
        facts = recipe["variants"][variant]
        for hardware in recipe.get("verified_hardware", ()):
            machine = machine_for(hardware)
            if machine is None:
                continue
            told, env = _told(recipe, facts, gpu_generation(machine.gpus[0] if machine.gpus else None))
            tensor = recipe.get("strategy_overrides", {}).get("single_node_tp", {}).get("tp")
            features = recipe["features"]
            out.append(
                Expectation(
                    recipe=recipe["model_id"],
                    variant=variant,
                    model=facts["model_id"] or recipe["model_id"],
                    hardware=hardware,
                    basis=basis,
                    min_version=recipe["min_vllm_version"],
                    layouts=tuple(recipe["strategies"]),
                    tensor=tensor.get(hardware) if isinstance(tensor, dict) else tensor,
                    memory_gb=facts["vram_minimum_gb"],
                    tool_call_parser=read(features.get("tool_calling", ())).levers.get("tool_call_parser"),
                    reasoning_parser=read(features.get("reasoning", ())).levers.get("reasoning_parser"),
                    needed=told.levers,
                    suggested=told.suggested,
                    flags=told.flags,
                    env=env,
                )
            )
    return out


def contradictions(plan: Plan, e: Expectation) -> list[str]:
    """What the plan does otherwise without a word on it."""
    return list(judge(plan, e).contradictions)


def judge(plan: Plan, e: Expectation) -> Judgement:
    """Hold a plan against a recipe. Suggested levers, which tune, bind nobody."""
    kept: list[str] = []
    explained: list[str] = []
    wrong: list[str] = []
    for what, expected, actual, why in _compared(plan, e):
        if why is None:
            kept.append(what)
        elif why:
            explained.append(f"{what}: {why}")
        else:
            wrong.append(f"{e}: {what} is {actual!r}, the recipe says {expected!r}, and nothing says why")
    return Judgement(tuple(kept), tuple(explained), tuple(wrong))


Compared = tuple[str, Any, Any, str | None]
"""What, what the recipe says, what the plan does, and why (None: as the recipe says, "": no word on it)."""


def _compared(plan: Plan, e: Expectation) -> Iterator[Compared]:
    low = not at_least(plan.engine.version, e.min_version)
    yield "version", e.min_version, plan.engine.version, _text(plan, e.min_version) if low else None
    for lever, value in e.needed.items():
        yield lever, value, _value(plan, lever), _lever(plan, lever, value)
    for lever in ("tool_call_parser", "reasoning_parser"):
        name = getattr(e, lever)
        decided = _value(plan, lever)
        if name is not None and (plan.goal == "agent" or decided is not None):
            yield lever, name, decided, _lever(plan, lever, name)
    argv = [a for p in plan.processes for a in p.argv]
    for flag, value in _pairs(e.flags):
        yield flag, value, None, None if _has(argv, flag, value) else _left_out(plan, flag)
    env = {k: v for p in plan.processes for k, v in p.env.items()}
    for name, value in e.env.items():
        yield name, value, env.get(name), None if env.get(name) == value else _left_out(plan, name)
    if plan.violations:
        wrongly = [v.code for v in plan.violations if not _holds(v, plan, e)]
        codes = ", ".join(v.code for v in plan.violations)
        yield "launch", "runs", codes, "" if wrongly else plan.violations[0].message
    elif plan.processes:
        yield "launch", "runs", "runs", None
        yield from _layout(plan, e)


def _holds(v: Violation, plan: Plan, e: Expectation) -> bool:
    """Whether what a plan is refused for is so by the recipe itself, which says that the model runs there:
    its least memory is more than the machine has, or the version is older than its lowest."""
    if v.code in NO_ROOM:
        machine = machine_for(e.hardware)
        if machine is None:
            return False
        there = sum(g.memory_bytes for g in machine.gpus) or machine.memory_limit_bytes
        return e.memory_gb * GB > there
    if v.code in TOO_OLD:
        return not at_least(plan.engine.version, e.min_version)
    return False


def _layout(plan: Plan, e: Expectation) -> Iterator[Compared]:
    tensor, pipeline, attention = (
        _value(plan, f"{n}_parallel_size") or 1 for n in ("tensor", "pipeline", "attention_data")
    )
    spread = bool(_value(plan, "expert_parallel"))
    if pipeline > 1:
        name = "pipeline"
    elif attention > 1:
        name = "single_node_dep"
    else:
        name = "single_node_tep" if spread and tensor > 1 else "single_node_tp"
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "expert_parallel")
    decisions = [plan.levers[n] for n in (*sizes, "attention_data_parallel_size") if n in plan.levers]
    why = next((d.reason for d in decisions if d.rejected), "")
    yield "layout", e.layouts, name, None if name in e.layouts else why
    if e.tensor is not None and name == "single_node_tp":
        machine = machine_for(e.hardware)
        devices = len(machine.gpus) if machine is not None else 0
        if 0 < devices < e.tensor:
            why = f"{e.hardware} has {devices}"
        elif not devices and "tensor_parallel_size" in plan.levers:
            why = plan.levers["tensor_parallel_size"].reason
        yield "tensor_parallel_size", e.tensor, tensor, None if tensor == e.tensor else why


def _lever(plan: Plan, lever: str, expected: Any) -> str | None:
    """None where a lever is as expected, else the plan's reason for another value, "" without one."""
    decision = plan.levers.get(lever)
    if decision is None:
        left = plan.layout.get("left_out", {}).get(lever, "")
        return _text(plan, lever) or str(left)
    value = decision.value
    if value == expected or (lever == "max_model_len" and isinstance(value, int) and value <= expected):
        return None
    if lever == "dtype" and value == "auto" and plan.model.get("dtype") in (None, expected):
        return None
    if lever == "kv_cache_dtype" and value == "fp8" and str(expected).startswith("fp8"):
        return None
    refused = next((r.why for r in decision.rejected if r.value == expected), "")
    alone = lever == "expert_parallel" and (_value(plan, "tensor_parallel_size") or 1) == 1
    whole = decision.reason if alone or lever in ("trust_remote_code", "expert_parallel") else ""
    missing = decision.reason if value is None else ""
    # a parser that the version does not have yet, or one that a recipe brings along as a file
    named = ""
    if lever.endswith("_parser"):
        named = decision.reason if str(expected) in decision.reason else _text(plan, str(expected))
    flag = f"--{lever.replace('_', '-')} {expected}"
    return refused or whole or missing or named or _left_out(plan, flag) or _text(plan, lever)


def _left_out(plan: Plan, word: str) -> str:
    """Why the plan leaves out something published, "" where it does not say so."""
    return str(plan.layout.get("published_left_out", {}).get(word, ""))


def _text(plan: Plan, word: str) -> str:
    """The first warning or violation that names a word, "" where none does."""
    said = (*plan.warnings, *(f"{v.message} ({v.remedy})" for v in plan.violations))
    return next((text for text in said if word in text), "")


def _value(plan: Plan, lever: str) -> Any:
    decision = plan.levers.get(lever)
    return decision.value if decision is not None else None


def _told(
    recipe: Mapping[str, Any], variant: Mapping[str, Any], generation: str
) -> tuple[Arguments, dict[str, str]]:
    """The arguments and variables of a recipe for a variant and a GPU generation."""
    told, env = read(recipe.get("base_args", ())), dict(recipe.get("base_env", {}))
    groups = {"hopper": ("nvidia", "hopper"), "blackwell": ("nvidia", "blackwell")}.get(
        generation, (generation,)
    )
    for group in groups:
        more = recipe.get("hardware_overrides", {}).get(group, {})
        told = merged(told, read(more.get("extra_args", ())))
        env |= more.get("extra_env", {})
    told = merged(told, read(variant["extra_args"]))
    parsers = ("tool_call_parser", "reasoning_parser")
    levers = {k: v for k, v in told.levers.items() if k not in parsers}
    return Arguments(levers, told.suggested, told.flags, told.left_out), env


def _pairs(flags: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    for i, word in enumerate(flags):
        if word.startswith("--"):
            following = flags[i + 1] if i + 1 < len(flags) and not flags[i + 1].startswith("--") else None
            yield word, following


def _has(argv: list[str], flag: str, value: str | None) -> bool:
    """Whether a command line holds a flag with a value; of a JSON value every key, whatever else is there."""
    for i, word in enumerate(argv):
        name, equals, inline = word.partition("=")
        if name != flag:
            continue
        there = inline if equals else argv[i + 1] if value is not None and i + 1 < len(argv) else None
        if there == value:
            return True
        if value is not None and there is not None and value.startswith("{") and there.startswith("{"):
            return bool(json.loads(value).items() <= json.loads(there).items())
    return False


def _stand_in(e: Expectation) -> str:
    return STANDS_FOR.get((e.recipe, e.variant), (e.model, ""))[0] if e.basis != "published" else e.model


def _machine(name: str, cores: int, memory: int, gpus: tuple[Gpu, ...], links: tuple[Link, ...]) -> Machine:
    return Machine(
        name=name,
        source="recipes",
        platform="linux",
        cpus=cores,
        logical_cpus=cores,
        physical_cores=cores,
        memory_total_bytes=memory,
        memory_limit_bytes=memory,
        memory_available_bytes=memory * 9 // 10,
        shm_total_bytes=memory // 2,
        shm_free_bytes=memory // 2,
        unified_memory=name == "dgx_spark_gb10",
        gpus=gpus,
        links=links,
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
