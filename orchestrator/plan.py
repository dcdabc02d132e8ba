"""Plan and LaunchSpec: the data between deciding and doing.

A Plan is what the planner decided, with placeholders (`{port:http}`, `{tmpdir}`) where only the start can
know. A LaunchSpec is one process of it with every placeholder bound. Both are plain JSON on disk and on
the daemon's socket.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Rejected:
    """An alternative that was not taken."""

    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One lever, decided.

    `rule` is the snake_case name of the rule that decided ("user" where the user did); `stock` is True
    where the value is the engine's own default; `lossless` is False where it can change answers.
    """

    value: Any
    reason: str
    rule: str
    lossless: bool = True
    stock: bool = False
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """A figure known before launch; `basis` says where it comes from ("computed", "estimated", "unknown")."""

    value: float | int | None
    unit: str
    basis: str


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a plan is refused: what is so, and what to do."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process tree: `argv` holds placeholders; `ports` maps a port's name to a fixed number, or None
    for the first free one (a name NAME+N is the port N above NAME's); `bound` is the address it listens
    on."""

    role: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int | None] = field(default_factory=dict)
    bound: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class EngineRef:
    """The engine a plan is for. `captured` is True where its flags come from the project's data."""

    name: str
    kind: str
    version: str
    captured: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided, with reasons. See the module docstring.

    `model` holds `{source, path, name, format, ...}`, `machine` a short summary, `supervision` the profile's
    supervision block. `steps_down` maps a failure class to the plan one lever lower.
    """

    goal: str
    profile: str
    model: dict[str, Any]
    machine: dict[str, Any]
    engine: EngineRef
    levers: dict[str, Decision]
    predictions: dict[str, Prediction]
    processes: tuple[ProcessPlan, ...]
    layout: dict[str, Any] = field(default_factory=dict)
    not_expressible: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
    steps_down: dict[str, Any] = field(default_factory=dict)
    fallback: Any = None
    supervision: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """The contract's keys, JSON types only."""
        data: dict[str, Any] = _plain(self)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError on what is no plan."""
        if data.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(
                f"plan schema {data.get('schema_version')!r}, this version reads {SCHEMA_VERSION}"
            )
        d = dict(data)
        return cls(
            **d
            | {
                "engine": EngineRef(**d["engine"]),
                "levers": {
                    k: Decision(**v | {"rejected": tuple(Rejected(**r) for r in v["rejected"])})
                    for k, v in d["levers"].items()
                },
                "predictions": {k: Prediction(**v) for k, v in d["predictions"].items()},
                "processes": tuple(ProcessPlan(**p | {"argv": tuple(p["argv"])}) for p in d["processes"]),
                "not_expressible": tuple(d["not_expressible"]),
                "warnings": tuple(d["warnings"]),
                "violations": tuple(Violation(**v) for v in d["violations"]),
            }
        )


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One process with everything bound: what the shim is told to start."""

    role: str
    argv: tuple[str, ...]
    env: dict[str, str]
    ports: dict[str, int]
    bound: str
    tmpdir: str
    log: str
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = _plain(self)
        return data


def bind(
    process: ProcessPlan, ports: Mapping[str, int], tmpdir: str, log: str, env: Mapping[str, str]
) -> LaunchSpec:
    """Fill every placeholder of `process`; `env` is the allowed environment the process's own is laid over.

    Raises KeyError where a port that the process names is not in `ports`.
    """

    def fill(text: str) -> str:
        for name in process.ports:
            text = text.replace("{port:" + name + "}", str(ports[name]))
        return text.replace("{tmpdir}", tmpdir)

    return LaunchSpec(
        role=process.role,
        argv=tuple(fill(a) for a in process.argv),
        env={**env, **{k: fill(v) for k, v in process.env.items()}},
        ports={name: ports[name] for name in process.ports},
        bound=process.bound,
        tmpdir=tmpdir,
        log=log,
    )


_ATOMS = frozenset({str, int, float, bool, type(None)})


def _plain(value: Any) -> Any:
    """JSON types only: dataclasses as their fields, keys as text, sequences as lists."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {
            key if type(key) is str else str(key): v if type(v) in _ATOMS else _plain(v)
            for key, v in value.items()
        }
    if kind is tuple or kind is list:
        return [v if type(v) in _ATOMS else _plain(v) for v in value]
    names = _names(kind)  # type: ignore[arg-type]
    if names is not None:
        out = {}
        for name in names:
            v = getattr(value, name)
            out[name] = v if type(v) in _ATOMS else _plain(v)
        return out
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_plain(v) for v in value]
    return value


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """A dataclass's fields; None of anything else."""
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
