"""The options that `plan` and `launch` share: the same words, the same help."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.goals import complete_goal
from orchestrator.cli.profiles import complete_profile

_MOST_FILES = 200


def complete_lever(incomplete: str) -> list[str]:
    """Levers for the shell's completion of --set, ready for their value; then the values that have names."""
    from orchestrator.levers import LEVERS

    name, equals, begun = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in LEVERS if name.startswith(incomplete)]
    if name not in LEVERS:
        return []
    from orchestrator.lever_words import words

    return [f"{name}={word}" for word in words(LEVERS[name]) if word.startswith(begun)]


def complete_engine(incomplete: str) -> list[str]:
    """Engines for the shell's completion: by their names alone, none is asked anything."""
    import os
    import re
    import shutil
    from importlib.util import find_spec

    from orchestrator import folders

    names = ["auto"]
    try:
        with open(folders.config_dir() / "engines.yaml", encoding="utf-8", errors="replace") as f:
            # read as text: yaml and its checks would take longer than a keystroke should
            names += re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]{0,62})\s*:", f.read(65536), re.MULTILINE)
    except OSError:
        pass
    if os.environ.get("LLAMA_SERVER") or shutil.which("llama-server"):
        names.append("llama-server")
    if find_spec("xllamacpp") is not None:
        names.append("embedded")
    # planned for by what is known of them, installed or not
    names += ["vllm", "sglang"]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def complete_diff(incomplete: str) -> list[str]:
    """`stock` and the profiles, for the shell's completion of --diff."""
    return [name for name in ("stock", *complete_profile("")) if name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Stored and known models, GGUF files and folders, for the shell's completion."""
    import os

    from orchestrator import model_store

    names = sorted({m.name for m in model_store.stored()} | set(model_store.known()))
    out = [name for name in names if name.startswith(incomplete)]
    folder, begun = os.path.split(incomplete)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            for entry in entries:
                if len(out) >= _MOST_FILES:
                    break
                hidden = entry.name.startswith(".") and not begun.startswith(".")
                if hidden or not entry.name.startswith(begun):
                    continue
                if entry.is_dir():
                    out.append(os.path.join(folder, entry.name) + "/")
                elif entry.name.endswith(".gguf"):
                    out.append(os.path.join(folder, entry.name))
    except OSError:
        pass
    return out


def complete_machine(incomplete: str) -> list[str]:
    """Machines that llmserve knows, for the shell's completion."""
    from orchestrator.machine.files import names

    return [name for name in names() if name.startswith(incomplete)]


Goal = Annotated[
    str | None,
    typer.Option(
        "--goal",
        metavar="GOAL",
        help="throughput, latency, agent or edge.",
        autocompletion=complete_goal,
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME|FILE",
        help="A profile instead of the goal's built-in one.",
        autocompletion=complete_profile,
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A file, a folder, a hub id or a known name.",
        autocompletion=complete_model,
        show_default=False,
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="An engine of `llmserve engines list`, or auto.",
        autocompletion=complete_engine,
        show_default=False,
    ),
]
MachineFile = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="FILE",
        help="Plan for a machine that is not here.",
        autocompletion=complete_machine,
        show_default=False,
    ),
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="LEVER=VALUE",
        help="Set a lever, may be repeated: --set max_num_seqs=4. `llmserve levers` lists them.",
        autocompletion=complete_lever,
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="The deployment's name, else GOAL-MODEL.", show_default=False
    ),
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", metavar="PORT", help="Port, else the first free one from 8000.", show_default=False
    ),
]
