"""Ports that attention ranks take beside SGLang's own."""

import pytest

from orchestrator.engines.base import RenderRequest
from orchestrator.engines.sglang.captured import captured, versions
from orchestrator.engines.sglang.render import render
from orchestrator.plan import Decision, ProcessPlan, bind


def server(version: str, **levers) -> ProcessPlan:
    decided = {name: Decision(value, "", "user") for name, value in levers.items()}
    return render(RenderRequest(decided, captured(version), "/m", "m")).processes[0]


@pytest.mark.parametrize("version", versions())
@pytest.mark.parametrize("ranks", [2, 8])
def test_attention_ranks_meet_at_a_port_that_is_chosen_with_those_above_it(version, ranks):
    process = server(version, attention_data_parallel_size=ranks, expert_parallel=True)
    above = [f"dist+{n}" for n in range(1, 7 + ranks)]
    assert list(process.ports) == ["http", "nccl", "dist", *above]
    ports = {name: 9000 + place for place, name in enumerate(process.ports)}
    argv = bind(process, ports, "/t", "/l", {}).argv
    assert argv[argv.index("--dist-init-addr") + 1] == "127.0.0.1:9002"


@pytest.mark.parametrize("levers", [{}, {"tensor_parallel_size": 8}, {"data_parallel_size": 4}])
def test_without_them_no_port_is_kept(levers):
    process = server("0.5.23", **levers)
    assert not [name for name in process.ports if name.startswith("dist")]
    assert "--dist-init-addr" not in process.argv
