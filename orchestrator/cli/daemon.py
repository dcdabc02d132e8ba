"""`llmserve daemon`: the process that keeps deployments alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.output import Json

if TYPE_CHECKING:
    from orchestrator.supervisor.client import Client


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The process that keeps deployments alive.")
    group.command("run", epilog="Example: llmserve daemon run")(run)
    group.command("start", epilog="Example: llmserve daemon start")(start)
    group.command("stop", epilog="Example: llmserve daemon stop --all")(stop)
    group.command("restart", epilog="Example: llmserve daemon restart")(restart)
    group.command("status", epilog="Example: llmserve daemon status --json")(status)
    app.add_typer(group, name="daemon")


def run() -> None:
    """Supervise in this terminal until Ctrl-C; servers are left running."""
    import asyncio

    from orchestrator.supervisor.daemon import serve

    asyncio.run(serve())


def start(json_output: Json = False) -> None:
    """Start the daemon in the background; one that runs is left alone."""
    from orchestrator.supervisor import client

    _show(client.connect().daemon(), json_output)


def stop(
    all_: Annotated[bool, typer.Option("--all", help="Stop every deployment first.")] = False,
    json_output: Json = False,
) -> None:
    """Stop the daemon. Servers run on and are found again, unless --all."""
    from orchestrator.cli.output import console, emit, notes
    from orchestrator.cli.stop import told
    from orchestrator.supervisor import client
    from orchestrator.supervisor.store import deployment_names

    daemon = client.running(any_version=True)
    if daemon is None and all_ and deployment_names():
        daemon = client.start()
    if daemon is None:
        done: dict[str, Any] = {"was_running": False, "stopped": {}, "running": []}
    else:
        left = [] if all_ else _running(daemon)
        with notes().status("stopping"):
            done = {"was_running": True, "stopped": daemon.shutdown(all_)["stopped"], "running": left}
            client.wait_gone(daemon)
    if json_output:
        emit(done)
        return
    con = console()
    for name, report in done["stopped"].items():
        con.print(f"{name} stopped in {report['seconds']} s: {told(report)}", soft_wrap=True)
    con.print("the daemon is stopped" if done["was_running"] else "no daemon was running")
    left = done["running"]
    if left:
        con.print(f"{len(left)} server{'s run' if len(left) > 1 else ' runs'} on: {', '.join(left)}")
        con.print("  llmserve daemon stop --all stops them too; llmserve ps finds them again")


def _running(daemon: Client) -> list[str]:
    """Names of the deployments that are not over; none where a daemon of another version does not tell."""
    from orchestrator.errors import LlmserveError
    from orchestrator.supervisor.lifecycle import ENDED

    try:
        return [d["name"] for d in daemon.ps() if d["state"] not in ENDED]
    except (LlmserveError, KeyError, TypeError):
        return []


def restart(json_output: Json = False) -> None:
    """Stop the daemon and start this version's; servers run on."""
    from orchestrator.supervisor import client

    daemon = client.running(any_version=True)
    if daemon is not None:
        daemon.shutdown(False)
        client.wait_gone(daemon)
    _show(client.connect().daemon(), json_output)


def status(json_output: Json = False) -> None:
    """Show the daemon: pid, version, socket, uptime, deployments. Exit 6 where none runs."""
    from orchestrator.supervisor import client

    daemon = client.running()
    if daemon is None:
        raise client.unreachable("none is running")
    _show(daemon.daemon(), json_output)


def _show(about: dict[str, Any], as_json: bool) -> None:
    from orchestrator.cli.output import console, emit

    if as_json:
        emit(about)
        return
    console().print(
        f"daemon {about['pid']}, llmserve {about['version']}, up {about['uptime_s']:.0f} s, "
        f"{about['deployments']} deployment(s)\nsocket {about['socket']}",
        soft_wrap=True,
    )
