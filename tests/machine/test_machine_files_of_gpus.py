"""The project's own GPU machines: each loads, and says what its cards and links are known to be."""

import pytest

from orchestrator.machine import load
from orchestrator.machine.files import names
from orchestrator.machine.gpu_facts import facts

GPUS = {
    "1xt4": ("Tesla T4", 1),
    "1xl4": ("NVIDIA L4", 1),
    "1xa10": ("NVIDIA A10", 1),
    "1xrtx4090": ("NVIDIA GeForce RTX 4090", 1),
    "2xrtx3090-pcie": ("NVIDIA GeForce RTX 3090", 2),
    "4xl40s-pcie": ("NVIDIA L40S", 4),
    "4xa100-80-nvlink": ("NVIDIA A100-SXM4-80GB", 4),
    "8xa100-80": ("NVIDIA A100-SXM4-80GB", 8),
    "8xh100": ("NVIDIA H100 80GB HBM3", 8),
    "8xh200": ("NVIDIA H200", 8),
    "8xb200": ("NVIDIA B200", 8),
    "8xmi300x": ("AMD Instinct MI300X", 8),
    "2x8xh100-ib": ("NVIDIA H100 80GB HBM3", 8),
    "cpu16": ("", 0),
}


def test_every_machine_of_the_list_is_here() -> None:
    assert set(GPUS) <= set(names())


@pytest.mark.parametrize("name", GPUS)
def test_a_machine_has_the_cards_that_its_name_says(name: str) -> None:
    machine = load(name)
    model, count = GPUS[name]
    assert [g.name for g in machine.gpus] == [model] * count
    assert len(machine.links) == count * (count - 1) // 2


@pytest.mark.parametrize("name", [n for n, (_, count) in GPUS.items() if count])
def test_a_machines_cards_and_links_agree_with_the_data_sheets(name: str) -> None:
    machine = load(name)
    known = facts(machine.gpus[0])
    assert known is not None
    assert machine.gpus[0].compute_capability == known.compute_capability
    if known.memory_gib is not None:
        # NVML counts the part that the driver keeps, CUDA does not
        assert 0.97 < known.memory_gib / (machine.gpus[0].memory_bytes / 2**30) <= 1.001
    for link in machine.links:
        if link.kind == "nvlink":
            assert known.link_gbps is not None
            assert link.bandwidth_gbps is not None
            assert link.bandwidth_gbps <= known.link_gbps
        else:
            assert link.bandwidth_gbps in (known.pcie_gbps, known.pcie_gbps / 2, 15.8)


def test_the_two_node_machine_says_what_joins_its_nodes() -> None:
    machine = load("2x8xh100-ib")
    assert (machine.nodes, machine.node_link_gbps) == (2, 400)
    assert load("8xh100").node_link_gbps is None
