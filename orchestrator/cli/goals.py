"""`llmserve goals`: the decision tree, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import output
from orchestrator.errors import usage

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from orchestrator.goals import Claim, Strategy


def complete_goal(incomplete: str) -> list[str]:
    """Goals for the shell's completion."""
    from orchestrator.goals import GOALS

    return [name for name in GOALS if name.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    """Add `goals`."""
    app.command("goals", epilog="Example: llmserve goals latency --long")(goals)


def goals(
    goal: Annotated[
        str | None,
        typer.Argument(
            metavar="GOAL", help="Only this goal.", autocompletion=complete_goal, show_default=False
        ),
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="How each strategy works, and every claim.")] = False,
    json_output: output.Json = False,
) -> None:
    """Show the goals: strategies, the levers they move, gain, cost, and when they do not pay."""
    from dataclasses import asdict

    from rich.text import Text
    from rich.tree import Tree

    from orchestrator.goals import EVERY_GOAL, GOALS
    from orchestrator.problems import nearest, shown

    if goal is not None and goal not in GOALS:
        near = nearest(goal, GOALS)
        message = f"there is no goal `{shown(goal)}`; goals are {', '.join(GOALS)}"
        raise usage("no_such_goal", message, f"did you mean `{near}`?" if near else "see `llmserve goals`")
    chosen = [g for g in GOALS.values() if goal in (None, g.name)]
    if json_output:
        output.emit({"goals": [asdict(g) for g in chosen], "every_goal": [asdict(s) for s in EVERY_GOAL]})
        return
    con = output.console()
    for g in chosen:
        tree = Tree(Text.assemble((g.name, "bold cyan"), f"  {g.title} (first: {g.first})"))
        for strategy in g.strategies:
            _draw(tree, strategy, long)
        con.print(tree)
        con.print()
    tree = Tree(Text("serves every goal", "bold cyan"))
    for strategy in EVERY_GOAL:
        _draw(tree, strategy, long)
    con.print(tree)
    con.print()
    con.print(Text(f"Next: llmserve plan --goal {goal or 'edge'}", "dim"))


def _draw(tree: Tree, strategy: Strategy, long: bool) -> None:
    from rich.text import Text

    branch = tree.add(Text(strategy.title, "bold"))
    if long:
        branch.add(Text(strategy.mechanism))
    branch.add(_line("levers", ", ".join((*strategy.levers, *strategy.options)), "green"))
    for claim in strategy.gains if long else strategy.gains[:1]:
        branch.add(_line("gain", _claim(claim)))
    branch.add(_line("cost", strategy.costs))
    branch.add(_line("not when", strategy.not_when))
    if strategy.variants and not long:
        branch.add(_line("kinds", "; ".join(v.name for v in strategy.variants)))
    for variant in strategy.variants if long else ():
        kind = branch.add(Text.assemble((variant.name, "bold"), f"  (method: {variant.method})"))
        kind.add(Text(variant.mechanism))
        for claim in variant.gains:
            kind.add(_line("gain", _claim(claim)))
        kind.add(_line("cost", variant.costs))
        kind.add(_line("not when", variant.not_when))


def _line(label: str, text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text.assemble((f"{label}: ", "dim"), (text, style))


def _claim(claim: Claim) -> str:
    return f"{claim.what} ({claim.said_by})"
