"""Which model and which engine: rules, with what was rejected. Pure; `inputs` gathers the candidates."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.engines.base import Installation
from orchestrator.errors import not_found, refused, usage
from orchestrator.model_card.card import ModelCard
from orchestrator.plan import Rejected
from orchestrator.planning.request import Choice

SMALL_MODEL = "smollm2-135m"
"""What the edge goal serves where no model was named: small enough for any machine."""

_READS = {"llamacpp": ("gguf",), "vllm": ("safetensors",), "sglang": ("safetensors",)}


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
    card: ModelCard, installations: Sequence[Installation], *, asked: str = "auto", gpus: bool = False
) -> Choice:
    """The engine that was asked for by name, else the best installed one that reads the model's format.

    GGUF: llama.cpp, a configured or found `llama-server` before the embedded one. Safetensors, or only a
    config: an installed vLLM or SGLang. Nothing is installed silently.

    Raises LlmserveError: exit 5 for a name that is not installed, exit 3 where nothing can serve the model.
    """
    if asked != "auto":
        if asked not in {i.name for i in installations}:
            names = ", ".join(i.name for i in installations) or "none"
            raise not_found(
                "unknown_engine",
                f"there is no engine {asked!r}; installed: {names}",
                "see `llmserve engines list`, or leave out --engine",
            )
        others = tuple(Rejected(i.name, "another was asked for") for i in installations if i.name != asked)
        return Choice(asked, "asked for by name", "asked", others)
    fitting = [i for i in installations if _reads(i, card)]
    if not fitting:
        raise _nothing_reads(card, installations, gpus)
    # the embedded server shares a process with Python: a binary of its own comes first
    best = min(fitting, key=lambda i: bool(i.extras.get("embedded")))
    rejected = [Rejected(i.name, _why_not(i, card, best)) for i in installations if i.name != best.name]
    if card.format == "gguf":
        which = "the embedded server" if best.extras.get("embedded") else "a llama-server of its own"
        reason = f"a GGUF file is llama.cpp's own format; {which} is installed"
        rejected += [Rejected(k, "is made for safetensors") for k in ("vllm", "sglang")]
        return Choice(best.name, reason, "gguf_llamacpp", tuple(rejected))
    return Choice(
        best.name, f"reads {card.format} and is installed", "safetensors_installed", tuple(rejected)
    )


def _reads(i: Installation, card: ModelCard) -> bool:
    wanted = "safetensors" if card.format == "config" else card.format
    return wanted in _READS.get(i.kind, ())


def _why_not(i: Installation, card: ModelCard, best: Installation) -> str:
    if not _reads(i, card):
        return f"does not read {card.format}"
    if i.extras.get("embedded"):
        return f"{best.name} is a server program of its own"
    return f"{best.name} comes before it"


def _nothing_reads(card: ModelCard, installations: Sequence[Installation], gpus: bool) -> Exception:
    if card.format == "gguf":
        return refused(
            "no_engine",
            f"{card.name} is a GGUF file, and no llama.cpp is installed: no llama-server in engines.yaml, "
            "LLAMA_SERVER or PATH, and no xllamacpp",
            "pip install 'llmserve[edge]'",
        )
    where = "on this machine's GPUs" if gpus else "on a CPU"
    there = ", ".join(i.name for i in installations)
    also = f"; {there} reads GGUF" if there else ""
    return refused(
        "no_engine",
        f"{card.name} is {'a configuration' if card.format == 'config' else 'safetensors'}: it needs vLLM or "
        f"SGLang {where}, and this version of llmserve drives llama.cpp alone{also}",
        "`llmserve engines install vllm` will be its way in a later version; now: --model with a GGUF of it",
    )


def _others(stored: Sequence[str], taken: str) -> tuple[Rejected, ...]:
    return tuple(Rejected(name, "config.yaml names another") for name in stored if name != taken)
