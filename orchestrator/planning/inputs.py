"""Gathers what the planner needs from the world: profile, model, machine, engine. The thin, doing part."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LlmserveError, usage
from orchestrator.plan import Rejected
from orchestrator.planning.choosing import KINDS, choose_engine, choose_model, of_kind
from orchestrator.planning.request import PlanInputs, Reservations

if TYPE_CHECKING:
    from orchestrator.engines.base import Installation
    from orchestrator.machine import Machine
    from orchestrator.model_card.card import ModelCard
    from orchestrator.profiles import Profile

_NAME = r"[a-z0-9][a-z0-9._-]{0,62}"
_NAME_LIMIT = 48
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"


def gather(
    *,
    goal: str | None = None,
    profile: str | None = None,
    model: str | None = None,
    engine: str | None = None,
    machine_file: str | Path | None = None,
    sets: Sequence[str] = (),
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    machine: Machine | None = None,
    reservations: Reservations | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    launching: bool = False,
) -> PlanInputs:
    """Everything a plan depends on, by the rules of `choosing`.

    `machine` is what the daemon measured; without it `machine_file` is read, or this machine is measured. A
    known model is fetched at first use, `progress` hears of it.

    A wrong entry of engines.yaml is no error where another engine serves: it stands among the rejected.

    Raises LlmserveError: exit 2 where options or files cannot be read or no model can be chosen, exit 3
    where the model is missing or no engine can serve it, exit 5 where a named profile or engine is not there.
    """
    from orchestrator import model_store, profiles, settings
    from orchestrator.engines import registry
    from orchestrator.machine import load, measure
    from orchestrator.problems import shown

    if name is not None and not re.fullmatch(_NAME, name):
        raise usage(
            "bad_name",
            f"{shown(name)} cannot be a deployment's name",
            "use small letters, digits, . _ - and begin with a letter or digit; 63 of them at most",
        )
    if not is_address(host):
        raise usage(
            "bad_host",
            f"--host {shown(host)} is not an address",
            "give an IP address or a host's name, such as --host 127.0.0.1, or leave it out",
        )
    _set_once(sets)
    resolved = profiles.resolve(
        profile=profile, goal=goal, sets=sets, options={"model": model, "engine": engine}
    )
    p = resolved.profile
    config = settings.config()
    from_where = resolved.origin.get("model", "the profile")
    chosen = choose_model(
        asked=p.model,
        asked_by=from_where,
        default=config.default_model,
        stored=[m.name for m in model_store.stored()],
        known=list(model_store.known()),
        goal=p.goal,
    )
    found = model_store.resolve(chosen.value, progress=progress)
    if machine is None:
        machine = load(str(machine_file)) if machine_file is not None else measure()
    kinds = _kinds(found.card, p.engine)
    installations, wrong = _installed_or_wrong(p.engine, kinds)
    if found.card.format != "gguf" or p.engine.partition("@")[0] != "auto":
        installations += captured(p.engine, installations, machine)
    how: dict[str, Any] = {"asked": p.engine, "gpus": bool(machine.gpus), "launching": launching}
    try:
        choice = choose_engine(found.card, installations, **how)
    except LlmserveError as e:
        if wrong is not None and e.code == "no_engine":
            raise wrong from None
        if p.engine != "auto" or wrong is not None:
            raise
        # what is here and cannot serve it belongs into the answer
        installations = installed(p.engine, os.environ)
        choice = choose_engine(found.card, installations, **how)
    if wrong is not None:
        note = Rejected("engines.yaml", wrong.message)
        choice = replace(choice, rejected=(*choice.rejected, note))
    installation = next(i for i in installations if i.name == choice.value)
    return PlanInputs(
        resolved=resolved,
        card=found.card,
        machine=machine,
        installation=installation,
        engine=registry.engine(installation.kind),
        served_model=found.name,
        name=name or deployment_name(p.goal, found.name),
        model_choice=chosen,
        engine_choice=choice,
        reservations=reservations or Reservations(),
        host=host,
        port=port,
        draft=_draft(p),
        launching=launching,
    )


def is_address(host: str) -> bool:
    """Whether this can be an address to listen on: an IP address, in brackets or not, or a host's name."""
    try:
        ipaddress.ip_address(host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host)
    except ValueError:
        labels = host.removesuffix(".").split(".")
        return len(host) <= 253 and all(re.fullmatch(_LABEL, part) for part in labels)
    return True


def _set_once(sets: Sequence[str]) -> None:
    """Raises LlmserveError (exit 2) where one lever is given two values."""
    given: dict[str, str] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        before = given.setdefault(name.strip(), value)
        if equals and before != value:
            raise usage(
                "set_twice",
                f"--set {name}={before} and --set {name}={value}: one lever is given two values",
                "leave one of them out",
            )


def _kinds(card: ModelCard, asked: str) -> tuple[str, ...] | None:
    """Kinds of engines that come into question; None for all: asking each takes time."""
    from orchestrator import settings
    from orchestrator.engines import registry

    if asked == "auto":
        return KINDS["gguf" if card.format == "gguf" else "safetensors"]
    entry = settings.sound_engines()[0].get(asked)
    if entry is not None:
        return (entry["kind"],)
    kind = asked.partition("@")[0]
    return (kind,) if kind in registry.kinds() else None


def _installed_or_wrong(
    asked: str, kinds: Sequence[str] | None
) -> tuple[list[Installation], LlmserveError | None]:
    """What is installed; where nothing usable is, and an entry of engines.yaml is why, its error.

    Raises LlmserveError where that entry is the one that was asked for.
    """
    from orchestrator import settings

    try:
        return installed(asked, os.environ, kinds), None
    except LlmserveError as e:
        entries, wrong = settings.sound_engines()
        if asked in entries or asked in wrong:
            raise
        return [], e


def installed(asked: str, env: Mapping[str, str], kinds: Sequence[str] | None = None) -> list[Installation]:
    """Every installation of every kind (or of `kinds`), best first; a wrong entry of engines.yaml matters
    only where it is the one that is asked for, or where nothing else is left.

    Raises LlmserveError then.
    """
    from orchestrator import settings
    from orchestrator.engines import registry

    configured, wrong = settings.sound_engines()
    if asked in wrong:
        raise wrong[asked]
    found: list[Installation] = []
    broken: list[LlmserveError] = list(wrong.values())
    for kind in kinds if kinds is not None else registry.kinds():
        engine = registry.engine(kind)
        entries = {name: entry for name, entry in configured.items() if entry["kind"] == kind}
        try:
            found += engine.installations(entries, env)
            continue
        except LlmserveError:
            pass
        # one of them is broken: which, and does it matter?
        good: dict[str, dict[str, Any]] = {}
        for name, entry in entries.items():
            try:
                engine.installations({name: entry}, {**env, "PATH": "", "LLAMA_SERVER": ""})
                good[name] = entry
            except LlmserveError as e:
                if name == asked:
                    raise
                broken.append(e)
        found += engine.installations(good, env)
    if not found and broken:
        raise broken[0]
    return found


def captured(asked: str, there: Sequence[Installation], machine: Machine) -> list[Installation]:
    """What could be planned for without being here: vLLM and SGLang of the project's data, each by its kind's
    name or as `KIND@VERSION`, for the machine's kind of device.

    Raises LlmserveError (exit 5) where a version that was asked for is not known.
    """
    from orchestrator.engines import registry

    device = "cpu" if not machine.gpus else "rocm" if machine.gpus[0].vendor == "amd" else "cuda"
    kind, _, version = asked.partition("@")
    if kind in KINDS["safetensors"]:
        if any(i.name == asked for i in there) or of_kind(asked, there, gpus=bool(machine.gpus)):
            return []
        return [replace(registry.engine(kind).captured(version or None, device), name=asked)]
    suited = any(
        (i.extras.get("device") == "cpu") == (device == "cpu") for i in there if i.kind != "llamacpp"
    )
    # the first kind stands for both: reading a table takes time
    return (
        [] if asked != "auto" or suited else [registry.engine(KINDS["safetensors"][0]).captured(None, device)]
    )


def deployment_name(goal: str, model: str) -> str:
    """`GOAL-MODEL`, in letters, digits, dots and dashes."""
    base = model.rstrip("/").rsplit("/", 1)[-1]
    slug = re.sub(r"[^a-z0-9.]+", "-", base.lower().removesuffix(".gguf")).strip("-.")
    return f"{goal}-{slug or 'model'}"[:_NAME_LIMIT].rstrip("-.")


def _draft(profile: Profile) -> ModelCard | None:
    """The card of the draft model that the profile names, where it is on this machine."""
    from orchestrator import model_store

    value = profile.levers.get("speculative")
    if not isinstance(value, Mapping) or not value.get("model"):
        return None
    return model_store.resolve(str(value["model"]), fetch=False).card
