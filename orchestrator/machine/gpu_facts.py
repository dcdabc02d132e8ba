"""What a GPU can do, by its name: the figures of `profiles/gpus.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.machine.machine import Gpu

_LANE_GBPS = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s one way of one PCIe lane by generation (PCI-SIG base specifications)."""

_MIG = re.compile(r"\b(\d)g\.(\d+)gb\b")
_MIG_COMPUTE_SLICES = 7
_MIG_MEMORY_SLICES = 8
"""A GPU in MIG mode is cut into 7 compute and 8 memory slices (NVIDIA MIG User Guide, "Partitioning")."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One device's published figures; a MIG slice has its share of them.

    `bandwidth_gbps`, `link_gbps` (to all peers over NVLink or Infinity Fabric) and `pcie_gbps` are GB/s one
    way; `tflops_*` dense, None where the silicon has no such unit. `bridge` is True where only pairs with a
    bridge have the link. `memory_gib` is what CUDA or HIP shows, None where no public log prints it. `native`
    are the number formats it computes with, `loads` those whose weights kernels unpack first. `source` is
    the data sheet.
    """

    model: str
    generation: str
    memory_gib: float | None
    bandwidth_gbps: float
    tflops_16: float
    tflops_fp8: float | None
    tflops_fp4: float | None
    tflops_int8: float | None
    link_gbps: float | None
    bridge: bool
    pcie_gbps: float
    compute_capability: str | None
    bf16: bool
    native: frozenset[str]
    loads: frozenset[str]
    fp8_kv: bool
    source: str

    def can_load(self, weights: str) -> bool:
        """Whether engines have kernels for weights in this format: fp8, int8, int4, nvfp4, mxfp4."""
        return weights in self.native or weights in self.loads


def is_slice(name: str) -> bool:
    """Whether a name is a MIG slice's ("A100-SXM4-40GB MIG 1g.5gb")."""
    return _MIG.search(name.lower()) is not None


def facts(gpu: Gpu) -> GpuFacts | None:
    """The figures of this device, None where its name is not known."""
    found = named(gpu.name)
    return found if found is None or not gpu.mig else _slice(found, gpu.name)


@cache
def named(name: str) -> GpuFacts | None:
    """The figures of a device by its name as NVML or amdsmi prints it, None where it is not known."""
    words = frozenset(re.split(r"[^a-z0-9]+", name.lower()))
    return next((found for wanted, found in _table() if wanted <= words), None)


def _slice(whole: GpuFacts, name: str) -> GpuFacts:
    """A MIG slice's share: compute by its "g", bandwidth by its memory slices; neither NVLink nor peers."""
    match = _MIG.search(name.lower())
    compute = int(match[1]) / _MIG_COMPUTE_SLICES if match else 1 / _MIG_COMPUTE_SLICES
    memory = 1 / _MIG_MEMORY_SLICES
    if match and whole.memory_gib:
        eighths = round(int(match[2]) / whole.memory_gib * _MIG_MEMORY_SLICES)
        memory = max(1, min(_MIG_MEMORY_SLICES, eighths)) / _MIG_MEMORY_SLICES

    def share(rate: float | None) -> float | None:
        return None if rate is None else rate * compute

    return replace(
        whole,
        memory_gib=None if whole.memory_gib is None else whole.memory_gib * memory,
        bandwidth_gbps=whole.bandwidth_gbps * memory,
        tflops_16=whole.tflops_16 * compute,
        tflops_fp8=share(whole.tflops_fp8),
        tflops_fp4=share(whole.tflops_fp4),
        tflops_int8=share(whole.tflops_int8),
        link_gbps=None,
    )


@cache
def _table() -> tuple[tuple[frozenset[str], GpuFacts], ...]:
    """(words that must all stand in a name, figures), the most particular first."""
    import yaml

    # the C loader reads the file in a tenth of the time
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(_path().read_text("utf-8"), Loader=loader)
    rows: list[tuple[frozenset[str], GpuFacts]] = []
    for entry in data["gpus"]:
        names = [entry["match"]] if isinstance(entry["match"], str) else entry["match"]
        figures = _figures(str(names[0]), entry, data["generations"][entry["generation"]])
        rows += [(frozenset(name.split()), figures) for name in names]
    return tuple(rows)


def _figures(model: str, entry: dict[str, Any], generation: dict[str, Any]) -> GpuFacts:
    return GpuFacts(
        model=model,
        generation=entry["generation"],
        memory_gib=entry["memory_gib"],
        bandwidth_gbps=float(entry["gbps"]),
        tflops_16=float(entry["bf16"] or entry["fp16"]),
        tflops_fp8=entry["fp8"],
        tflops_fp4=entry["fp4"],
        tflops_int8=entry["int8"],
        link_gbps=entry["link"],
        bridge=entry.get("bridge", False),
        pcie_gbps=round(_LANE_GBPS[entry["pcie"]] * entry.get("lanes", 16), 1),
        compute_capability=entry["cc"],
        bf16=generation["bf16"],
        native=frozenset(generation["native"]),
        loads=frozenset(generation["loads"]),
        fp8_kv=generation["fp8_kv"],
        source=entry["from"],
    )


def _path() -> Path:
    package = Path(__file__).resolve().parent.parent
    installed = package / "_profiles" / "gpus.yaml"
    return installed if installed.exists() else package.parent / "profiles" / "gpus.yaml"
