"""What is known of GPUs, by the names that drivers print."""

from dataclasses import replace

import pytest

from orchestrator.machine import Gpu
from orchestrator.machine.gpu_facts import _table, facts, named

GIB = 2**30

NAMES = [
    ("NVIDIA H100 80GB HBM3", 3350, 989, 450, "9.0"),
    ("NVIDIA H100 PCIe", 2039, 756, 300, "9.0"),
    ("NVIDIA H100 NVL", 3938, 835, 300, "9.0"),
    ("NVIDIA H200", 4800, 989, 450, "9.0"),
    ("NVIDIA H20", 4000, 148, 450, "9.0"),
    ("NVIDIA GH200 480GB", 4000, 990, 450, "9.0"),
    ("NVIDIA GH200 144G HBM3e", 4900, 990, 450, "9.0"),
    ("NVIDIA B200", 8000, 2250, 900, "10.0"),
    ("NVIDIA B300 SXM6 AC", 8000, 2250, 900, "10.3"),
    ("NVIDIA GB200", 8000, 2500, 900, "10.0"),
    ("NVIDIA GB10", 273, 125, None, "12.1"),
    ("NVIDIA A100-SXM4-80GB", 2039, 312, 300, "8.0"),
    ("NVIDIA A100 80GB PCIe", 1935, 312, 300, "8.0"),
    ("A100-SXM4-40GB", 1555, 312, 300, "8.0"),
    ("NVIDIA A100-PCIE-40GB", 1555, 312, 300, "8.0"),
    ("NVIDIA A10", 600, 125, None, "8.6"),
    ("NVIDIA A10G", 600, 70, None, "8.6"),
    ("NVIDIA A30", 933, 165, 100, "8.0"),
    ("NVIDIA A40", 696, 149.7, 56.25, "8.6"),
    ("NVIDIA RTX A6000", 768, 154.8, 56.25, "8.6"),
    ("NVIDIA RTX 6000 Ada Generation", 960, 364.2, None, "8.9"),
    ("NVIDIA L4", 300, 121, None, "8.9"),
    ("NVIDIA L40", 864, 181, None, "8.9"),
    ("NVIDIA L40S", 864, 362, None, "8.9"),
    ("Tesla T4", 320, 65, None, "7.5"),
    ("Tesla V100-SXM2-32GB", 900, 125, 150, "7.0"),
    ("Tesla P40", 346, 11.8, None, "6.1"),
    ("NVIDIA GeForce RTX 3060", 360, 25.5, None, "8.6"),
    ("NVIDIA GeForce RTX 3090", 936, 71.2, 56.25, "8.6"),
    ("NVIDIA GeForce RTX 3090 Ti", 1008, 80, 56.25, "8.6"),
    ("NVIDIA GeForce RTX 4060 Ti", 288, 44.1, None, "8.9"),
    ("NVIDIA GeForce RTX 4070", 504, 58.3, None, "8.9"),
    ("NVIDIA GeForce RTX 4080", 716.8, 97.5, None, "8.9"),
    ("NVIDIA GeForce RTX 4090", 1008, 165.2, None, "8.9"),
    ("NVIDIA GeForce RTX 5060 Ti", 448, 47.4, None, "12.0"),
    ("NVIDIA GeForce RTX 5070 Ti", 896, 87.9, None, "12.0"),
    ("NVIDIA GeForce RTX 5080", 960, 112.6, None, "12.0"),
    ("NVIDIA GeForce RTX 5090", 1792, 209.5, None, "12.0"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1792, 504, None, "12.0"),
    ("AMD Instinct MI210", 1638, 181, 150, None),
    ("AMD Instinct MI250X / MI250", 1638, 191.5, 200, None),
    ("AMD Instinct MI300X OAM", 5300, 1307, 448, None),
    ("AMD Instinct MI325X", 6000, 1307, 448, None),
    ("AMD Instinct MI355X", 8000, 2516, 537, None),
]


@pytest.mark.parametrize(("name", "bandwidth", "tflops", "link", "capability"), NAMES)
def test_a_drivers_name_finds_the_data_sheets_figures(
    name: str, bandwidth: float, tflops: float, link: float | None, capability: str | None
) -> None:
    known = named(name)
    assert known is not None
    found = (known.bandwidth_gbps, known.tflops_16, known.link_gbps, known.compute_capability)
    assert found == (bandwidth, tflops, link, capability)
    assert known.source


@pytest.mark.parametrize(
    "name", ["", "unknown", "test card", "NVIDIA L400", "Intel Arc Pro B70", "Quadro K620"]
)
def test_an_unknown_card_has_no_figures(name: str) -> None:
    assert named(name) is None


def test_no_entry_is_hidden_by_one_before_it() -> None:
    table = _table()
    hidden = [b for i, (b, _) in enumerate(table) for a, _ in table[:i] if a <= b]
    assert not hidden


def test_figures_are_plausible_for_every_card() -> None:
    for _, f in _table():
        assert 100 <= f.bandwidth_gbps <= 10_000
        assert 0 < f.tflops_16 <= 3000
        assert ("fp8" in f.native) == (f.tflops_fp8 is not None)
        assert (f.tflops_fp4 is not None) == bool({"nvfp4", "mxfp4"} & f.native)
        if f.tflops_fp8 is not None:
            assert 1.9 * f.tflops_16 < f.tflops_fp8 < 2.1 * f.tflops_16
        assert f.bf16 == (f.generation not in ("pascal", "volta", "turing"))
        assert f.link_gbps is None or f.link_gbps >= 50
        assert not f.bridge or f.link_gbps


def test_what_a_generation_can_load_and_compute() -> None:
    turing, ampere, hopper, blackwell = (
        named(n) for n in ("Tesla T4", "NVIDIA A10", "NVIDIA H100", "NVIDIA B200")
    )
    assert turing
    assert ampere
    assert hopper
    assert blackwell
    assert not turing.bf16
    assert not turing.fp8_kv
    assert "fp8" not in ampere.native
    assert ampere.can_load("fp8")
    assert hopper.can_load("fp8")
    assert hopper.tflops_fp4 is None
    assert "nvfp4" in blackwell.native


def test_a_mig_slice_has_its_share_and_no_link() -> None:
    whole = Gpu(0, "GPU-0", "NVIDIA A100-SXM4-80GB", 80 * GIB, 80 * GIB, "8.0")
    full = facts(whole)
    part = facts(replace(whole, uuid="MIG-1", name="NVIDIA A100-SXM4-80GB MIG 3g.40gb", mig=True))
    assert full
    assert part
    assert part.bandwidth_gbps == full.bandwidth_gbps / 2
    assert part.tflops_16 == pytest.approx(full.tflops_16 * 3 / 7)
    assert part.link_gbps is None
