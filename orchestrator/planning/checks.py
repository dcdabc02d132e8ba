"""What is refused before an engine is asked: all of it at once. `remedies` finds the figures that work."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from orchestrator.plan import Decision
from orchestrator.planning import checkpoint
from orchestrator.planning.findings import Finding
from orchestrator.planning.situation import Situation
from orchestrator.planning.words import count

_INT32 = 2**31


def neutral(s: Situation, levers: Mapping[str, Decision], *, copies: bool = False) -> list[Finding]:
    """Every refusal that follows from model, address, layout and promises. `copies`: whether the engine runs
    copies of the model behind a balancer of its own."""
    found = [*_model(s), *checkpoint.findings(s), *_unusable(s), *_address(s), *_not_yet(s, copies)]
    if s.lossless:
        found += _lossy(s, levers)
    return found


def _model(s: Situation) -> Iterator[Finding]:
    card, engine = s.card, s.inputs.engine
    if not card.generates:
        kind = card.architectures[0] if card.architectures else card.model_type or card.architecture
        yield Finding(
            "not_a_generator",
            f"{card.name} is {kind}: it answers with vectors or classes, and llmserve serves models that "
            "answer in text",
            "give --model a language model (its class ends with ForCausalLM)",
        )
    if card.format == "config":
        if s.inputs.launching and card.missing_shards:
            yield Finding(
                "no_weights",
                f"{card.name} cannot be launched: {checkpoint.missing(card)}",
                "fetch it again: what is there already is kept",
            )
        elif s.inputs.launching:
            yield Finding(
                "no_weights",
                f"{card.name} is a configuration without weights: it can be planned, not launched",
                "give --model a checkpoint with its weights",
            )
    elif card.format not in engine.formats:
        yield Finding(
            "format_mismatch",
            f"{card.name} is {card.format}, and {s.inputs.installation.name} reads only "
            f"{', '.join(engine.formats)}",
            f"give --model a {engine.formats[0]} file, or choose another --engine",
        )
    if s.inputs.launching and card.format != "config" and card.path is None:
        yield Finding(
            "model_not_here",
            f"{card.name} is not on this machine",
            f"`llmserve models pull {card.source}` fetches it",
        )


def _unusable(s: Situation) -> Iterator[Finding]:
    """Figures of a checkpoint that no engine can load, whatever the levers."""
    card, wrong = s.card, []
    if not 2 <= card.context_length < _INT32:
        wrong.append(f"context_length is {card.context_length}: a context has 2 to {_INT32 - 1} tokens")
    if card.layers < 1:
        wrong.append(f"block_count is {card.layers}: a model has layers")
    if card.hybrid is None and card.heads < 1:
        wrong.append(f"attention.head_count is {card.heads}: attention needs heads")
    if card.hybrid is None and card.heads >= 1 and card.kv_heads < 1:
        wrong.append(f"attention.head_count_kv is {card.kv_heads}: attention needs KV heads")
    alike = card.kv_heads_per_layer is None and card.heads >= 1 and card.kv_heads >= 1
    if alike and card.heads % card.kv_heads:
        wrong.append(
            f"attention.head_count_kv is {card.kv_heads}, which does not divide the "
            f"{count(card.heads, 'head')} of attention.head_count"
        )
    for what in wrong:
        yield Finding(
            "model_unusable",
            f"{card.name} cannot be loaded: its header's {what}",
            "the file is damaged, or its conversion was: give --model another copy of it",
        )


def _address(s: Situation) -> Iterator[Finding]:
    host, port = s.inputs.host, s.inputs.port
    if not _is_loopback(host):
        yield Finding(
            "public_bind",
            f"--host {host} is no loopback address: it could be reached from outside, and nothing here would "
            "ask for a key",
            "leave out --host; from another machine: ssh -L 8000:127.0.0.1:PORT THIS_HOST",
        )
    if port is not None and not 1 <= port <= 65535:
        yield Finding(
            "port_out_of_range", f"--port {port} is no port: they go from 1 to 65535", "--port 8000, or none"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _not_yet(s: Situation, copies: bool) -> Iterator[Finding]:
    """Layouts of more than one process."""
    asked = {
        "replicas": (s.given("replicas") or 1) > 1,
        "data_parallel_size": (s.given("data_parallel_size") or 1) > 1 and not copies,
        "disaggregation": s.given("disaggregation") not in (None, "off"),
        "front": s.given("front") == "router",
    }
    more = "and raise max_num_seqs for more requests at once"
    for lever, wanted in asked.items():
        if wanted:
            yield Finding(
                "not_available",
                f"{lever}: more than one process behind an address is not in this version",
                change={lever: "auto"},
                after=more if lever in ("replicas", "data_parallel_size") else "",
            )


def _lossy(s: Situation, levers: Mapping[str, Decision]) -> list[Finding]:
    return [_lossy_one(s, name, d) for name, d in levers.items() if not d.lossless]


def _lossy_one(s: Situation, name: str, d: Decision) -> Finding:
    message = f"{name}={d.value} can change answers, and {s.lossless_by}"
    if d.rule not in ("user", "profile"):
        # left to the planner it would be the same again
        return Finding("lossy", f"{message}: {d.reason}", "--set lossless=false")
    return Finding("lossy", message, change={name: "auto"}, after="or --set lossless=false")
