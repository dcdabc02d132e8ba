"""Which model and which engine: rules, with what was rejected. Pure; `inputs` gathers the candidates."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.engines.base import Installation
from orchestrator.errors import LlmserveError, not_found, refused, usage
from orchestrator.model_card.card import ModelCard
from orchestrator.plan import Rejected
from orchestrator.planning.request import Choice

SMALL_MODEL = "smollm2-135m"
"""What the edge goal serves where no model was named: small enough for any machine."""

KINDS = {"gguf": ("llamacpp",), "safetensors": ("vllm", "sglang")}
"""Kinds of engines by the format that they read."""


def choose_model(
    *,
    asked: str | None,
    asked_by: str,
    default: str | None,
    stored: Sequence[str],
    known: Sequence[str],
    goal: str,
) -> Choice:
    """The model of --model or the profile (`asked`), else config.yaml's `default`, else the only stored one,
    else for edge a small known one.

    Raises LlmserveError (exit 2) with the candidates where none of these holds.
    """
    if asked is not None:
        return Choice(asked, f"given by {asked_by}", "asked")
    if default is not None:
        return Choice(default, "default_model of config.yaml", "default_model", _others(stored, default))
    if len(stored) == 1:
        return Choice(stored[0], "the only model in the store", "only_stored")
    if not stored and goal == "edge" and SMALL_MODEL in known:
        why = "no model was named and the store is empty: a small one that runs anywhere"
        return Choice(SMALL_MODEL, why, "edge_small_model")
    candidates = [*stored, *(k for k in known if k not in stored)]
    first = candidates[0] if candidates else "FILE.gguf"
    what = f"{len(stored)} models are stored" if stored else "no model is stored"
    raise usage(
        "no_model",
        f"no model was named, and {what}; candidates: {', '.join(candidates) or 'none'}",
        f"llmserve plan --goal {goal} --model {first}",
    )


def choose_engine(
    card: ModelCard,
    installations: Sequence[Installation],
    *,
    asked: str = "auto",
    gpus: bool = False,
    launching: bool = False,
) -> Choice:
    """The engine that was asked for, by name or as KIND or KIND@VERSION, else the best installed one that
    reads the model's format.

    A kind is the newest installed one of it that suits the device; of llama.cpp the first.

    GGUF: llama.cpp, a configured or found `llama-server` before the embedded one. Safetensors, or only a
    config: with GPUs an installed vLLM or SGLang, without a vLLM for CPUs. `installations` come best first;
    those of the project's data (`captured`) come after the others, and serve for planning alone. Nothing is
    installed silently.

    Raises LlmserveError: exit 5 for a name that is not known, exit 3 where nothing can serve the model.
    """
    if asked != "auto":
        return _asked_for(card, installations, asked, gpus, launching)
    usable = [i for i in installations if not (i.captured and launching)]
    fitting = [i for i in usable if reads(i, card) and suits(i, gpus)]
    # a CPU is planned for only with what is installed: what it takes depends on the build
    fitting = [i for i in fitting if gpus or not i.captured]
    if not fitting:
        raise _nothing_reads(card, usable, gpus)
    # the embedded server shares a process with Python: a binary of its own comes first
    best = min(fitting, key=lambda i: (i.captured, bool(i.extras.get("embedded"))))
    there = [i for i in usable if i.name != best.name and (not i.captured or best.captured)]
    rejected = [Rejected(i.name, _why_not(i, card, best, gpus)) for i in there]
    if card.format == "gguf":
        which = "the embedded server" if best.extras.get("embedded") else "a llama-server of its own"
        reason = f"a GGUF file is llama.cpp's own format; {which} is installed"
        kinds = {i.kind for i in there}
        rejected += [Rejected(k, "is made for safetensors") for k in ("vllm", "sglang") if k not in kinds]
        return Choice(best.name, reason, "gguf_llamacpp", tuple(rejected))
    if best.captured:
        reason = (
            f"none is installed here that could: planned by what {best.kind} {best.version} is known to take"
        )
        return Choice(best.name, reason, "captured", tuple(rejected))
    where = "on these GPUs" if gpus else "on a CPU"
    return Choice(
        best.name, f"reads {card.format} {where} and is installed", "safetensors_installed", tuple(rejected)
    )


def _asked_for(
    card: ModelCard, installations: Sequence[Installation], asked: str, gpus: bool, launching: bool
) -> Choice:
    taken = next((i for i in installations if i.name == asked and not i.captured), None)
    rule, reason = "asked", "asked for by name"
    alike = of_kind(asked, installations, gpus=gpus)
    if taken is None and alike:
        taken, rule = alike[0], "asked_kind"
        reason = f"{asked} was asked for: the only one installed here that suits"
        if len(alike) > 1:
            which = "first" if taken.kind == "llamacpp" else "newest"
            reason = f"{asked} was asked for: the {which} of {len(alike)} that are installed here and suit"
    if taken is None:
        taken = next((i for i in installations if i.name == asked), None)
    if taken is None:
        names = ", ".join(i.name for i in installations if not i.captured) or "none"
        raise not_found(
            "unknown_engine",
            f"there is no engine {asked!r}; installed: {names}",
            "see `llmserve engines list`, or leave out --engine",
        )
    if taken.captured and launching:
        version = asked.partition("@")[2]
        what = f"{taken.kind} {version}" if version else taken.kind
        there = [i.name for i in installations if i.kind == taken.kind and not i.captured]
        others = f"; there is {', '.join(there)}" if there else ""
        raise refused(
            "no_engine",
            f"{what} is not installed for this machine: it can be planned for alone{others}",
            way_to(taken.kind, gpus=gpus, version=version),
        )
    if card.format == "config" and not reads(taken, card):
        raise refused(
            "format_mismatch",
            f"{card.name} is the configuration of a safetensors checkpoint, and {taken.name} reads only GGUF",
            "give --model a GGUF file, or choose another --engine",
        )
    others_here = [i for i in installations if i.name != taken.name and not i.captured]
    why = {i.name: "an older one" if i in alike else "another was asked for" for i in others_here}
    if taken.kind == "llamacpp":
        why = dict.fromkeys(why, "another was asked for")
    return Choice(taken.name, reason, rule, tuple(Rejected(name, text) for name, text in why.items()))


def of_kind(asked: str, installations: Sequence[Installation], *, gpus: bool) -> list[Installation]:
    """What is installed of KIND or KIND@VERSION and suits the device, the one to take first."""
    kind, _, version = asked.partition("@")
    found = [i for i in installations if i.kind == kind and not i.captured and suits(i, gpus)]
    if version:
        # a build's own part, as in 0.27.1+cpu, is no other version
        found = [i for i in found if version in (i.version, i.version.partition("+")[0])]
    if kind == "llamacpp":
        return sorted(found, key=lambda i: bool(i.extras.get("embedded")))
    return sorted(found, key=lambda i: [int(n) for n in re.findall(r"[0-9]+", i.version)], reverse=True)


def reads(i: Installation, card: ModelCard) -> bool:
    """Whether this engine loads the model's format."""
    wanted = "safetensors" if card.format == "config" else card.format
    return i.kind in KINDS[wanted]


def suits(i: Installation, gpus: bool) -> bool:
    """Whether it computes here: llama.cpp does anywhere; a build of the others is for GPUs or for CPUs."""
    return i.kind == "llamacpp" or (i.extras.get("device", "cuda") != "cpu") == gpus


def _why_not(i: Installation, card: ModelCard, best: Installation, gpus: bool) -> str:
    if not reads(i, card):
        return f"does not read {card.format}"
    if not suits(i, gpus):
        return "is built for GPUs, and there is none" if not gpus else "is built for CPUs, and there are GPUs"
    if i.extras.get("embedded"):
        return f"{best.name} is a server program of its own"
    return f"{best.name} comes before it; --engine {i.name} takes it"


def way_to(kind: str, *, gpus: bool, version: str = "") -> str:
    """How an engine comes onto a machine, or why it cannot and what runs there."""
    from orchestrator.engine_environments import recipes

    if kind == "llamacpp":
        return "pip install 'llmserve[edge]'"
    try:
        recipes.choose(kind, "cuda" if gpus else "cpu", version or None)
    except LlmserveError as e:
        return f"{e.message}; {e.remedy}"
    at = f" --version {version}" if version else ""
    return f"`llmserve engines install {kind}{at}` installs it, or engines.yaml names one that is there"


def _nothing_reads(card: ModelCard, installations: Sequence[Installation], gpus: bool) -> Exception:
    if card.format == "gguf":
        return refused(
            "no_engine",
            f"{card.name} is a GGUF file, and no llama.cpp is installed: no llama-server in engines.yaml, "
            "LLAMA_SERVER or PATH, and no xllamacpp",
            "pip install 'llmserve[edge]'",
        )
    where = "vLLM or SGLang on this machine's GPUs" if gpus else "a vLLM for CPUs"
    there = ", ".join(f"{i.name} ({_unfit(i, card, gpus)})" for i in installations if not i.captured)
    return refused(
        "no_engine",
        f"{card.name} is {'a configuration' if card.format == 'config' else 'safetensors'}: it needs "
        f"{where}, and none is installed; there is {there or 'no engine'}",
        f"{way_to('vllm', gpus=gpus)}; or --model with a GGUF of it",
    )


def _unfit(i: Installation, card: ModelCard, gpus: bool) -> str:
    if not reads(i, card):
        return f"reads {'GGUF' if i.kind == 'llamacpp' else 'safetensors'}"
    return "for CPUs" if gpus else "for GPUs"


def _others(stored: Sequence[str], taken: str) -> tuple[Rejected, ...]:
    return tuple(Rejected(name, "config.yaml names another") for name in stored if name != taken)
