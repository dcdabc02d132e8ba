"""What is refused before vLLM or SGLang is asked: layouts, devices, lengths, versions and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.planning.findings import Finding
from orchestrator.planning.paged import choose, parallelism
from orchestrator.planning.paged.choose import Chosen
from orchestrator.planning.paged.fp8_kv import why_unread
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.situation import Situation
from orchestrator.planning.paged.sizing import Sizing
from orchestrator.planning.words import size

_ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def own(s: Situation, chosen: Chosen) -> list[Finding]:
    """Every refusal that follows from engine, devices, layout, length, draft and consent."""
    return [
        *_installed(s),
        *_devices(s),
        *_free(s, chosen.sizing),
        *_layout(s, chosen),
        *_nodes(s, chosen.sizing.layout),
        *_context(s),
        *_classes(s),
        *_consent(s),
        *_weights(s),
        *_kv(s),
        *_draft(s),
    ]


def memory(s: Situation, z: Sizing) -> list[Finding]:
    """What does not fit on a device: needed and available."""
    if z.fits:
        return []
    b = z.budget
    where = " of host memory" if s.on_cpu else " on each device" if z.layout.world > 1 else ""
    # as the plan's bar shows them
    held = {
        "weights": b.weights + b.draft,
        "activations": b.activation,
        "graphs": b.graphs,
        "other": b.non_torch + b.margin,
    }
    parts = ", ".join(f"{what} {size(n)}" for what, n in held.items() if n)
    if z.kv_bytes <= 0 or z.most_kv_bytes <= 0:
        needed, given = sum(held.values()), min(b.requested + b.outside, b.free)
        short = "" if needed >= given else ", and weights are whole before they are quantized"
        message = (
            f"{s.card.name} does not fit: without any KV {choose.words(z.layout)} needs "
            f"{size(needed)}{where} ({parts}), and {size(given)} of {size(b.total)} may be taken{short}: "
            "nothing is left for KV"
        )
        return [Finding("weights_do_not_fit" if b.weights >= b.requested else "kv_does_not_fit", message)]
    if z.kv_bytes > z.most_kv_bytes:
        message = (
            f"the KV pool that was set takes {size(z.kv_bytes)}{where}, and {size(z.most_kv_bytes)} are "
            f"there beside the model ({parts})"
        )
        return [Finding("kv_does_not_fit", message)]
    need = z.kv.bytes_needed(z.max_model_len) or 0
    message = (
        f"one request of max_model_len={z.max_model_len} needs {size(need)} of KV{where}, and "
        f"{size(z.kv_bytes)} are left ({parts}, of {size(b.requested)})"
    )
    if z.tokens is not None:
        message += f": room for {z.tokens} tokens"
    return [Finding("kv_does_not_fit", message)]


def _installed(s: Situation) -> Iterator[Finding]:
    i = s.inputs.installation
    if i.captured and s.inputs.launching:
        yield Finding(
            "not_installed",
            f"{i.kind} is not installed here: this plan follows what {i.version} is known to take",
            f"`llmserve engines install {i.kind}`",
        )


def _devices(s: Situation) -> Iterator[Finding]:
    there = {g.uuid for g in s.inputs.machine.gpus}
    for name in s.usable.unknown:
        yield Finding(
            "no_such_device",
            f"there is no device {name}; there are: {', '.join(sorted(there)) or 'none'}",
            change={"device_ids": "auto"},
            after="or one that `llmserve machine` shows",
        )
    for x in s.usable.left_out:
        if x.code == "reserved" and not s.is_free("device_ids"):
            after = "or stop its holder, which `llmserve ps` shows"
            yield Finding(
                "device_held",
                f"{x.gpu.uuid} is held by another deployment",
                change={"device_ids": "auto"},
                after=after,
            )
    if s.on_cpu and not s.is_free("device_ids"):
        yield Finding(
            "no_gpu",
            f"device_ids names GPUs, and {s.inputs.installation.name} computes on the CPU",
            change={"device_ids": "auto"},
        )
    if not s.on_cpu and not s.gpus and not s.usable.unknown:
        why = "; ".join(f"{x.gpu.name}: {x.why}" for x in s.usable.left_out) or "there is none"
        yield Finding(
            "no_gpu",
            f"{s.inputs.installation.name} needs a GPU that is free ({why})",
            "free one, or --engine with one for CPUs",
        )


def _free(s: Situation, z: Sizing) -> Iterator[Finding]:
    """vLLM asks for its whole share at start and ends where less is free (v1/worker/utils.py
    request_memory); SGLang takes its share of what is free."""
    if s.kind != "vllm" or s.on_cpu or s.is_free("gpu_memory_utilization"):
        return
    least = min(z.layout.devices, key=lambda g: g.free_bytes, default=None)
    if least is None or least.free_bytes >= z.budget.requested:
        return
    yield Finding(
        "memory_not_free",
        f"gpu_memory_utilization={z.utilization:g} asks for {size(z.budget.requested)} at start, and of "
        f"{least.uuid} {size(least.free_bytes)} are free",
        change={"gpu_memory_utilization": "auto"},
        after="or end what holds it",
    )


def _layout(s: Situation, chosen: Chosen) -> Iterator[Finding]:
    if not s.on_cpu and not s.gpus:
        return
    layout = _asked(s, chosen.sizing.layout)
    for x in parallelism.illegal(s.card, layout, s.kind, s.version_text, s.inputs.machine):
        yield Finding(x.code, x.message, change=x.change)


def _nodes(s: Situation, layout: Layout) -> Iterator[Finding]:
    if layout.nodes > 1 and s.inputs.launching:
        yield Finding(
            "more_than_one_node",
            f"the layout takes {layout.nodes} nodes, and llmserve supervises one machine",
            "copy to the nodes what `llmserve plan` shows, or plan for one; clusters come by export in a "
            "later version",
        )


def _asked(s: Situation, taken: Layout) -> Layout:
    """The layout that was set, sizes that nobody set as 1; the one that was taken where nothing was set."""
    tensor, pipeline, data, attention = (
        s.given(f"{name}_parallel_size") for name in ("tensor", "pipeline", "data", "attention_data")
    )
    expert = s.given("expert_parallel")
    if all(x is None for x in (tensor, pipeline, data, attention, expert)):
        return taken
    return Layout(
        tensor=tensor or 1,
        pipeline=pipeline or 1,
        data=data or 1,
        attention_data=attention or 1,
        expert=bool(expert) if expert is not None else (attention or 1) > 1,
        devices=taken.devices,
        nodes=taken.nodes,
    )


def _context(s: Situation) -> Iterator[Finding]:
    length = s.given("max_model_len")
    if length is None or length <= s.trained_context:
        return
    if s.kind == "vllm" and s.profile.env.get(_ALLOW_LONG) == "1":
        return
    yield Finding(
        "context_above_model",
        f"max_model_len is {length} tokens and the model has {s.trained_context}",
        change={"max_model_len": s.trained_context},
        after=f"or env {_ALLOW_LONG}=1 in the profile, where answers may turn to nonsense"
        if s.kind == "vllm"
        else "",
    )


def _classes(s: Situation) -> Iterator[Finding]:
    """Both engines choose their code by `architectures` (vLLM 0.32.0 model_executor/models/registry.py "No
    model architectures are specified", SGLang 0.5.23 srt/models/registry.py)."""
    if s.card.format == "safetensors" and not s.card.architectures:
        yield Finding(
            "no_architectures",
            f"the config.json of {s.card.name} names no architectures, and {s.inputs.installation.name} "
            "chooses its code by them",
            "write the class into it, as its publisher names it (LlamaForCausalLM), or give another model",
        )


def _consent(s: Situation) -> Iterator[Finding]:
    needed = s.card.needs_remote_code or s.needs.trust_remote_code
    if needed and s.given("trust_remote_code") is not True:
        yield Finding(
            "needs_remote_code",
            f"{s.card.name} cannot be loaded without running code that comes with it",
            "read that code, then:",
            change={"trust_remote_code": True},
        )


def _weights(s: Situation) -> Iterator[Finding]:
    """Formats of weights that no kernel of the device loads."""
    facts, name = s.gpu_facts, (s.card.quantization or "").lower()
    if facts is None or not name:
        return
    kind = next((k for k in ("nvfp4", "mxfp4", "fp8", "int8") if k in name), None)
    if kind is None and any(k in name for k in ("awq", "gptq", "int4", "w4a16")):
        kind = "int4"
    if kind is not None and not facts.can_load(kind):
        yield Finding(
            "quantization_not_supported",
            f"{s.card.name} is {s.card.quantization}, and no kernel loads {kind} weights on {facts.model} "
            f"({facts.generation})",
            "--model with another quantization, or newer cards",
        )


def _kv(s: Situation) -> Iterator[Finding]:
    """KV in 8-bit floats that no attention reads here."""
    given = s.given("kv_cache_dtype")
    why = why_unread(s, given) if given is not None else None
    if why is not None:
        change = {"kv_cache_dtype": "auto"}
        yield Finding("kv_type_not_read", f"kv_cache_dtype is {given}, and {why}", change=change)


def _draft(s: Situation) -> Iterator[Finding]:
    draft, asked = s.inputs.draft, s.given("speculative")
    method = asked.get("method") if isinstance(asked, Mapping) else None
    if draft is not None and method == "draft_model" and draft.vocab_size != s.card.vocab_size:
        yield Finding(
            "draft_vocabulary",
            f"the draft {draft.name} has {draft.vocab_size} words and {s.card.name} {s.card.vocab_size}",
            change={"speculative": {"method": "ngram", "num_tokens": 4}},
            after="or name a draft of the same family",
        )
    if method == "mtp" and not s.card.mtp_layers and not (isinstance(asked, Mapping) and asked.get("model")):
        yield Finding(
            "no_mtp_layers",
            f"speculative.method is mtp, and {s.card.name} has no layers that predict ahead",
            change={"speculative": {"method": "ngram", "num_tokens": 4}},
        )
