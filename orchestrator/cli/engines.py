from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.output import Json

if TYPE_CHECKING:
    from rich.table import Table

    from orchestrator.engines.base import Flag, Installation

engines = typer.Typer(no_args_is_help=True, help="Engines: which are installed here, and what they take.")


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.add_typer(engines, name="engines")


def _names(incomplete: str) -> list[str]:
    return [i.name for i in _found() if i.name.startswith(incomplete)]


@engines.command("list", epilog="Example: llmserve engines list")
def list_engines(json_output: Json = False) -> None:
    """List the engines that were found, best first; what is there and cannot be used says why."""
    from orchestrator.cli import output

    found = _found()
    if json_output:
        output.emit({"engines": [_row(i) for i in found]})
        return
    if found:
        output.console().print(_table(found))
    else:
        output.console().print("no engine is installed here", soft_wrap=True)
    notes = output.notes()
    for i in found:
        if i.extras.get("broken"):
            notes.print(f"{i.name} → {i.extras['remedy']}", soft_wrap=True, markup=False)
    if all(i.extras.get("broken") for i in found):
        notes.print(
            "→ pip install 'llmserve[edge]' brings the embedded llama.cpp", soft_wrap=True, markup=False
        )


@engines.command(epilog="Example: llmserve engines probe llama-server")
def probe(
    name: Annotated[
        str | None, typer.Argument(help="An engine's name; all of them when left out.", autocompletion=_names)
    ] = None,
    json_output: Json = False,
) -> None:
    """Ask an installed engine again for its version and flags."""
    from orchestrator import folders
    from orchestrator.cli import output
    from orchestrator.errors import not_found, refused

    for kept in (folders.cache_dir() / "probes").glob("*.json"):
        kept.unlink(missing_ok=True)
    found = _found()
    chosen = [i for i in found if name in (None, i.name)]
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

    con = output.console()
    for i in chosen:
        said = f"{escape(i.version)}: {len(i.flags)} flags"
        if i.extras.get("broken"):
            said = f"broken: {escape(i.extras['broken'])}"
        con.print(f"[bold]{escape(i.name)}[/] {said}", soft_wrap=True)
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
    for heading in ("ENGINE", "KIND", "VERSION"):
        table.add_column(heading, overflow="fold")
    table.add_column("STATE", overflow="fold", min_width=6)
    table.add_column("PROGRAM", overflow="fold")
    for i in found:
        why = i.extras.get("broken")
        # the program stands beside it
        state = f"[red]broken[/]: {escape(why.rpartition('cannot be used: ')[2])}" if why else "[green]ok[/]"
        table.add_row(escape(i.name), i.kind, escape(i.version or "-"), state, escape(_row(i)["path"]))
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
        "state": "broken" if i.extras.get("broken") else "ok",
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
