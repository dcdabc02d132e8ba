from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.output import Json

if TYPE_CHECKING:
    from orchestrator.engines.base import Flag, Installation
    from orchestrator.errors import LlmserveError

engines = typer.Typer(no_args_is_help=True, help="Engines: which are installed here, and what they take.")


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.add_typer(engines, name="engines")


def _names(incomplete: str) -> list[str]:
    return [i.name for i in _found()[0] if i.name.startswith(incomplete)]


@engines.command("list", epilog="Example: llmserve engines list")
def list_engines(json_output: Json = False) -> None:
    """List the engines that were found, best first, and entries of engines.yaml that cannot be used."""
    from orchestrator.cli import output

    found, broken = _found()
    if json_output:
        problems = [{"name": name} | e.to_json()["error"] for name, e in broken]
        output.emit({"engines": [_row(i) for i in found], "broken": problems})
        return
    from rich.markup import escape
    from rich.table import Table

    con = output.console()
    table = Table(box=None, pad_edge=False)
    for heading in ("ENGINE", "KIND", "VERSION"):
        table.add_column(heading, no_wrap=True)
    table.add_column("PROGRAM", overflow="fold")
    for i in found:
        table.add_row(escape(i.name), i.kind, escape(i.version), escape(_row(i)["path"]))
    if found:
        con.print(table)
    else:
        con.print("no engine is installed here", soft_wrap=True)
    notes = output.notes()
    for name, e in broken:
        notes.print(f"[yellow]{escape(name)}[/]: {escape(e.message)}\n  → {escape(e.remedy)}", soft_wrap=True)
    if not found:
        notes.print("  → pip install 'llmserve\\[edge]' brings the embedded llama.cpp", soft_wrap=True)


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
    from orchestrator.errors import not_found

    for kept in (folders.cache_dir() / "probes").glob("*.json"):
        kept.unlink(missing_ok=True)
    found, broken = _found()
    for known, e in broken:
        if name in (None, known):
            raise e
    chosen = [i for i in found if name in (None, i.name)]
    if name is not None and not chosen:
        names = ", ".join(i.name for i in found) or "none"
        raise not_found(
            "unknown_engine", f"there is no engine {name!r}; found: {names}", "see `llmserve engines list`"
        )
    if json_output:
        output.emit({"engines": [_row(i) | {"flags": [_flag(f) for f in i.flags]} for i in chosen]})
        return
    from rich.markup import escape
    from rich.table import Table

    con = output.console()
    for i in chosen:
        con.print(f"[bold]{escape(i.name)}[/] {escape(i.version)}: {len(i.flags)} flags", soft_wrap=True)
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


def _found() -> tuple[list[Installation], list[tuple[str, LlmserveError]]]:
    """Installations of every kind, and the configured entries that cannot be used."""
    import os

    from orchestrator import settings
    from orchestrator.engines import registry
    from orchestrator.errors import LlmserveError

    configured = settings.engines()
    found: list[Installation] = []
    broken: list[tuple[str, LlmserveError]] = []
    for kind in registry.kinds():
        engine = registry.engine(kind)
        # whatever fails after this is the entry's own fault
        engine.installations({}, os.environ)
        good: dict[str, dict[str, Any]] = {}
        for name, entry in configured.items():
            if entry["kind"] != kind:
                continue
            try:
                engine.installations({name: entry}, os.environ)
                good[name] = entry
            except LlmserveError as e:
                broken.append((name, e))
        found += engine.installations(good, os.environ)
    return found, broken


def _row(i: Installation) -> dict[str, Any]:
    return {
        "name": i.name,
        "kind": i.kind,
        "version": i.version,
        "path": str(i.extras.get("path") or i.argv[0]),
        "argv": list(i.argv),
        "env": sorted(i.env),
        "captured": i.captured,
    }


def _flag(f: Flag) -> dict[str, Any]:
    return {
        "spellings": list(f.spellings),
        "takes_value": f.takes_value,
        "choices": list(f.choices),
        "default": f.default,
    }
