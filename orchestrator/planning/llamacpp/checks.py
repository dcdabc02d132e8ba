"""What is refused before llama.cpp is asked: contexts, devices and drafts that it cannot take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.planning.findings import Finding
from orchestrator.planning.llamacpp.situation import Situation
from orchestrator.planning.words import count

# llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE
_VOCABULARY_SLACK = 128


def own(s: Situation) -> list[Finding]:
    """Every refusal that follows from context, devices and draft on llama.cpp."""
    return [*_context(s), *_devices(s), *_draft(s)]


def _context(s: Situation) -> Iterator[Finding]:
    length = s.given("max_model_len")
    if length is not None and length > s.trained_context:
        yield Finding(
            "context_above_model",
            f"max_model_len is {length} tokens and the model has {s.trained_context}: "
            "llama.cpp cuts every slot to that, with RoPE scaling too",
            change={"max_model_len": s.longest},
        )


def _devices(s: Situation) -> Iterator[Finding]:
    there = {g.uuid for g in s.inputs.machine.gpus}
    named = s.given("device_ids") or ()
    for uuid in named:
        if uuid not in there:
            known = ", ".join(sorted(there)) or "none"
            yield Finding(
                "no_such_device",
                f"there is no device {uuid}; there are: {known}",
                change={"device_ids": "auto"},
                after="or one that `llmserve machine` shows",
            )
        elif uuid in s.inputs.reservations.devices:
            message = f"{uuid} is held by another deployment"
            after = "or stop its holder, which `llmserve ps` shows"
            yield Finding("device_held", message, change={"device_ids": "auto"}, after=after)
    if named and there.issuperset(named) and not s.can_offload:
        message = "device_ids names GPUs, and this engine computes on the CPU"
        yield Finding("no_gpu", message, change={"device_ids": "auto"}, after="or another --engine")
    elif named and there.issuperset(named) and s.given("gpu_layers") == 0:
        yield Finding(
            "no_gpu",
            "device_ids names GPUs, and gpu_layers is 0: nothing would be placed on them",
            change={"gpu_layers": "auto"},
        )
    layers = s.given("gpu_layers")
    if layers and not s.gpus:
        why = "there is no GPU" if not there else "this engine computes on the CPU, or the GPUs are held"
        yield Finding("no_gpu", f"gpu_layers is {layers}, and {why}", change={"gpu_layers": "auto"})
    for lever in ("tensor_parallel_size", "pipeline_parallel_size"):
        parts = s.given(lever)
        if parts is not None and parts > max(1, len(s.gpus)):
            usable = f"{count(len(s.gpus), 'GPU')} can be used"
            yield Finding("not_enough_devices", f"{lever} is {parts}, and {usable}", change={lever: 1})
        elif parts is not None and parts > 1 and named and len(named) != parts:
            message = f"{lever} is {parts}, and device_ids names {count(len(named), 'device')}"
            yield Finding("device_count", message, change={lever: "auto"})


def _draft(s: Situation) -> Iterator[Finding]:
    draft, asked = s.inputs.draft, s.given("speculative")
    if draft is not None and abs(draft.vocab_size - s.card.vocab_size) > _VOCABULARY_SLACK:
        yield Finding(
            "draft_vocabulary",
            f"the draft {draft.name} has {draft.vocab_size} words and {s.card.name} {s.card.vocab_size}",
            change={"speculative": {"method": "ngram"}},
            after="or name a draft of the same family",
        )
    method = asked.get("method") if isinstance(asked, Mapping) else None
    if method in ("mtp", "draft-mtp") and not (s.card.mtp_layers or (draft and draft.mtp_layers)):
        yield Finding(
            "no_mtp_layers",
            f"speculative.method is {method}, and {s.card.name} has no layers that predict ahead",
            change={"speculative": {"method": "ngram"}},
        )
