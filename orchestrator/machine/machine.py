"""The machine: what planning knows of the computer a deployment will run on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of a GPU. `name` is None where it cannot be seen."""

    pid: int
    memory_bytes: int | None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device, or one MIG slice (`mig` True, `uuid` begins with "MIG-")."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    free_bytes: int
    compute_capability: str | None = None
    vendor: Literal["nvidia", "amd"] = "nvidia"
    mig: bool = False
    numa_node: int | None = None
    holders: tuple[Holder, ...] = ()


LinkKind = Literal["nvlink", "pcie-switch", "pcie-host", "cross-socket", "unknown"]


@dataclass(frozen=True, slots=True)
class Link:
    """The best path between two GPUs, by UUID. `bandwidth_gbps` in GB/s one way, None where unknown."""

    a: str
    b: str
    kind: LinkKind
    bandwidth_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """`cpus` is the number of cores' worth of time this process may use (affinity and quota, may be a
    fraction); `physical_cores` those among the allowed logical CPUs. `memory_limit_bytes` is the smaller
    of RAM and cgroup limit; `memory_available_bytes` what can be had now. `source` is "measured" or the file.
    `nodes` above 1 only in machine files; `node_link_gbps` is the network between two of them, GB/s one way a
    node, None where it is not known.
    """

    name: str
    source: str
    platform: str
    cpus: float
    logical_cpus: int
    physical_cores: int
    memory_total_bytes: int
    memory_limit_bytes: int
    memory_available_bytes: int
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    unified_memory: bool = False
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    nodes: int = 1
    notes: tuple[str, ...] = ()
    node_link_gbps: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields by name, JSON types only, with `schema_version`."""
        return {"schema_version": SCHEMA_VERSION} | dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        """The inverse of `to_json`, for what llmserve itself wrote; `load` reads what a person wrote.

        Raises KeyError, TypeError or ValueError on what is no machine.
        """
        d = dict(data)
        version = d.pop("schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            raise ValueError(f"machine schema {version!r}, this version reads {SCHEMA_VERSION}")
        gpus = tuple(Gpu(**g | {"holders": tuple(Holder(**h) for h in g["holders"])}) for g in d["gpus"])
        links = tuple(Link(**link) for link in d["links"])
        return cls(**d | {"gpus": gpus, "links": links, "notes": tuple(d["notes"])})
