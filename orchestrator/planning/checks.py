"""What is refused before an engine is asked: all of it at once, each with a remedy that works."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from orchestrator.plan import Decision, Violation
from orchestrator.planning import fit, memory
from orchestrator.planning.memory import Sizing
from orchestrator.planning.situation import Placement, Situation
from orchestrator.planning.words import size

MOST_SLOTS = 256
"""llama.cpp's LLAMA_MAX_SEQ."""


def neutral(s: Situation, levers: Mapping[str, Decision], sizing: Sizing) -> list[Violation]:
    """Every refusal that follows from the inputs and the levers; memory's is `memory_violations`."""
    found = [*_model(s), *_address(s), *_context(s), *_slots(s), *_devices(s), *_not_yet(s), *_draft(s)]
    if s.lossless:
        found += _lossy(levers)
    if s.given("kv_unified") is False and not s.is_free("kv_cache_tokens") and sizing.slots > 1:
        found.append(
            Violation(
                "pool_without_sharing",
                "kv_cache_tokens is the size of one shared pool, and kv_unified is false",
                "--set kv_unified=true, or --set kv_cache_tokens=auto and set max_model_len",
            )
        )
    return found


def memory_violations(s: Situation, sizing: Sizing, placed: Placement) -> list[Violation]:
    """What does not fit: needed, available, and the largest thing that does."""
    if placed.fits:
        return []
    need, have = placed.host_bytes, s.host_budget
    room = placed.room
    parts = (
        f"weights {size(room.weights)}, KV {size(room.kv + room.state)}, working room {size(room.compute)}"
    )
    if need <= have:
        limit = s.given("kv_cache_bytes")
        if limit is not None and room.kv > limit * max(1, len(s.gpus)):
            message = (
                f"KV for {_shape(sizing)} takes {size(room.kv)}, and kv_cache_bytes allows {size(limit)}"
            )
            return [Violation("kv_does_not_fit", message, _remedy(s, sizing))]
        asked = s.given("gpu_layers")
        message = f"gpu_layers={asked} does not fit in {size(sum(s.gpu_budgets))} of device memory: {parts}"
        remedy = f"--set gpu_layers={placed.gpu_layers}, or gpu_layers=auto"
        return [Violation("gpu_memory", message, remedy)]
    held = f", {size(s.inputs.reservations.memory_bytes)} of it promised to others"
    promised = held if s.inputs.reservations.memory_bytes else ""
    message = (
        f"{_shape(sizing)} needs {size(need)} of host memory ({parts}, "
        f"the rest {size(need - min(need, room.weights + room.kv + room.state + room.compute))}), "
        f"and {size(have)} can be had{promised}"
    )
    if placed.gpu_layers:
        message = f"{message}, with {placed.gpu_layers} layers on GPUs"
    return [Violation("memory", message, _remedy(s, sizing))]


def _shape(sizing: Sizing) -> str:
    return f"{sizing.slots} slot(s) of {sizing.context} tokens"


def _remedy(s: Situation, sizing: Sizing) -> str:
    """The largest context for as many slots as asked, else for one; else a smaller model."""
    slots = min(sizing.slots, MOST_SLOTS)
    while slots:
        context = fit.largest_context(s, sizing, slots)
        if context:
            words = [f"--set max_num_seqs={slots}", f"--set max_model_len={context}"]
            if not s.is_free("kv_cache_tokens"):
                words.append("--set kv_cache_tokens=auto")
            if s.given("kv_unified"):
                words.append("--set kv_unified=auto")
            return f"{' '.join(words)} fits"
        slots //= 2
    if s.set_cache_bytes:
        return "--set kv_offload_bytes=0 gives back what the host prompt cache was set to"
    weights = size(s.card.weights_bytes)
    return f"the model alone ({weights}) is too large here: --model with a smaller one or fewer bits a weight"


def _model(s: Situation) -> Iterator[Violation]:
    card, engine = s.card, s.inputs.engine
    if card.format == "config":
        if s.inputs.launching:
            yield Violation(
                "no_weights",
                f"{card.name} is a configuration without weights: it can be planned, not launched",
                "give --model a checkpoint with its weights",
            )
    elif card.format not in engine.formats:
        yield Violation(
            "format_mismatch",
            f"{card.name} is {card.format}, and {s.inputs.installation.name} reads only "
            f"{', '.join(engine.formats)}",
            f"give --model a {engine.formats[0]} file, or choose another --engine",
        )
    if s.inputs.launching and card.format != "config" and card.path is None:
        yield Violation(
            "model_not_here",
            f"{card.name} is not on this machine",
            f"`llmserve models pull {card.source}` fetches it",
        )


def _address(s: Situation) -> Iterator[Violation]:
    host, port = s.inputs.host, s.inputs.port
    if not _is_loopback(host):
        yield Violation(
            "public_bind",
            f"--host {host} can be reached from outside, and nothing here would ask for a key",
            "leave out --host; from another machine: ssh -L 8000:127.0.0.1:PORT THIS_HOST",
        )
    if port is not None and not 1 <= port <= 65535:
        yield Violation(
            "port_out_of_range", f"--port {port} is no port: they go from 1 to 65535", "--port 8000, or none"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _context(s: Situation) -> Iterator[Violation]:
    length = s.given("max_model_len")
    if length is not None and length > s.trained_context:
        yield Violation(
            "context_above_model",
            f"max_model_len is {length} tokens and the model has {s.trained_context}: "
            "llama.cpp cuts every slot to that, with RoPE scaling too",
            f"--set max_model_len={s.longest}",
        )
    pool = s.given("kv_cache_tokens")
    if pool is not None and length is not None and pool < length and s.given("kv_unified") is not False:
        yield Violation(
            "pool_below_context",
            f"kv_cache_tokens is {pool}, and one request may need {length}",
            f"--set kv_cache_tokens={memory.padded(length)}",
        )


def _slots(s: Situation) -> Iterator[Violation]:
    slots, batch = s.given("max_num_seqs"), s.given("max_num_batched_tokens")
    if slots is not None and slots > MOST_SLOTS:
        yield Violation(
            "too_many_slots",
            f"max_num_seqs is {slots}, and llama.cpp has at most {MOST_SLOTS} slots",
            f"--set max_num_seqs={MOST_SLOTS}",
        )
    if slots is not None and batch is not None and batch < slots:
        yield Violation(
            "batch_below_slots",
            f"max_num_batched_tokens is {batch}: {slots} slots need a token each in a batch",
            f"--set max_num_batched_tokens={slots}",
        )


def _devices(s: Situation) -> Iterator[Violation]:
    there = {g.uuid for g in s.inputs.machine.gpus}
    for uuid in s.given("device_ids") or ():
        if uuid not in there:
            known = ", ".join(sorted(there)) or "none"
            yield Violation(
                "no_such_device", f"there is no device {uuid}; there are: {known}", "llmserve machine"
            )
        elif uuid in s.inputs.reservations.devices:
            remedy = "choose another, or `llmserve ps` and stop its holder"
            yield Violation("device_held", f"{uuid} is held by another deployment", remedy)
    layers = s.given("gpu_layers")
    if layers and not s.gpus:
        why = "there is no GPU" if not there else "this engine computes on the CPU, or the GPUs are held"
        yield Violation("no_gpu", f"gpu_layers is {layers}, and {why}", "--set gpu_layers=0, or auto")
    for lever in ("tensor_parallel_size", "pipeline_parallel_size"):
        count = s.given(lever)
        if count is not None and count > max(1, len(s.gpus)):
            usable = f"{len(s.gpus)} GPU(s) can be used"
            yield Violation("not_enough_devices", f"{lever} is {count}, and {usable}", f"--set {lever}=1")


def _not_yet(s: Situation) -> Iterator[Violation]:
    """Layouts of more than one process."""
    copies = max(s.given("replicas") or 1, s.given("data_parallel_size") or 1)
    asked = {
        "replicas": copies > 1,
        "disaggregation": s.given("disaggregation") not in (None, "off"),
        "front": s.given("front") == "router",
    }
    for lever, wanted in asked.items():
        if wanted:
            yield Violation(
                "not_available",
                f"{lever}: more than one process behind an address is not in this version",
                f"--set {lever}=auto, and for more requests at once raise max_num_seqs",
            )


def _draft(s: Situation) -> Iterator[Violation]:
    draft = s.inputs.draft
    # llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE
    if draft is not None and abs(draft.vocab_size - s.card.vocab_size) > 128:
        yield Violation(
            "draft_vocabulary",
            f"the draft {draft.name} has {draft.vocab_size} words and {s.card.name} {s.card.vocab_size}",
            "name a draft of the same family, or --set 'speculative={method: ngram}'",
        )


def _lossy(levers: Mapping[str, Decision]) -> list[Violation]:
    return [
        Violation(
            "lossy",
            f"{name}={d.value} can change answers, and the profile says lossless: true",
            f"--set {name}=auto, or --set lossless=false",
        )
        for name, d in levers.items()
        if not d.lossless
    ]
