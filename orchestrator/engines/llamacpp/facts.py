"""What llama-server reports about itself after readiness, and the plan against it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.engines.base import FactCheck
from orchestrator.engines.llamacpp.checks import slot_context
from orchestrator.engines.llamacpp.health import read_metrics
from orchestrator.engines.reply import fetch
from orchestrator.plan import Plan

if TYPE_CHECKING:
    import httpx

_FIELDS = {
    "total_slots": "slots",
    "model_alias": "alias",
    "model_path": "model_path",
    "build_info": "build",
    "is_sleeping": "sleeping",
}
_META = ("n_ctx_train", "n_params", "n_vocab", "size", "ftype")


async def facts(client: httpx.AsyncClient, base_url: str) -> dict[str, Any]:
    """Slots, context of a slot, alias, speculation and the model's own figures, out of /slots, /props,
    /v1/models and /metrics. A key that is missing was not reported."""
    found: dict[str, Any] = {}
    props = await _json(client, f"{base_url}/props")
    if isinstance(props, dict):
        found |= {name: props[field] for field, name in _FIELDS.items() if field in props}
        settings = props.get("default_generation_settings")
        if isinstance(settings, dict) and isinstance(settings.get("n_ctx"), int):
            found["slot_context"] = settings["n_ctx"]
        if isinstance(props.get("chat_template"), str):
            found["chat_template"] = bool(props["chat_template"])
    slots = await _json(client, f"{base_url}/slots")
    if isinstance(slots, list) and slots and all(isinstance(s, dict) for s in slots):
        found["slots"] = len(slots)
        contexts = [s["n_ctx"] for s in slots if isinstance(s.get("n_ctx"), int)]
        if contexts:
            found["slot_context"] = min(contexts)
        speculative = [s["speculative"] for s in slots if isinstance(s.get("speculative"), bool)]
        if speculative:
            found["speculative"] = all(speculative)
    models = await _json(client, f"{base_url}/v1/models")
    if isinstance(models, dict):
        rows = [m for m in models.get("data") or [] if isinstance(m, dict)]
        found["served_models"] = [m["id"] for m in rows if isinstance(m.get("id"), str)]
        names = [n for m in rows for n in m.get("aliases") or [] if isinstance(n, str)]
        found["served_models"] += [n for n in names if n not in found["served_models"]]
        meta = rows[0].get("meta") if rows else None
        if isinstance(meta, dict):
            found |= {name: meta[name] for name in _META if name in meta}
    samples = await _text(client, f"{base_url}/metrics")
    if samples is not None:
        found["metrics"] = read_metrics(samples)
    return found


def compare(plan: Plan, facts: Mapping[str, Any]) -> list[FactCheck]:
    """One check for each planned figure that the engine reports; what it does not report is not judged."""
    levers = {name: d.value for name, d in plan.levers.items()}
    checks: list[FactCheck] = []
    slots = levers.get("max_num_seqs")
    if slots and "slots" in facts:
        checks.append(FactCheck("max_num_seqs", slots, facts["slots"], facts["slots"] == slots))
    length = levers.get("max_model_len")
    if length and "slot_context" in facts:
        actual = facts["slot_context"]
        most = _most(levers, length, slots or 1, facts.get("n_ctx_train"))
        checks.append(FactCheck("max_model_len", length, actual, length <= actual <= max(most, length)))
    if "served_models" in facts and plan.model.get("name"):
        name = plan.model.get("served_model") or plan.model["name"]
        served = facts["served_models"]
        checks.append(FactCheck("served_model", name, ", ".join(served), name in served))
    if "speculative" in levers and "speculative" in facts:
        wanted = isinstance(levers["speculative"], Mapping)
        checks.append(
            FactCheck("speculative", _on(wanted), _on(facts["speculative"]), facts["speculative"] == wanted)
        )
    trained = plan.model.get("context_length")
    if trained and "n_ctx_train" in facts:
        checks.append(
            FactCheck("context_length", trained, facts["n_ctx_train"], facts["n_ctx_train"] == trained)
        )
    return checks


def _most(levers: Mapping[str, Any], length: int, slots: int, trained: Any) -> int:
    """The largest slot that the planned command line can give: llama.cpp rounds up, and caps at the model."""
    unified = bool(levers.get("kv_unified"))
    pool = (levers.get("kv_cache_tokens") if unified else None) or length * slots
    most = slot_context(pool, slots, unified=unified)
    return min(most, trained) if isinstance(trained, int) else most


def _on(value: bool) -> str:
    return "on" if value else "off"


async def _text(client: httpx.AsyncClient, url: str) -> str | None:
    import httpx

    try:
        status, body = await fetch(client, "GET", url)
    except (httpx.HTTPError, ValueError):
        return None
    return body.decode("utf-8", "replace") if status == 200 else None


async def _json(client: httpx.AsyncClient, url: str) -> Any:
    text = await _text(client, url)
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
