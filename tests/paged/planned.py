"""Plans for machines, models and engine versions that need nothing on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator import profiles
from orchestrator.engines import registry
from orchestrator.engines.base import Engine, Installation
from orchestrator.machine import Machine, load
from orchestrator.model_card.card import ModelCard
from orchestrator.model_card.huggingface import card_of
from orchestrator.plan import Plan
from orchestrator.planning.planner import make_plan
from orchestrator.planning.request import Choice, PlanInputs, Reservations
from orchestrator.profiles import Resolved

HERE = Path(__file__).parent
GOALS = ("throughput", "latency", "agent", "edge")
KINDS = ("vllm", "sglang")
MACHINES = (
    "1xt4", "1xl4", "1xa10", "1xrtx4090", "2xrtx3090-pcie", "4xl40s-pcie", "4xa100-80-nvlink", "8xa100-80",
    "8xh100", "8xh200", "8xb200", "8xmi300x", "2x8xh100-ib",
)  # fmt: skip


@cache
def rows() -> Mapping[str, dict[str, Any]]:
    """Published configurations by the model's name, those of tests/model_card among them."""
    files = (HERE.parent / "model_card" / "configs.jsonl", HERE / "model_configs.jsonl")
    lines = (json.loads(line) for file in files for line in file.read_text().splitlines())
    return {row["model"]: row for row in lines}


@cache
def configs() -> Mapping[str, dict[str, Any]]:
    """Published config.json files by the model's name, those of tests/model_card among them."""
    return {model: row["config"] for model, row in rows().items()}


@cache
def card(model: str) -> ModelCard:
    """The card of a published configuration, ModelOpt's file beside it read as the store reads it."""
    row = rows()[model]
    name = model.rsplit("/", 1)[-1]
    return card_of(row["config"], source=model, name=name, path=None, beside=row.get("beside"))


@cache
def machine(name: str) -> Machine:
    return load(name)


@cache
def engine(kind: str) -> Engine:
    return registry.engine(kind)


@cache
def installation(kind: str, version: str | None = None, device: str = "cuda") -> Installation:
    return engine(kind).captured(version, device)


@cache
def _resolved(goal: str, sets: tuple[str, ...]) -> Resolved:
    return profiles.resolve(goal=goal, sets=list(sets))


def inputs(
    model: str | ModelCard,
    on: str | Machine = "8xh100",
    *,
    goal: str = "latency",
    kind: str = "vllm",
    version: str | None = None,
    sets: Sequence[str] = (),
    draft: ModelCard | None = None,
    reservations: Reservations | None = None,
    installed: Installation | None = None,
    launching: bool = False,
) -> PlanInputs:
    """Everything a plan depends on; `sets` as `--set` takes them."""
    the_card = card(model) if isinstance(model, str) else model
    there = machine(on) if isinstance(on, str) else on
    device = "cpu" if not there.gpus else "rocm" if there.gpus[0].vendor == "amd" else "cuda"
    return PlanInputs(
        resolved=_resolved(goal, tuple(sets)),
        card=the_card,
        machine=there,
        installation=installed or installation(kind, version, device),
        engine=engine(kind),
        served_model=the_card.name,
        name="test",
        model_choice=Choice(the_card.source, "given", "asked"),
        engine_choice=Choice(kind, "given", "asked"),
        draft=draft,
        reservations=reservations or Reservations(),
        launching=launching,
    )


def plan(model: str | ModelCard, on: str | Machine = "8xh100", **how: Any) -> Plan:
    return make_plan(inputs(model, on, **how))


def flags(made: Plan) -> list[str]:
    """The flags of a plan's command line."""
    return [word for p in made.processes for word in p.argv if word.startswith("--")]
