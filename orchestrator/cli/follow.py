"""A start as a person sees it: phase and seconds until it is ready, and what to do next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Exit, LlmserveError

if TYPE_CHECKING:
    from orchestrator.supervisor.client import Client

OVER = ("ready", "degraded", "failed", "stopped")
_PHASES = {"fetch": "fetching", "load": "loading the model", "compile": "compiling", "warm-up": "warming up"}


def until_ready(client: Client, status: dict[str, Any], weights_bytes: int | None = None) -> dict[str, Any]:
    """Follow a start to its end: ready, degraded, failed or stopped. Shows progress on stderr.

    No time-out of its own: a start ends by the engine's exit or by the profile's cap.
    """
    from orchestrator.cli.output import notes

    console = notes()
    name, began = status["name"], time.monotonic()
    live = console.status("starting") if console.is_terminal else None
    shown = ""
    if live:
        live.start()
    try:
        while status["state"] not in OVER and not gave_up(status):
            line = _line(status, weights_bytes)
            if live:
                live.update(f"{line} [dim]{time.monotonic() - began:.0f} s[/]")
            elif line.split(" · ")[0] != shown and status["state"] != "backoff":
                shown = line.split(" · ")[0]
                console.print(f"{time.monotonic() - began:5.1f} s  {line}", soft_wrap=True)
            status = client.status(name, after=status["revision"], wait_s=0.5)
    finally:
        if live:
            live.stop()
    return status


def gave_up(status: dict[str, Any]) -> bool:
    """A start whose engine exited: the daemon tries again, but whoever waits is told now."""
    failure = status["last_failure"] or {}
    return bool(status["state"] == "backoff" and failure.get("retry") == "backoff")


def _line(status: dict[str, Any], weights_bytes: int | None) -> str:
    from orchestrator.planning.words import size

    phase = _PHASES.get(status["phase"] or "", status["phase"] or status["state"])
    if status["state"] == "backoff":
        failure = status["last_failure"] or {}
        return f"{failure.get('class')}: next try in {status['retry_in_s']} s"
    if status["reason"] or status["state"] in ("unhealthy", "stopping"):
        return f"{status['state']}: {status['reason']}"
    resident = status["processes"][0].get("resident_bytes")
    if status["phase"] == "load" and resident and weights_bytes:
        done = min(resident, weights_bytes)
        return f"{phase} · {size(done)} of {size(weights_bytes)} in memory"
    return str(phase)


def started(status: dict[str, Any], strict: bool = False) -> None:
    """Raise the error a start ended with, if it did (exit 4)."""
    name, failure = status["name"], status["last_failure"] or {}
    if status["state"] == "failed" or gave_up(status):
        again = (
            f"\n    it is tried again in the background until llmserve stop {name}" if gave_up(status) else ""
        )
        raise LlmserveError(
            str(failure.get("class") or status["reason"]),
            f"{name} failed: {failure.get('message')}: {failure.get('evidence')}".rstrip(": "),
            f"{failure.get('remedy')}\n    the log: llmserve logs {name}{again}",
            exit_code=Exit.ENGINE,
        )
    if status["state"] == "stopped":
        raise LlmserveError("stopped", f"{name} was stopped before it was ready", exit_code=Exit.ENGINE)
    if strict and status["state"] == "degraded":
        raise LlmserveError("not_in_effect", f"{name} is {status['reason']}", exit_code=Exit.ENGINE)


def show_ready(status: dict[str, Any], seconds: float) -> None:
    """How launch and restart end: plan against fact, the address, a ready curl, the next commands."""
    from rich.markup import escape
    from rich.table import Table

    from orchestrator.cli.output import console
    from orchestrator.cli.status import fact

    con = console()
    name, url = status["name"], status["endpoint"]
    if status["plan_vs_actual"]:
        table = Table(box=None, pad_edge=False)
        for column in ("plan against engine", "planned", "reported", ""):
            table.add_column(column, overflow="fold")
        for c in status["plan_vs_actual"]:
            mark = "[green]ok[/]" if c["ok"] else "[red]differs[/]"
            planned, actual = (fact(c["what"], c[side]) for side in ("planned", "actual"))
            table.add_row(c["what"], escape(planned), escape(actual), mark)
        con.print(table)
        con.print()
    if status["state"] == "degraded":
        con.print(f"[yellow]degraded[/]: {escape(status['reason'])}", soft_wrap=True)
    con.print(f"[bold green]{status['state']}[/] after {seconds:.1f} s: [bold]{name}[/] at [bold]{url}[/]")
    con.print(
        f"\nask it:\n  curl {url}/v1/chat/completions \\\n"
        "    -H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"model": "{status["served_model"]}", "max_tokens": 64,\n'
        '         "messages": [{"role": "user", "content": "Hello!"}]}\'',
        markup=False,
        soft_wrap=True,
    )
    con.print(f"\ngo on:  llmserve status {name} · llmserve logs -f {name}", soft_wrap=True)
    con.print(f"stop:   llmserve stop {name}", soft_wrap=True)
