"""The engine contract: everything the rest of llmserve may know about an engine.

An engine's folder is the only place that knows its flags, endpoints, metrics, log lines, signals and quirks.
Deciding methods (`render`, `check`, `compare`, `classify`, `phase`) take data and return data. Doing methods
(`installations`, and the async ones) touch the system and raise nothing but `LlmserveError` and what is said.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from orchestrator.plan import Decision, Plan, ProcessPlan, Violation

if TYPE_CHECKING:
    import httpx

    from orchestrator.machine.machine import Gpu


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as the installation itself lists it. `spellings` are all its names, dashes and negations too.

    `type` is the parser's own word for the value ("int", "float", "str", "json", "bool", ...), `nargs` is how
    many it takes ("" one, or what argparse calls "?", "*", "+"); both "" where the installation does not say.
    """

    spellings: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...] = ()
    default: str | None = None
    help: str = ""
    type: str = ""
    nargs: str = ""


@dataclass(frozen=True)
class Installation:
    """An engine that can be started: `argv` is its prefix (program, or interpreter and module).

    `name` is its name in engines.yaml or the engine's default one. `flags` is what its own parser accepts.
    `extras` are kind-specific facts of the probe (plain JSON). `captured` is True where the flags come from
    the project's data and nothing is installed here (`argv` is then only for show). One that is there and
    cannot be used has no flags, and in `extras` what is wrong (`broken`) and what to do (`remedy`).
    """

    name: str
    kind: str
    version: str
    argv: tuple[str, ...]
    flags: tuple[Flag, ...]
    env: dict[str, str] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    captured: bool = False

    @cached_property
    def by_spelling(self) -> Mapping[str, Flag]:
        """Every spelling there is, with its flag; the first where two flags share one."""
        return {s: f for f in reversed(self.flags) for s in f.spellings}

    def flag(self, spelling: str) -> Flag | None:
        """The flag with this spelling (dashes included), or None."""
        return self.by_spelling.get(spelling)

    def nearest(self, spelling: str) -> str | None:
        """The known spelling closest to an unknown one, or None where nothing is near."""
        known = [s for f in self.flags for s in f.spellings]
        close = difflib.get_close_matches(spelling, known, n=1, cutoff=0.6)
        return close[0] if close else None


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """What an engine needs to turn levers into a command line.

    `served_model` is the name the server answers to. `host` is the address to bind; `port` None = first free.
    `engine_args` are the user's raw extras for this engine; they are refused where the plan owns the flag.
    `nodes` are the machines, all alike, over which one deployment is spread. `device_indexes` are NVML's
    numbers of the machine's GPUs by UUID, in the order of the PCI bus.
    """

    levers: Mapping[str, Decision]
    installation: Installation
    model_path: str
    served_model: str
    host: str = "127.0.0.1"
    port: int | None = None
    engine_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    api_key_file: str | None = None
    nodes: int = 1
    device_indexes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The dialect of a plan: processes, levers this engine cannot express, and what it refuses."""

    processes: tuple[ProcessPlan, ...]
    not_expressible: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()


HealthState = Literal["refused", "loading", "ok", "unauthorized", "sick", "timeout"]


@dataclass(frozen=True, slots=True)
class Health:
    """One look at an engine's own health endpoint. "refused": nobody listens (yet)."""

    state: HealthState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Counters that only move when tokens move, and how many requests the engine says run and wait."""

    tokens: float
    running: int | None = None
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class FactCheck:
    """One planned figure against what the engine reports."""

    what: str
    planned: Any
    actual: Any
    ok: bool


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: `code` (0-255) or `signal`, the other None."""

    code: int | None = None
    signal: int | None = None


Retry = Literal["never", "backoff", "once", "step_down", "wait_memory"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure's class (snake_case), the engine's own line as evidence, and what to do."""

    failure_class: str
    message: str
    evidence: str
    remedy: str
    retry: Retry


@dataclass(frozen=True, slots=True)
class StopStep:
    """Send `signal` to the engine's leader, then wait up to `wait_s` for the tree to be empty."""

    signal: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class StopRecipe:
    """`wait_idle`: before the first signal wait (up to the drain time) until the engine reports no work.
    After the last step whatever is left is killed."""

    wait_idle: bool
    steps: tuple[StopStep, ...]


class Engine(Protocol):
    """See the module docstring. One stateless object per engine kind."""

    kind: str
    formats: tuple[str, ...]
    """Model formats it loads, best first ("gguf", "safetensors")."""
    shared_memory: tuple[str, ...]
    """What it leaves below /dev/shm where it is killed, or always: glob patterns of names."""

    # deciding
    def stock(self, lever: str, installation: Installation, gpu: Gpu | None = None) -> Any:
        """The engine's own default of a lever in the lever's unit, on a kind of device where that matters;
        None where it computes one."""

    def captured_versions(self) -> tuple[str, ...]:
        """Versions whose flags the project's data holds, oldest first; () where a plan needs one."""

    def captured(self, version: str | None, device: str) -> Installation:
        """An installation of the project's data (`captured` True) for "cuda", "rocm" or "cpu": of the newest
        known version not above `version`, of the newest where None.

        Raises LlmserveError (exit 5) where no known version is near.
        """

    def render(self, request: RenderRequest) -> Rendered:
        """Levers to command line. Only flags the installation lists are emitted."""

    def check(self, plan: Plan, installation: Installation) -> list[Violation]:
        """Everything the engine would refuse at start, all at once."""

    def warnings(self, plan: Plan, installation: Installation) -> list[str]:
        """What the engine would start with and silently do otherwise than planned."""

    def phase(self, log: str) -> str:
        """The phase of a start (fetch, load, compile, warm-up) that a log's end shows."""

    def fatal_line(self, log: str) -> str | None:
        """A line after which this start can never become ready although the process lives; None as a rule."""

    def log_facts(self, log: str) -> dict[str, Any]:
        """What a start's log says of what `facts()` may not: `facts()` goes before it."""

    def compare(self, plan: Plan, facts: Mapping[str, Any]) -> list[FactCheck]:
        """Planned levers and predictions against `facts()`."""

    def classify(self, log: str, exit: Exit) -> Failure:
        """The first cause in a whole log, never the generic last line."""

    def stop_recipe(self) -> StopRecipe:
        """How this engine is asked to stop."""

    # doing
    def installations(
        self, configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]
    ) -> list[Installation]:
        """Probe what is there, best first. `configured` are this kind's entries of engines.yaml by name.

        Raises LlmserveError where a configured entry is broken. What was asked for in another way and cannot
        be used is among them as `Installation` says; `render` then gives its reason as a violation.
        """

    def survey(
        self, configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]
    ) -> list[Installation]:
        """As `installations`, with everything that is there and cannot be used among them; raises nothing."""

    async def health(self, client: httpx.AsyncClient, base_url: str) -> Health:
        """Ask the health endpoint once; never raises for what an engine can do."""

    async def prove(self, client: httpx.AsyncClient, base_url: str, served_model: str) -> str:
        """Get one real token back and return its text. Raises httpx.HTTPError or ValueError."""

    async def progress(self, client: httpx.AsyncClient, base_url: str) -> Progress | None:
        """Read the counters; None where the engine does not answer."""

    async def facts(self, client: httpx.AsyncClient, base_url: str) -> dict[str, Any]:
        """What the engine reports about itself after readiness."""


def flag_names(args: Iterable[str]) -> list[str]:
    """The flags among raw arguments, `--a=b` cut to `--a`; negative numbers are values."""
    return [
        a.split("=", 1)[0] for a in args if a.startswith("-") and not a.lstrip("-").replace(".", "").isdigit()
    ]
