"""The `llmserve` command: gathers the nouns, and turns every error into one message and an exit code."""

from __future__ import annotations

import copy
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
    levers,
    logs,
    machine,
    models,
    output,
    plan,
    profiles,
    ps,
    restart,
    rm,
    status,
    stop,
)
from orchestrator.errors import Exit, LlmserveError, system_error, usage

app = typer.Typer(
    name="llmserve",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
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
    levers,
    engines,
    models,
    machine,
    daemon,
):
    _module.register(app)


def _asked() -> typer.Typer:
    """The app with the one command that was typed, as Typer builds all that it is given (15 ms); else all."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    commands = [c for c in app.registered_commands if word == (c.name or getattr(c.callback, "__name__", ""))]
    groups = [g for g in app.registered_groups if word == g.name]
    if len(commands) + len(groups) != 1:
        return app
    one = copy.copy(app)
    one.registered_commands, one.registered_groups = commands, groups
    return one


def _report(error: LlmserveError) -> None:
    if output.json_mode():
        output.emit(error.to_json())
        return
    from orchestrator.cli.refusal import print_error

    print_error(output.notes(), error)


def main() -> None:
    """Entry point. Every end is an exit code of `errors.Exit`; no traceback reaches a user."""
    _usable_streams()
    if sys.argv[1:2] == ["help"]:
        sys.argv[1:] = [*sys.argv[2:], "--help"]
    error: LlmserveError | None = None
    code: int | None = Exit.DONE
    try:
        code = _asked()(standalone_mode=False)
        sys.stdout.flush()
    except LlmserveError as e:
        error = e
    except (typer.Abort, KeyboardInterrupt):
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        output.to_nowhere()
    except Exception as e:
        if os.environ.get("LLMSERVE_DEBUG"):
            raise
        error, code = _understood(e), Exit.USAGE
    if error is not None:
        code = error.exit_code
        try:
            _report(error)
            sys.stdout.flush()
        except OSError:
            output.to_nowhere()
    sys.exit(int(code or 0))


def _understood(e: Exception) -> LlmserveError | None:
    """What a user is told of an exception; None where typer has told it."""
    if isinstance(e, OSError):
        return system_error(e)
    message = getattr(e, "format_message", None)
    if message is None:
        return LlmserveError(
            "unexpected",
            f"{type(e).__name__}: {e}",
            "this is a defect of llmserve; LLMSERVE_DEBUG=1 shows where",
        )
    # typer's "no arguments" has shown the help already and says nothing more
    path = getattr(getattr(e, "ctx", None), "command_path", "llmserve")
    return usage("usage", message(), f"see `{path} --help`") if message() else None


def _usable_streams() -> None:
    """Closed streams go nowhere; a character that the terminal's encoding lacks becomes a question mark."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
