"""`llmserve levers`: everything that can be set, and one lever in detail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import output
from orchestrator.errors import usage

if TYPE_CHECKING:
    from orchestrator.levers import Lever


def complete_name(incomplete: str) -> list[str]:
    """Levers for the shell's completion."""
    from orchestrator.levers import LEVERS

    return [name for name in LEVERS if name.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    """Add `levers`."""
    app.command("levers", epilog="Example: llmserve levers kv_cache_dtype")(levers)


def levers(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="One lever in detail.", autocompletion=complete_name, show_default=False
        ),
    ] = None,
    json_output: output.Json = False,
) -> None:
    """Show what can be set with --set or in a profile: values, units, and what changes answers."""
    from orchestrator.levers import LEVERS
    from orchestrator.problems import nearest, shown

    if name is not None and name not in LEVERS:
        near = nearest(name, LEVERS)
        remedy = f"did you mean `{near}`?" if near else "`llmserve levers` lists them"
        raise usage("no_such_lever", f"there is no lever `{shown(name)}`", remedy)
    rows = [_row(lever) for lever in LEVERS.values() if name in (None, lever.name)]
    if json_output:
        output.emit({"levers": rows})
    elif name is None:
        _table(rows)
    else:
        _detail(rows[0])


def _row(lever: Lever) -> dict[str, Any]:
    from dataclasses import asdict

    from orchestrator.goals import GOALS
    from orchestrator.lever_words import accepted, example, figures
    from orchestrator.planning.llamacpp.left_out import LEFT_OUT

    moved_by = {g.name: [s.title for s in g.strategies if lever.name in s.levers] for g in GOALS.values()}
    return asdict(lever) | {
        "accepted": accepted(lever),
        "example": example(lever),
        "figures": figures() if lever.kind == "speculative" else {},
        "goals": {goal: titles for goal, titles in moved_by.items() if titles},
        "llamacpp": LEFT_OUT.get(lever.name),
    }


def _table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    con = output.console()
    table = Table("lever", "values", "unit", "meaning", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    table.columns[0].style = "cyan"
    table.columns[1].overflow = "fold"
    for row in rows:
        meaning = row["meaning"] + ("" if row["lossless"] else " (*)")
        table.add_row(row["name"], Text(_short(row)), row["unit"], Text(meaning))
    con.print(table)
    con.print(Text("auto is a value of each: the planner decides. (*) some values can change answers", "dim"))
    con.print(Text("Next: llmserve levers NAME, or llmserve plan --goal edge --set NAME=VALUE", "dim"))


def _short(row: dict[str, Any]) -> str:
    """The kind of value in a word or two; the detail says the rest."""
    if row["choices"]:
        return "|".join(c for c in row["choices"] if c != "auto")
    least, most = row["minimum"], row["maximum"]
    if row["kind"] in ("int", "float"):
        return f"{least:g}-{most:g}" if most is not None else f"{least or 0:g} or more"
    words = {"bool": "true|false", "bytes": "2GiB", "name": "a name", "names": "[a, b]"}
    return words.get(row["kind"], "off|N" if row["kind"] == "cuda_graph" else "off|{...}")


def _detail(row: dict[str, Any]) -> None:
    from rich.text import Text

    con = output.console()
    con.print(Text.assemble((row["name"], "bold cyan"), f": {row['meaning']}"))
    answers = (
        "no value changes answers" if row["lossless"] else "some values can change them, which the plan says"
    )
    facts = [("values", row["accepted"]), ("unit", row["unit"]), ("answers", answers)]
    facts += [(goal, "; ".join(titles)) for goal, titles in row["goals"].items()]
    facts += list(row["figures"].items())
    if row["llamacpp"]:
        facts.append(("llama.cpp", row["llamacpp"]))
    for what, text in facts:
        if text:
            con.print(Text.assemble((f"  {what}: ", "dim"), text))
    con.print(Text(f"Next: llmserve plan --goal edge --set {row['example']}", "dim"), soft_wrap=True)
