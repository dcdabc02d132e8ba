"""What a machine file may hold, as pydantic sees it. Imported only where a file is read."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    model_validator,
)

from orchestrator.machine.machine import Gpu, Holder, Link, LinkKind, Machine

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{middle}b": base**power
    for power, letter in enumerate("kmgt", start=1)
    for middle, base in (("", 1000), ("i", 1024))
}


def size_bytes(value: Any) -> int:
    """Bytes of a number, or of text such as "64GiB", "23034 MiB", "24GB". Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,3})\s*", str(value))
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError("a size is bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _link_kind(value: Any) -> Any:
    return "pcie-host" if value == "pcie" else value


def _text(value: Any) -> Any:
    # YAML reads an unquoted 8.9 as a number
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Size = Annotated[int, BeforeValidator(size_bytes), Field(ge=0, le=1 << 60)]
Cores = Annotated[int, Field(ge=1, le=1 << 16)]
Name = Annotated[str, BeforeValidator(_text), Field(min_length=1, max_length=200)]
Kind = Annotated[LinkKind, BeforeValidator(_link_kind)]


class GpuEntry(BaseModel):
    """`count` equal GPUs."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    count: int = Field(default=1, ge=1, le=256)
    memory: Size | None = None
    free: Size | None = None
    compute_capability: Annotated[str, BeforeValidator(_text), Field(pattern=r"^\d{1,2}\.\d$")] | None = None
    vendor: Literal["nvidia", "amd"] = "nvidia"
    links: Kind = "unknown"
    bandwidth_gbps: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _free_fits(self) -> GpuEntry:
        if self.free is not None and self.memory is not None and self.free > self.memory:
            raise ValueError("free is more than memory")
        return self


class MachineFile(BaseModel):
    """The form that a person writes; see `files`."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    cpus: float = Field(gt=0, le=1 << 16, allow_inf_nan=False)
    logical_cpus: Cores | None = None
    physical_cores: Cores | None = None
    memory: Size
    memory_available: Size | None = None
    shm: Size | None = None
    platform: Name = "linux-x86_64"
    unified_memory: bool = False
    gpus: list[GpuEntry] = Field(default=[], max_length=256)
    links: Kind = "unknown"
    driver_version: Name | None = None
    cuda_version: Name | None = None
    nodes: int = Field(default=1, ge=1, le=1 << 16)
    notes: list[str] = []

    @model_validator(mode="after")
    def _memory_is_complete(self) -> MachineFile:
        if self.memory_available is not None and self.memory_available > self.memory:
            raise ValueError("memory_available is more than memory")
        if not self.unified_memory and any(g.memory is None for g in self.gpus):
            raise ValueError("a GPU has no memory given; only with unified_memory: true it needs none")
        return self


def exact_machine(data: dict[str, Any]) -> Machine:
    """The dataclass from its own JSON. Raises pydantic.ValidationError."""
    machine: Machine = _ADAPTER.validate_python(data)
    return machine


def _sane(machine: Machine) -> Machine:
    sizes = [machine.memory_total_bytes, machine.memory_limit_bytes, machine.memory_available_bytes]
    sizes += [b for g in machine.gpus for b in (g.memory_bytes, g.free_bytes)]
    if not 0 < machine.cpus <= 1 << 16 or min(sizes) < 0 or min(machine.logical_cpus, machine.nodes) < 1:
        raise ValueError("cpus, sizes and counts are positive")
    return machine


_ADAPTER: TypeAdapter[Machine] = TypeAdapter(Annotated[Machine, AfterValidator(_sane)])


def keys_at(keys: tuple[int | str, ...], exact: bool) -> list[str]:
    """The keys that are known where `keys` leads, in the exact or the written form."""
    inside = next((k for k in reversed(keys[:-1]) if isinstance(k, str)), "")
    if exact:
        kinds: dict[Any, type[Any]] = {"gpus": Gpu, "links": Link, "holders": Holder}
        return [f.name for f in dataclasses.fields(kinds.get(inside, Machine))]
    return list(GpuEntry.model_fields if inside == "gpus" else MachineFile.model_fields)
