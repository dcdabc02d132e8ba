"""`llmserve status`: one deployment, whole."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.names import Name
from orchestrator.cli.output import Json

_KEY_WIDTH = 9


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: llmserve status edge-smollm2-135m --json")(status)


def status(
    name: Name = None,
    env: Annotated[
        bool, typer.Option("--env", help="Show the engine's environment, secrets as ***.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Show a deployment: state, address, plan against fact, last failure."""
    from orchestrator.cli.names import chosen
    from orchestrator.cli.output import console, emit
    from orchestrator.cli.ps import duration
    from orchestrator.supervisor import client, store

    which = chosen(name)
    running = client.running()
    ended = None if running or env else store.all_ended()
    if ended is not None:
        found = next(d for d in ended if d["name"] == which)
    else:
        found = (running or client.start()).status(which, env=env)
    if json_output:
        emit(found)
        return
    from rich.markup import escape

    con = console()
    process = found["processes"][0]
    over = found["state"] in ("stopped", "failed")
    reason = f" ({found['reason']})" if found["reason"] else ""
    phase = f", {found['phase']}" if found["phase"] else ""
    engine = found["engine"]
    rows = [
        ("name", found["name"]),
        ("state", f"{found['state']}{phase}{reason}"),
        ("address", "–" if over else found["endpoint"]),
        ("model", found["served_model"]),
        ("goal", found["goal"]),
        ("engine", f"{engine['name']} {engine['version']}"),
        ("process", "–" if over else f"{process['pid'] or '–'} under shim {process['shim_pid'] or '–'}"),
        ("up", f"{duration(process['uptime_s'])}, restarts {process['restarts']}"),
        ("log", found["log"]),
    ]
    for check in [] if over else found["plan_vs_actual"]:
        mark = "ok" if check["ok"] else "differs"
        planned, actual = (fact(check["what"], check[side]) for side in ("planned", "actual"))
        rows.append((mark, f"{check['what']}: planned {planned}, actual {actual}"))
    for correction in found["corrections"]:
        levers = ", ".join(f"{k} {v['was']} → {v['now']}" for k, v in correction["levers"].items())
        rows.append(("corrected", f"after {correction['cause']}: {levers}"))
    if found["last_failure"]:
        failure = found["last_failure"]
        rows.append(("failure", f"{when(failure['at'])}{failure['class']}: {failure['message']}"))
        rows += [("", failure["evidence"]), ("", f"→ {failure['remedy']}")]
    for key, value in found.get("env", {}).items():
        rows.append(("env", f"{key}={value}"))
    for key, value in rows:
        # a path stays whole, to be copied
        con.print(f"[dim]{key:{_KEY_WIDTH}}[/] {escape(str(value))}", soft_wrap=True)
    con.print(f"[dim]next: llmserve {'restart' if over else 'logs -f'} {found['name']}[/]")


def fact(what: str, value: object) -> str:
    """What the plan or the engine says of a lever, in its unit."""
    from orchestrator.cli.plan_view import value as in_words

    return in_words(value, what)


def when(seconds: float | None) -> str:
    """A time as `2026-11-30 00:12:03 `, "" where it is not known."""
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S ", time.localtime(seconds)) if seconds else ""
