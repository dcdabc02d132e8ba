"""What a plan does otherwise than the engine left alone, or than another profile's plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.plan import Plan

STOCK = "stock"


def against_stock(plan: Plan, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`{lever, plan, other, reason, lossless}` for each lever that is not the engine's own default.

    `defaults` are the engine's values by lever, None where it computes one.
    """
    return [_row(plan, name, defaults.get(name)) for name, d in plan.levers.items() if not d.stock]


def against_plan(plan: Plan, other: Plan) -> list[dict[str, Any]]:
    """The same for each lever that two plans decide otherwise, or only one of them decides."""
    rows = []
    for name in dict.fromkeys([*plan.levers, *other.levers]):
        mine, theirs = plan.levers.get(name), other.levers.get(name)
        if mine is None:
            assert theirs is not None
            rows.append(
                {
                    "lever": name,
                    "plan": None,
                    "other": theirs.value,
                    "reason": "left out here",
                    "lossless": True,
                }
            )
        elif theirs is None or theirs.value != mine.value:
            rows.append(_row(plan, name, theirs.value if theirs is not None else None))
    return rows


def _row(plan: Plan, name: str, other: Any) -> dict[str, Any]:
    d = plan.levers[name]
    return {"lever": name, "plan": d.value, "other": other, "reason": d.reason, "lossless": d.lossless}


def show(con: Console, rows: list[dict[str, Any]], what: str) -> None:
    """Each lever with both values and the plan's reason; `what` names the other side."""
    from rich.markup import escape

    from orchestrator.cli.plan_view import value

    if not rows:
        con.print(f"every lever is as in {what}", markup=False)
        return
    for row in rows:
        other = "its own choice" if row["other"] is None else value(row["other"], row["lever"])
        mine = value(row["plan"], row["lever"]) + ("" if row["lossless"] else ", can change answers")
        theirs = f"[dim]({escape(what)}: {escape(other)})[/]"
        con.print(f"[bold cyan]{row['lever']}[/] = [bold]{escape(mine)}[/]  {theirs}")
        con.print(f"  {escape(row['reason'])}")
