"""What a machine file may hold, as pydantic sees it. Imported only where a file is read."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from orchestrator.machine.machine import Gpu, Holder, Link, LinkKind, Machine
from orchestrator.problems import Problem, Problems, shown

_MOST_GPUS = 256

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{middle}b": base**power
    for power, letter in enumerate("kmgt", start=1)
    for middle, base in (("", 1000), ("i", 1024))
}


def size_bytes(value: Any) -> int:
    """Bytes of a number, or of text such as "64GiB", "23034 MiB", "24GB". Raises Problems."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,3})\s*", str(value), re.ASCII)
    if match is None or match[2].lower() not in _UNITS:
        remedy = "write bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB"
        raise Problems([Problem((), "bad_value", f"{shown(value)} is no size", remedy)])
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


def _across(key: str, message: str, remedy: str = "") -> Problems:
    return Problems([Problem((key,), "bad_value", message, remedy or f"correct `{key}`")])


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
            raise _across("free", "`free` is more than `memory`")
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
    node_link_gbps: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    notes: list[str] = []

    @model_validator(mode="after")
    def _memory_is_complete(self) -> MachineFile:
        if self.memory_available is not None and self.memory_available > self.memory:
            raise _across("memory_available", "`memory_available` is more than `memory`")
        bare = [i for i, g in enumerate(self.gpus) if g.memory is None]
        if bare and not self.unified_memory:
            remedy = "add `memory: ...`, or `unified_memory: true` where it uses the host's"
            raise Problems([Problem(("gpus", bare[0]), "missing_key", "the key `memory` is missing", remedy)])
        if sum(g.count for g in self.gpus) > _MOST_GPUS:
            raise _across("gpus", f"more than {_MOST_GPUS} GPUs", "describe one machine, and set `nodes`")
        return self


def _form(kind: type[Any], **inner: Any) -> type[BaseModel]:
    """A strict pydantic model with a dataclass's fields; `inner` replaces the types of nested ones."""
    hints = get_type_hints(kind)
    fields: dict[str, Any] = {
        f.name: (inner.get(f.name, hints[f.name]), ... if f.default is dataclasses.MISSING else f.default)
        for f in dataclasses.fields(kind)
    }
    form: type[BaseModel] = create_model(kind.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    return form


Count = Annotated[int, Field(ge=0)]
HolderForm = _form(Holder)
GpuForm = _form(Gpu, memory_bytes=Count, free_bytes=Count, holders=list[HolderForm])  # type: ignore[valid-type]
ExactFile = _form(
    Machine,
    cpus=Annotated[float, Field(gt=0, le=1 << 16, allow_inf_nan=False)],
    logical_cpus=Cores,
    physical_cores=Cores,
    memory_total_bytes=Count,
    memory_limit_bytes=Count,
    memory_available_bytes=Count,
    gpus=list[GpuForm],  # type: ignore[valid-type]
    links=list[_form(Link)],  # type: ignore[misc]
    nodes=Cores,
)
"""The form that `llmserve machine --json` prints."""
