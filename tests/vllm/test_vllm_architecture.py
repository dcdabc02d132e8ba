from dataclasses import replace

import pytest

from orchestrator.engines.base import Installation
from orchestrator.engines.vllm.captured import captured
from orchestrator.engines.vllm.checks import check, warnings
from orchestrator.plan import EngineRef, Plan, ProcessPlan

OFFLINE = captured("0.32.0", "cuda")
ASKED = replace(OFFLINE, extras={**OFFLINE.extras, "transformers_architectures": ["OnlyThereForCausalLM"]})


def plan(engine: Installation, architecture: str, *words: str, **facts: object) -> Plan:
    return Plan(
        goal="throughput", profile="p", model={"architectures": [architecture], **facts}, machine={},
        engine=EngineRef("vllm", "vllm", engine.version), levers={}, predictions={},
        processes=(ProcessPlan("server", (*engine.argv, "/m", *words), {}),),
    )  # fmt: skip


def codes(engine: Installation, architecture: str, *words: str, **facts: object) -> list[str]:
    return [v.code for v in check(plan(engine, architecture, *words, **facts), engine)]


@pytest.mark.parametrize("name", ["NopeForCausalLM", "Nope"])
def test_an_architecture_that_an_installation_lacks_is_refused(name: str) -> None:
    assert codes(ASKED, name) == ["architecture_unknown"]
    overrides = ("--hf-overrides", '{"architectures":["' + name + '"]}')
    assert codes(ASKED, "LlamaForCausalLM", *overrides) == ["architecture_unknown"]
    assert codes(ASKED, name, needs_remote_code=True) == ["remote_code"]


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "OnlyThereForCausalLM", "LlamaForSequenceClassification"]
)
def test_one_that_it_has_or_makes_or_leaves_to_transformers_is_not(name: str) -> None:
    assert codes(ASKED, name) == []


def test_of_a_version_that_is_not_here_it_is_said_and_not_refused() -> None:
    assert codes(OFFLINE, "NopeForCausalLM") == []
    assert any("NopeForCausalLM" in w for w in warnings(plan(OFFLINE, "NopeForCausalLM"), OFFLINE))
    assert not any("code" in w for w in warnings(plan(OFFLINE, "LlamaForCausalLM"), OFFLINE))
    older = captured("0.27.1", "cuda")
    assert warnings(plan(older, "NopeForCausalLM"), older) == []
