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

GPUs get the UUIDs GPU-file-0, GPU-file-1, ...
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LlmserveError, refused, usage
from orchestrator.machine.machine import SCHEMA_VERSION, Gpu, Link, Machine

if TYPE_CHECKING:
    from orchestrator.machine.schema import MachineFile

_MOST_YAML_BYTES = 64 * 1024
_MOST_JSON_BYTES = 8 * 1024 * 1024
_MOST_GPUS = 256
_DEEPEST = 16

Line = Callable[[tuple[int | str, ...]], int | None]
"""From a path of keys and positions to its line, counted from 1; None where it cannot be told."""


def load(path_or_name: str) -> Machine:
    """The machine that a file describes, or one of the project's own by name. `source` is the file.

    Raises LlmserveError: exit 3 where there is no such file, exit 2 where it cannot be read; the message
    names the file, the line, the key and the nearest right key.
    """
    path = _find(path_or_name)
    text = _read(path)
    data, line = _parse(path, text)
    if not isinstance(data, dict):
        raise usage("machine_file", f"{path}: a machine file is a mapping of keys to values", _EXAMPLE)
    if "memory_total_bytes" in data or "memory_limit_bytes" in data:
        return _exact(path, data, line)
    return _written(path, data, line)


def names() -> list[str]:
    """The project's own machines, sorted."""
    found = (p for folder in _folders() if folder.is_dir() for p in folder.iterdir())
    return sorted({p.stem for p in found if p.suffix in (".yaml", ".yml", ".json")})


_EXAMPLE = "`llmserve machine --json` prints one that can be edited"


def _folders() -> tuple[Path, ...]:
    package = Path(__file__).resolve().parent.parent
    return (package / "_profiles" / "machines", package.parent / "profiles" / "machines")


def _find(path_or_name: str) -> Path:
    path = Path(path_or_name).expanduser()
    looks_like_a_file = "/" in path_or_name or path.suffix in (".yaml", ".yml", ".json")
    try:
        if path.is_file():
            return path
        if not looks_like_a_file:
            for folder in _folders():
                for suffix in (".yaml", ".yml", ".json"):
                    if (folder / f"{path_or_name}{suffix}").is_file():
                        return folder / f"{path_or_name}{suffix}"
    except (OSError, ValueError):
        pass
    if looks_like_a_file:
        raise refused("machine_file_missing", f"no machine file {path_or_name}", _EXAMPLE)
    near = difflib.get_close_matches(path_or_name, names(), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    known = ", ".join(names()) or "none"
    raise refused(
        "machine_file_missing",
        f"no machine file or known machine {path_or_name!r}",
        f"{hint}known: {known}; or give the path of a file ({_EXAMPLE})",
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as f:
            raw = f.read(_MOST_JSON_BYTES + 1)
    except OSError as e:
        raise refused(
            "machine_file_unreadable", f"{path}: {e.strerror or e}", "check the path and its permissions"
        ) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise usage("machine_file", f"{path}: not UTF-8 at byte {e.start}", "save it as UTF-8 text") from None
    most = _MOST_JSON_BYTES if text.lstrip()[:1] == "{" else _MOST_YAML_BYTES
    if len(raw) > most:
        raise usage("machine_file", f"{path}: larger than {most} bytes", "a machine file is a page of text")
    return text


def _parse(path: Path, text: str) -> tuple[Any, Line]:
    """The data and a way to its lines."""
    import yaml

    if text.lstrip()[:1] == "{":
        try:
            return json.loads(text), lambda keys: _json_line(text, keys)
        except (ValueError, RecursionError):
            if len(text) > _MOST_YAML_BYTES:
                raise usage("machine_file", f"{path}: not valid JSON", _EXAMPLE) from None
            # a YAML mapping may begin with a brace too
    try:
        _check_events(path, text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = None if node is None else yaml.SafeLoader("").construct_document(node)
    except yaml.MarkedYAMLError as e:
        where = f", line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise usage("machine_file", f"{path}{where}: {e.problem}", "correct the YAML there") from None
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        said = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise usage("machine_file", f"{path}: cannot be read as YAML: {said}", _EXAMPLE) from None
    return data, lambda keys: _yaml_line(node, keys)


def _check_events(path: Path, text: str) -> None:
    """Refuse what a machine file never needs: aliases, which let a page expand to gigabytes, and deep
    nesting, on which PyYAML takes quadratic time."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            what, remedy = f"aliases (*{event.anchor}) are not read here", "write the value out"
        elif depth > _DEEPEST:
            what, remedy = f"nested deeper than {_DEEPEST} levels", _EXAMPLE
        else:
            continue
        at = event.start_mark.line + 1 if event.start_mark else "?"
        raise usage("machine_file", f"{path}, line {at}: {what}", remedy)


def _yaml_line(node: Any, keys: tuple[int | str, ...]) -> int | None:
    import yaml

    line: int | None = None
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(key)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _json_line(text: str, keys: tuple[int | str, ...]) -> int | None:
    word = next((k for k in reversed(keys) if isinstance(k, str)), None)
    at = -1 if word is None else text.find(json.dumps(word, ensure_ascii=False))
    return text.count("\n", 0, at) + 1 if at >= 0 else None


# --- the two forms ---------------------------------------------------------------------------------------


def _exact(path: Path, data: dict[str, Any], line: Line) -> Machine:
    from pydantic import ValidationError

    from orchestrator.machine.schema import exact_machine

    version = data.pop("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise usage(
            "machine_file",
            f"{path}: schema_version {version!r}, this llmserve reads {SCHEMA_VERSION}",
            "print it again with `llmserve machine --json`",
        )
    try:
        return exact_machine(data | {"source": str(path)})
    except ValidationError as e:
        raise _invalid(path, e.errors(include_url=False), line, exact=True) from None


def _written(path: Path, data: dict[str, Any], line: Line) -> Machine:
    from pydantic import ValidationError

    from orchestrator.machine.schema import MachineFile

    try:
        file = MachineFile.model_validate(data)
    except ValidationError as e:
        raise _invalid(path, e.errors(include_url=False), line, exact=False) from None
    if sum(g.count for g in file.gpus) > _MOST_GPUS:
        raise usage(
            "machine_file", f"{path}: more than {_MOST_GPUS} GPUs", "describe one machine, and set `nodes`"
        )
    return _expand(path, file)


def _expand(path: Path, file: MachineFile) -> Machine:
    available = file.memory if file.memory_available is None else file.memory_available
    gpus: list[Gpu] = []
    links: list[Link] = []
    groups: list[int] = []
    for group, entry in enumerate(file.gpus):
        own = file.memory if entry.memory is None else entry.memory
        free = available if entry.memory is None else own
        for _ in range(entry.count):
            groups.append(group)
            gpus.append(
                Gpu(
                    index=len(gpus),
                    uuid=f"GPU-file-{len(gpus)}",
                    name=entry.name,
                    memory_bytes=own,
                    free_bytes=free if entry.free is None else entry.free,
                    compute_capability=entry.compute_capability,
                    vendor=entry.vendor,
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
    )


def _invalid(path: Path, problems: list[Any], line: Line, exact: bool) -> LlmserveError:
    """The first problem, with its line; how many more there are."""
    from orchestrator.machine.schema import keys_at

    unknown = ("extra_forbidden", "unexpected_keyword_argument")
    missing = ("missing", "missing_argument")
    # a typo shows as a missing key and an unknown one: the unknown one says it better
    first = min(problems, key=lambda p: p["type"] not in unknown)
    keys = tuple(first["loc"])
    at = line(keys[:-1] if first["type"] in missing else keys)
    place = str(path) if at is None else f"{path}, line {at}"
    shown = re.sub(r"\.(\d+)", r"[\1]", ".".join(str(k) for k in keys)) or "the file"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] in unknown:
        known = keys_at(keys, exact)
        near = difflib.get_close_matches(str(keys[-1]), known, n=1, cutoff=0.5)
        remedy = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}"
        return usage("machine_file", f"{place}: unknown key `{shown}`{more}", remedy)
    if first["type"] in missing:
        return usage("machine_file", f"{place}: `{shown}` is missing{more}", f"add `{keys[-1]}`")
    said = str(first["msg"]).removeprefix("Value error, ")
    given = repr(first.get("input"))
    return usage(
        "machine_file",
        f"{place}: `{shown}`: {said}; given {given[:60]}{more}",
        f"correct `{keys[-1] if keys else shown}`",
    )
