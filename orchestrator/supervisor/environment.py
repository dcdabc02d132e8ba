"""Which environment an engine is started with, and how it is shown. The lists are in environment.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_URI = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@cache
def _lists() -> dict[str, Any]:
    import yaml

    data: dict[str, Any] = yaml.safe_load(
        (Path(__file__).parent / "environment.yaml").read_text(encoding="utf-8")
    )
    return data


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)


def allowed(env: Mapping[str, str]) -> dict[str, str]:
    """The part of `env` that an engine may see.

    A VLLM_PORT that is a URI is left out: Kubernetes sets one for a service called "vllm", and vLLM would
    read it as a port number.
    """
    allow, deny = _lists()["allow"], _lists()["deny"]
    return {
        k: v
        for k, v in env.items()
        if _matches(k, allow) and not _matches(k, deny) and not (k == "VLLM_PORT" and _URI.match(v))
    }


def authorization(kind: str, env: Mapping[str, str]) -> dict[str, str]:
    """The HTTP headers that a server of this kind asks for where `env` gives it a key."""
    variable = _lists()["api_key"].get(kind)
    key = env.get(variable, "").partition(",")[0].strip() if variable else ""
    return {"Authorization": f"Bearer {key}"} if key else {}


def redacted(env: Mapping[str, str]) -> dict[str, str]:
    """`env` for showing: values of secret names, and passwords inside addresses, become ***."""
    secret = _lists()["secret"]
    return {k: "***" if _matches(k.upper(), secret) else _without_password(v) for k, v in sorted(env.items())}


def _without_password(value: str) -> str:
    if "@" not in value or not _URI.match(value):
        return value
    try:
        parts = urlsplit(value)
    except ValueError:
        return "***"
    if parts.password is None:
        return value
    return value.replace(f":{parts.password}@", ":***@")
