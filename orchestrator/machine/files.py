"""Machine files: plan for a machine that is not here.

YAML or JSON, in one of two forms. What `llmserve machine --json` prints is read back as it is.
A person writes:

    name: two-l4                # optional, else the file's name
    cpus: 16                    # cores' worth of time; may be a fraction
    physical_cores: 8           # optional, else cpus rounded up; logical_cpus likewise
    memory: 64GiB               # limit of host memory: bytes, or a number with KB MB GB TB KiB MiB GiB TiB
    memory_available: 60GiB     # optional, else all of it
    shm: 16GiB                  # optional: /dev/shm
    platform: linux-x86_64      # optional
    unified_memory: false       # true: GPUs use host memory and need no `memory` of their own
    driver_version: "570.86"    # optional, as is cuda_version
    gpus:
      - name: NVIDIA L4
        count: 2
        memory: 23034MiB        # as NVML reports it
        free: 22GiB             # optional, else all of it
        compute_capability: "8.9"
        vendor: nvidia          # or amd
        links: pcie             # between the GPUs of this entry: nvlink, pcie-switch, pcie-host (= pcie)
        bandwidth_gbps: 16      # optional: GB/s one way of such a link
    links: cross-socket         # optional: between GPUs of different entries; the same words, or unknown
    nodes: 1                    # machines like this one
    node_link_gbps: 400         # optional: GB/s one way between two of them, all ports of a node

GPUs get the UUIDs GPU-file-0, GPU-file-1, ...
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import refused
from orchestrator.machine.gpu_facts import is_slice
from orchestrator.machine.machine import SCHEMA_VERSION, Gpu, Link, Machine

if TYPE_CHECKING:
    from orchestrator.machine.schema import MachineFile

_SUFFIXES = (".yaml", ".yml", ".json")
_EXAMPLE = "`llmserve machine --json` prints one that can be edited"


def load(path_or_name: str) -> Machine:
    """The machine that a file describes, or one of the project's own by name. `source` is the file.

    Raises LlmserveError: exit 3 where there is no such file, exit 2 (code "bad_machine_file") where it cannot
    be read, with every problem: file, line, key, and the nearest right key.
    """
    from pydantic import ValidationError

    from orchestrator import strict_yaml
    from orchestrator.machine.schema import ExactFile, MachineFile
    from orchestrator.problems import Problem, error, from_validation

    path = _find(path_or_name)
    # JSON is YAML
    document = strict_yaml.read(path, "bad_machine_file")
    data = dict(document.data)
    exact = "memory_total_bytes" in data or "memory_limit_bytes" in data
    version = data.pop("schema_version", SCHEMA_VERSION) if exact else SCHEMA_VERSION
    form = ExactFile if exact else MachineFile
    try:
        file = form.model_validate(data)
    except ValidationError as e:
        problems = from_validation(e, form)
    else:
        problems = []
    if version != SCHEMA_VERSION:
        message = f"{version!r} is not {SCHEMA_VERSION}, which this llmserve reads"
        problems.append(Problem(("schema_version",), "bad_value", message, "print it again"))
    if problems:
        raise error("bad_machine_file", str(path), [(document.place(p.loc), p) for p in problems], _EXAMPLE)
    if isinstance(file, MachineFile):
        return _expand(path, file)
    return from_json(file.model_dump() | {"source": str(path)})


def from_json(data: Mapping[str, Any]) -> Machine:
    """What llmserve itself wrote; see `Machine.from_json`."""
    return Machine.from_json(data)


def names() -> list[str]:
    """The project's own machines, sorted."""
    found = (p for folder in _folders() if folder.is_dir() for p in folder.iterdir())
    return sorted({p.stem for p in found if p.suffix in _SUFFIXES})


def _folders() -> tuple[Path, ...]:
    package = Path(__file__).resolve().parent.parent
    return (package / "_profiles" / "machines", package.parent / "profiles" / "machines")


def _find(path_or_name: str) -> Path:
    path = Path(path_or_name).expanduser()
    looks_like_a_file = "/" in path_or_name or path.suffix in _SUFFIXES
    try:
        if path.exists() and (looks_like_a_file or not path.is_dir()):
            return path
        known = {p.stem: p for f in _folders() if f.is_dir() for p in f.iterdir() if p.suffix in _SUFFIXES}
    except (OSError, ValueError):
        known = {}
    if not looks_like_a_file and path_or_name in known:
        return known[path_or_name]
    if looks_like_a_file:
        raise refused("machine_file_missing", f"no machine file {path_or_name}", _EXAMPLE)
    near = difflib.get_close_matches(path_or_name[:64], known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise refused(
        "machine_file_missing",
        f"no machine file or known machine {path_or_name!r}",
        f"{hint}known: {', '.join(sorted(known)) or 'none'}; or give the path of a file ({_EXAMPLE})",
    )


def _expand(path: Path, file: MachineFile) -> Machine:
    available = file.memory if file.memory_available is None else file.memory_available
    gpus: list[Gpu] = []
    links: list[Link] = []
    groups: list[int] = []
    for group, entry in enumerate(file.gpus):
        own = file.memory if entry.memory is None else entry.memory
        free = available if entry.memory is None else own
        mig = is_slice(entry.name)
        for _ in range(entry.count):
            groups.append(group)
            gpus.append(
                Gpu(
                    index=len(gpus),
                    uuid=f"{'MIG' if mig else 'GPU'}-file-{len(gpus)}",
                    name=entry.name,
                    memory_bytes=own,
                    free_bytes=free if entry.free is None else entry.free,
                    compute_capability=entry.compute_capability,
                    vendor=entry.vendor,
                    mig=mig,
                )
            )
    for i, j in combinations(range(len(gpus)), 2):
        inside = file.gpus[groups[i]] if groups[i] == groups[j] else None
        kind = inside.links if inside else file.links
        links.append(Link(gpus[i].uuid, gpus[j].uuid, kind, inside.bandwidth_gbps if inside else None))
    cores = math.ceil(file.cpus)
    return Machine(
        name=file.name or path.stem,
        source=str(path),
        platform=file.platform,
        cpus=file.cpus,
        logical_cpus=file.logical_cpus or cores,
        physical_cores=file.physical_cores or file.logical_cpus or cores,
        memory_total_bytes=file.memory,
        memory_limit_bytes=file.memory,
        memory_available_bytes=available,
        shm_total_bytes=file.shm,
        shm_free_bytes=file.shm,
        unified_memory=file.unified_memory,
        gpus=tuple(gpus),
        links=tuple(links),
        driver_version=file.driver_version,
        cuda_version=file.cuda_version,
        nodes=file.nodes,
        notes=tuple(file.notes),
        node_link_gbps=file.node_link_gbps,
    )
