"""One command line, one state folder and the real model for a module of tests."""

import os
from collections.abc import Iterator

import pytest
from commands import Cli


@pytest.fixture(scope="module")
def model() -> str:
    """The path of the real model: from LLMSERVE_TEST_MODEL, else fetched once into the shared store."""
    path = os.environ.get("LLMSERVE_TEST_MODEL")
    if path:
        return path
    from orchestrator import model_store

    resolved = model_store.resolve("smollm2-135m")
    assert resolved.path is not None
    return str(resolved.path)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("home"))
    try:
        yield cli
    finally:
        stopped = cli("daemon", "stop", "--all")
        assert stopped.code == 0, stopped.err
