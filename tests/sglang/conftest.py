"""What a real SGLang 0.5.23 said: `/server_info`, `/model_info`, `/v1/models`, `/metrics` and whole logs,
with neutral paths and without what nothing here reads."""

import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def server_info() -> dict[str, Any]:
    info: dict[str, Any] = json.loads((HERE / "server-info-0.5.23.json").read_text(encoding="utf-8"))
    return info


@pytest.fixture(scope="session")
def models() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "models-0.5.23.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="session")
def busy() -> str:
    """`/metrics` while three requests decode."""
    return (HERE / "metrics-busy-0.5.23.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def idle() -> str:
    """`/metrics` after they ended."""
    return (HERE / "metrics-idle-0.5.23.txt").read_text(encoding="utf-8")
