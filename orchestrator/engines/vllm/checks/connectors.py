"""Rules of KV connectors (disaggregation, offload to another store)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.engines.vllm.checks.settings import Settings, rules
from orchestrator.plan import Violation


def check(s: Settings) -> list[Violation]:
    """KVTransferConfig's checks (vLLM 0.33.0 vllm/config/kv_transfer.py:115-124,
    vllm/config/vllm.py:1254-1302, 2257-2290)."""
    transfer = s.json("--kv-transfer-config")
    if not transfer:
        return []
    found = []
    name, role = transfer.get("kv_connector"), transfer.get("kv_role")
    roles = rules()["kv_roles"]
    if name is None and role is not None:
        found.append(
            Violation(
                "connector_missing",
                "--kv-transfer-config has a role and no kv_connector",
                "name a kv_connector",
            )
        )
    if name is not None and role not in roles:
        found.append(
            Violation(
                "connector_role",
                f"kv_role is {role!r}: with a kv_connector it is one of {', '.join(roles)}",
                "give kv_role",
            )
        )
    offered = s.installation.extras.get("kv_connectors") or ()
    names = list(connector_names(transfer))
    strange = [n for n in names if offered and n not in offered]
    if strange and not transfer.get("kv_connector_module_path"):
        found.append(
            Violation(
                "connector_unknown",
                f"vLLM {s.installation.version} has no KV connector {', '.join(strange)} "
                f"(it has {', '.join(offered)})",
                "use one of those, or give kv_connector_module_path",
            )
        )
    keeps = s.on("--disable-hybrid-kv-cache-manager") is False
    if keeps and (plain := [n for n in names if n in rules()["not_hybrid"]]):
        found.append(
            Violation(
                "connector_not_hybrid",
                f"{plain[0]} does not work with the hybrid KV cache manager, which is asked for",
                "take --no-disable-hybrid-kv-cache-manager out of engine_args",
            )
        )
    shared, tensor = s.count("--decode-context-parallel-size"), s.count("--tensor-parallel-size")
    if "NixlConnector" in names and shared > 1 and (shared != tensor or s.model.get("mla") is False):
        # vllm/config/vllm.py:1572
        found.append(
            Violation(
                "connector_with_context_parallel",
                "NixlConnector takes --decode-context-parallel-size 1, or with latent attention (MLA) the "
                f"whole tensor_parallel_size {tensor}: it is {shared}",
                "take --decode-context-parallel-size out of engine_args",
            )
        )
    if "expandable_segments:True" in s.env.get("PYTORCH_CUDA_ALLOC_CONF", "") and not (
        s.on("--enable-sleep-mode") or s.on("--enable-cumem-allocator")
    ):
        found.append(
            Violation(
                "connector_with_moving_memory",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True moves what a KV connector has pinned",
                "take it out of env",
            )
        )
    return found


def connector_names(transfer: Mapping[str, Any]) -> Iterator[str]:
    """The connector, or the children of a MultiConnector."""
    name = transfer.get("kv_connector")
    if isinstance(name, str):
        yield name
    extra = transfer.get("kv_connector_extra_config")
    children = extra.get("connectors") if isinstance(extra, Mapping) else None
    for child in children if name == "MultiConnector" and isinstance(children, list) else ():
        if isinstance(child, Mapping):
            yield from connector_names(child)
