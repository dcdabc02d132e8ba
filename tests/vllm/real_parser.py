"""Run by a vLLM's own interpreter: what its `vllm serve MODEL ...` parser says to argument lists.

Lists as JSON lines on stdin; one JSON line out for each: `argv`, `ok`, and what it `set` otherwise than by
default or the `error`. parser-0.32.0.jsonl was made with it. No configuration is built, nothing is loaded.
"""

import contextlib
import dataclasses
import enum
import importlib
import io
import json
import os
import sys
from typing import Any


def plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return "<dataclass>"
    try:
        json.dumps(value)
    except TypeError:
        return repr(value)
    return value


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to stdout
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser(prog="vllm")
    commands = parser.add_subparsers(required=False, dest="subparser")
    for command in serve.cmd_init():
        command.subparser_init(commands)
    defaults = vars(parser.parse_args(["serve", "/m"]))
    for line in sys.stdin:
        argv, said = json.loads(line), io.StringIO()
        told: dict[str, Any] = {"argv": argv, "ok": True}
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                given = vars(parser.parse_args(["serve", "/m", *argv]))
            told["set"] = {k: plain(given[k]) for k, d in defaults.items() if plain(given[k]) != plain(d)}
        except SystemExit:
            told |= {"ok": False, "error": said.getvalue().strip().splitlines()[-1]}
        except Exception as e:
            told |= {"ok": False, "error": f"{type(e).__name__}: {e}"}
        out.write(json.dumps(told) + "\n")
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
