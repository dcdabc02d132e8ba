"""Which package makes an engine of some version run on this machine; the data is `recipes.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LlmserveError, refused, usage

if TYPE_CHECKING:
    from orchestrator.machine.machine import Machine

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*(\.?(a|b|rc|post|dev)[0-9]+)*")
_RELEASE = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_SUFFIX = re.compile(r"(a|b|rc|post|dev)([0-9]+)")
DEVICES = ("cuda", "rocm", "cpu")
_OWN = "name its path in engines.yaml"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One engine for one device. The fields are those of `recipes.yaml`; `version` is the one to install."""

    kind: str
    device: str
    version: str
    package: str
    name: str
    default: str
    known_from: str
    below: str | None
    disk_bytes: int
    torch_index: str | None
    metadata: Mapping[str, str]
    unfit: tuple[str, ...]
    compiles_with: tuple[str, ...]
    program: str | None
    note: str | None

    @property
    def requirement(self) -> str:
        """What the package index is asked for."""
        return f"{self.package}=={self.version}"

    @property
    def environment(self) -> str:
        """The name of the environment, where the user gives none."""
        return f"{self.name}-{self.version}"


def kinds() -> tuple[str, ...]:
    """The engines that have a recipe."""
    return tuple(_table())


def is_built(kind: str, device: str) -> bool:
    """Whether a package of this engine for this device is known."""
    return device in _table().get(kind, {})


def device_of(machine: Machine) -> str:
    """What the machine computes on: "cuda", "rocm" or "cpu"."""
    vendors = {gpu.vendor for gpu in machine.gpus}
    if "nvidia" in vendors:
        return "cuda"
    # AMD GPUs are noted where they cannot be measured
    if "amd" in vendors or any(note.startswith("AMD GPUs") for note in machine.notes):
        return "rocm"
    return "cpu"


def require_device(recipe: Recipe, machine: Machine) -> None:
    """Raises LlmserveError (exit 3) for a build that cannot start on this machine: a GPU's, where none is."""
    if recipe.device == "cuda" and device_of(machine) != "cuda":
        message = f"{recipe.requirement} is built for NVIDIA GPUs, and none can be used here"
        raise refused("needs_gpu", message, "leave --device out: what fits this machine is taken")


def choose(kind: str, device: str, version: str | None = None) -> Recipe:
    """The recipe for an engine on a device, at a version (None: the default).

    Raises LlmserveError: exit 2 for a kind or version that is none, exit 3 where nothing can be installed.
    """
    by_device = _table().get(kind)
    if by_device is None:
        kinds_here = ", ".join(_table())
        raise usage("unknown_engine", f"there is no engine kind {kind!r}", f"the kinds are: {kinds_here}")
    if device not in DEVICES:
        raise usage("bad_device", f"{device!r} is no device", f"the devices are: {', '.join(DEVICES)}")
    entry = by_device.get(device)
    if entry is None and kind == "llamacpp":
        entry, device = by_device["cpu"], "cpu"
    if entry is None:
        raise _nothing_for(kind, device)
    default = str(entry["default"])
    asked = default if version is None else version
    if not _VERSION.fullmatch(asked):
        raise usage("bad_version", f"{asked!r} is no version", f"write it as {default}")
    recipe = _recipe(kind, device, canonical(asked, default), entry)
    at = _numbers(recipe.version)
    if at < _numbers(recipe.known_from) or (recipe.below and at >= _numbers(recipe.below)):
        known = f"{recipe.known_from} on" + (f", below {recipe.below}" if recipe.below else "")
        message = f"{recipe.package} {recipe.version} is not among the versions known here: {known}"
        remedy = f"leave --version out for {recipe.default}; or install it yourself and {_OWN}"
        raise refused("unknown_version", message, remedy)
    return recipe


def canonical(version: str, like: str) -> str:
    """The one spelling of a version, by PEP 440, with as many numbers as `like` has: 0.32 is 0.32.0."""
    numbers = _numbers(version)
    numbers += (0,) * (len(_RELEASE.findall(like)[0].split(".")) - len(numbers))
    suffixes = "".join(
        f"{'.' if word in ('post', 'dev') else ''}{word}{int(number)}"
        for word, number in _SUFFIX.findall(version)
    )
    return ".".join(map(str, numbers)) + suffixes


def _nothing_for(kind: str, device: str) -> LlmserveError:
    if device == "rocm":
        message = f"{kind} is not installed for AMD GPUs: its ROCm builds are not where pip and uv look"
        remedy = f"install it as its own documentation says and {_OWN}"
        return refused("no_rocm_build", message, remedy)
    message = f"{kind} needs a GPU, and none can be used here: no build of it for CPUs is published"
    return refused("needs_gpu", message, "llmserve engines install vllm, or llamacpp: both run on a CPU")


def _recipe(kind: str, device: str, version: str, entry: Mapping[str, Any]) -> Recipe:
    return Recipe(
        kind=kind,
        device=device,
        version=version,
        package=entry["package"],
        name=entry["name"],
        default=entry["default"],
        known_from=entry["from"],
        below=entry.get("below"),
        disk_bytes=entry["disk_bytes"],
        torch_index=entry.get("torch_index"),
        metadata=entry.get("metadata", {}),
        unfit=tuple(entry.get("unfit", ())),
        compiles_with=tuple(entry.get("compiles_with", ())),
        program=entry.get("program"),
        note=entry.get("note"),
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The release part, without trailing zeros: 0.10 is 0.10.0."""
    found = _RELEASE.match(version)
    numbers = [int(n) for n in (found.group() if found else "0").split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@cache
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    import yaml

    text = (Path(__file__).parent / "recipes.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(text)
    return loaded
