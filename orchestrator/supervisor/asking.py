"""How an engine on this host is asked."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from orchestrator.supervisor import environment


def asker(kind: str, env: Mapping[str, str], timeout_s: float) -> httpx.AsyncClient:
    """A client for a server of this kind that was started with `env`."""
    # proxies of the daemon's environment have no business between it and a server on this host
    return httpx.AsyncClient(
        timeout=timeout_s, trust_env=False, verify=False, headers=environment.authorization(kind, env)
    )
