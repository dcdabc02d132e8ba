"""One embedded server for the session, and installations to plan with that need no engine."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_running import EMBEDDED, Running, Start, starting

from orchestrator.engines.base import Flag, Installation
from orchestrator.engines.llamacpp.embedded_args import listing, load_table
from orchestrator.engines.llamacpp.help_text import parse_help

HELP = Path(__file__).parent / "llama-server-help.txt"


@pytest.fixture(scope="session")
def help_text() -> str:
    """`llama-server --help` of version 0.6.0-dev, as it was printed."""
    return HELP.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def binary(help_text: str) -> Installation:
    told = parse_help(help_text)
    extras = {"variables": told.env, "removed": told.removed}
    argv = ("/opt/llama/llama-server",)
    return Installation("llama-server", "llamacpp", "0.6.0-dev", argv, told.flags, extras=extras)


@pytest.fixture(scope="session")
def embedded() -> Installation:
    rows = listing(load_table().flags)
    flags = tuple(
        Flag(tuple(r["spellings"]), r["takes_value"], tuple(r["choices"]), r["default"]) for r in rows
    )
    variables = {r["env"]: r["spellings"][0] for r in rows if r["env"]}
    return Installation(
        "embedded", "llamacpp", "2026.10", EMBEDDED, flags, extras={"variables": variables, "removed": {}}
    )


@pytest.fixture(scope="session")
def model() -> str:
    """A real GGUF file: LLMSERVE_TEST_MODEL, else the known small model, fetched on first use."""
    given = os.environ.get("LLMSERVE_TEST_MODEL")
    if given:
        return given
    from orchestrator import model_store

    path = model_store.resolve("smollm2-135m").path
    assert path is not None
    return path


@pytest.fixture
def start(tmp_path: Path, model: str) -> Iterator[Start]:
    """Starts embedded servers; whatever is left of them at the end is killed."""
    with starting(tmp_path, model) as begin:
        yield begin


@pytest.fixture(scope="session")
def server(model: str) -> Iterator[Running]:
    """The session's own server: two slots of 1024 tokens, n-gram speculation, answering to `small`."""
    with tempfile.TemporaryDirectory() as folder, starting(Path(folder), model) as begin:
        running = begin(
            "--ctx-size", "2048", "--alias", "small", "--no-kv-unified",
            "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3",
        )  # fmt: skip
        running.wait_ready()
        yield running
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
