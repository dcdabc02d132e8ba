"""Every variable of a plan's processes has a reason, whoever set it, and `--explain` shows it."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace

import planned
import pytest
from rich.console import Console

from orchestrator.cli import plan_view
from orchestrator.planning.planner import make_plan

UNSAID = "llmserve starts this engine so"
R1 = "deepseek-ai/DeepSeek-R1"


def explained(made: planned.Plan) -> str:
    sink = io.StringIO()
    plan_view.explain(Console(width=200, file=sink), made)
    return sink.getvalue()


@pytest.mark.parametrize("kind", planned.KINDS)
@pytest.mark.parametrize("machine", ["8xh200", "8xmi300x", "2x8xh100-ib", "cpu16"])
def test_every_variable_has_a_reason(kind: str, machine: str) -> None:
    version = {"vllm": "0.20.2", "sglang": "0.5.23"}[kind]
    for model, goal in itertools.product((R1, "Qwen/Qwen3-8B"), planned.GOALS):
        made = planned.plan(model, machine, kind=kind, version=version, goal=goal)
        there = {n for p in made.processes for n in p.env}
        assert there == set(made.layout["environment"])
        assert UNSAID not in made.layout["environment"].values()
    assert there


def test_a_recipe_s_variable_and_llmserve_s_own_are_explained() -> None:
    text = explained(planned.plan(R1, "8xh200", version="0.20.2"))
    for line in (
        "VLLM_USE_FLASHINFER_MOE_FP8 = 1",
        f"the model's published launch sets it (published for {R1} on hopper; vllm-project/recipes)",
        "VLLM_NO_USAGE_STATS = 1",
        "DO_NOT_TRACK = 1",
        "no usage statistics leave this machine",
        "CUDA_DEVICE_ORDER = PCI_BUS_ID",
    ):
        assert line in text, line
    text = explained(planned.plan(R1, "8xh200", version="0.33.0"))
    assert "VLLM_USE_FLASHINFER_MOE_FP8: vllm 0.33.0 has no such variable: --moe-backend" in text
    assert "--trust-remote-code: this checkpoint is loaded without code of its own" in text


def test_what_a_person_and_an_entry_set_is_theirs() -> None:
    asked = planned.inputs("Qwen/Qwen3-8B", sets=["env.VLLM_ROCM_USE_AITER=0"], version="0.33.0")
    installed = replace(asked.installation, name="mine", env={"DO_NOT_TRACK": "0", "NCCL_DEBUG": "INFO"})
    made = make_plan(replace(asked, installation=installed))
    said = made.layout["environment"]
    assert said["VLLM_ROCM_USE_AITER"] == "set by --set"
    assert said["DO_NOT_TRACK"] == said["NCCL_DEBUG"] == "env of mine in engines.yaml"
    # values may be secrets: they stand with the process alone
    assert "INFO" not in str(made.layout)


def test_a_variable_that_the_version_does_not_have_is_told() -> None:
    sets = ["env.VLLM_RPC_TIMEOUT=9", "env.VLLM_NO_SUCH=1", "env.MY_OWN=1", "env.VLLM_LOGGING_LEVEL=DEBUG"]
    told = [w for w in planned.plan("Qwen/Qwen3-8B", sets=sets, version="0.33.0").warnings if "env: " in w]
    assert told == [
        f"env: {name} is set, and vllm 0.33.0 has no such variable"
        for name in ("VLLM_RPC_TIMEOUT", "VLLM_NO_SUCH")
    ]
    older = planned.plan("Qwen/Qwen3-8B", sets=sets[:1], version="0.20.2").warnings
    assert not any("env: " in w for w in older)
    unlisted = planned.installation("vllm", "0.33.0")
    unlisted = replace(unlisted, extras={k: v for k, v in unlisted.extras.items() if k != "variables"})
    silent = planned.plan(R1, "8xh200", sets=sets, version="0.33.0", installed=unlisted)
    assert not any("env: " in w for w in silent.warnings)
    # what a recipe sets is not tried where nobody knows
    assert "VLLM_USE_FLASHINFER_MOE_FP8" not in silent.processes[0].env
    assert "unknown" in silent.layout["published_left_out"]["VLLM_USE_FLASHINFER_MOE_FP8"]
