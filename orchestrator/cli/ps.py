"""`llmserve ps`: every deployment, a line each."""

from __future__ import annotations

import typer

from orchestrator.cli.output import Json

_NOT_IN_A_LIST = ("plan_vs_actual", "corrections", "last_failure")


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: llmserve ps --json")(ps)


def ps(json_output: Json = False) -> None:
    """List the deployments."""
    from orchestrator.cli.output import console, emit
    from orchestrator.supervisor import client, store

    running = client.running()
    found = None if running else store.all_ended()
    if found is None:
        found = (running or client.start()).ps()
    rows = [{k: v for k, v in d.items() if k not in _NOT_IN_A_LIST} for d in found]
    if json_output:
        emit({"deployments": rows})
        return
    con = console(whole_lines=True)
    if not rows:
        con.print("no deployment yet; llmserve launch --goal edge")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("name", "state", "address", "up", "restarts", "goal", "engine"):
        table.add_column(column, overflow="fold")
    for row in rows:
        process = row["processes"][0]
        state = row["state"] + (f" ({row['reason']})" if row["reason"] and row["state"] != "ready" else "")
        ended = row["state"] in ("stopped", "failed")
        table.add_row(
            row["name"],
            state,
            "–" if ended else row["endpoint"],
            duration(process["uptime_s"]),
            str(process["restarts"]),
            row["goal"],
            row["engine"]["name"],
        )
    con.print(table)


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: 42s, 3m, 5h, 2d."""
    if seconds is None:
        return "–"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
