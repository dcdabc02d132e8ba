"""The `llmserve` command: gathers the nouns, and turns every error into one message and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from orchestrator import __version__
from orchestrator.cli import (
    daemon,
    engines,
    events,
    goals,
    launch,
    logs,
    machine,
    models,
    plan,
    profiles,
    ps,
    restart,
    rm,
    status,
    stop,
)
from orchestrator.errors import Exit, LlmserveError

app = typer.Typer(
    name="llmserve",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Launch and keep an LLM server: a goal goes in, a running, verified server comes out.",
    epilog="Example: llmserve launch --goal edge",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"llmserve {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


# in the order in which a newcomer needs them
for _module in (
    goals,
    plan,
    launch,
    ps,
    status,
    logs,
    events,
    stop,
    restart,
    rm,
    profiles,
    engines,
    models,
    machine,
    daemon,
):
    _module.register(app)


def _report(error: LlmserveError) -> None:
    from orchestrator.cli import output

    if output.json_mode():
        output.emit(error.to_json())
        return
    con = output.notes()
    con.print(f"[bold red]error:[/] {_escape(error.message)}", soft_wrap=True)
    shown = [v for v in error.violations if v["message"] != error.message]
    for v in shown:
        con.print(f"  [red]•[/] [bold]{_escape(v['code'])}[/]: {_escape(v['message'])}", soft_wrap=True)
        if v["remedy"]:
            con.print(f"    → {_escape(v['remedy'])}", soft_wrap=True)
    if error.remedy:
        con.print(f"  → {_escape(error.remedy)}", soft_wrap=True)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def main() -> None:
    """Entry point. Every end is an exit code of `errors.Exit`; no traceback reaches a user."""
    try:
        code = app(standalone_mode=False)
    except LlmserveError as e:
        _report(e)
        code = e.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        # the reader went away (`| head`): nothing more to say, and nothing to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.DONE
    except OSError as e:
        if os.environ.get("LLMSERVE_DEBUG"):
            raise
        where = f": {e.filename}" if e.filename else ""
        _report(
            LlmserveError(
                "system",
                f"{e.strerror or e}{where}",
                "look at the path's permissions and at free space (df -h)",
            )
        )
        code = Exit.UNEXPECTED
    except Exception as e:
        if os.environ.get("LLMSERVE_DEBUG"):
            raise
        message = getattr(e, "format_message", None)
        if message is not None:
            # typer's "no arguments" has shown the help already and says nothing more
            if message():
                path = getattr(getattr(e, "ctx", None), "command_path", "llmserve")
                _report(LlmserveError("usage", message(), f"see `{path} --help`", exit_code=Exit.USAGE))
            code = Exit.USAGE
        else:
            _report(
                LlmserveError(
                    "unexpected",
                    f"{type(e).__name__}: {e}",
                    "this is a defect of llmserve; LLMSERVE_DEBUG=1 shows where",
                )
            )
            code = Exit.UNEXPECTED
    sys.exit(int(code or 0))
