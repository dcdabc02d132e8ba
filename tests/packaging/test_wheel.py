"""An installed wheel works from any folder: it carries the profiles, the data and the shim."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("orchestrator", "profiles"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    uv = shutil.which("uv")
    command = (
        [uv, "build", "--wheel", "--out-dir", str(folder), str(source)]
        if uv
        else [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(folder), str(source)]
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    zipfile.ZipFile(wheel).extractall(target)
    return target


def run(installed: Path, tmp_path: Path, *args: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(installed), "LLMSERVE_HOME": str(tmp_path)}
    code = "from orchestrator.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd="/", env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_finds_its_own_profiles_and_machines_from_any_folder(
    installed: Path, tmp_path: Path
) -> None:
    found = json.loads(run(installed, tmp_path, "profiles", "list", "--json"))
    assert {"throughput", "latency", "agent", "edge"} <= {p["name"] for p in found["profiles"]}
    shown = run(installed, tmp_path, "machine", "--machine", "cpu16", "--json")
    assert json.loads(shown)["cpus"] == 16


def test_every_data_file_of_the_package_is_in_the_wheel(installed: Path) -> None:
    ours = {p.relative_to(ROOT) for p in (ROOT / "orchestrator").rglob("*") if p.is_file()}
    wanted = {p for p in ours if "__pycache__" not in p.parts}
    assert {p for p in wanted if not (installed / p).is_file()} == set()
    assert (installed / "orchestrator/_profiles/schema.json").is_file()
