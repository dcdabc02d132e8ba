"""Run by a vLLM's own interpreter: asks it whether it takes command lines, without loading a model.

Cases (`name`, `argv` behind `vllm serve`, `env`) as JSON on stdin, one JSON line out for each: `name`,
`refused`, `message`, `seconds`. The parser, the checks of the `serve` command and of the API server, and the
whole engine configuration are vLLM's own; only the server behind them is left out.
"""

import contextlib
import copy
import io
import json
import os
import sys
import time


def main() -> None:
    cases = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to stdout
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli import serve
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.launchers.launcher import validate_api_server_args
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    async def nothing(*_: object) -> None:
        return None

    # the servers that `serve` would run behind its checks
    serve.run_headless = serve.run_multi_api_server = serve.run_dp_supervisor = lambda args: None
    serve.run_server = nothing
    parser = make_arg_parser(FlexibleArgumentParser())
    command = serve.ServeSubcommand()
    for case in cases:
        said, before, began = io.StringIO(), dict(os.environ), time.monotonic()
        os.environ.update(case.get("env") or {})
        refused, message = False, ""
        try:
            with contextlib.redirect_stderr(said):
                # the parser's defaults are objects, which vLLM writes into
                args = copy.deepcopy(parser.parse_args(case["argv"]))
                command.validate(args)
                command.cmd(args)
                validate_api_server_args(args)
                AsyncEngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER)
        except SystemExit as e:
            refused, message = True, f"exit {e.code}: {said.getvalue()[-400:]}"
        except Exception as e:  # whatever vLLM raises is its refusal
            refused, message = True, f"{type(e).__name__}: {e}"[:600]
        finally:
            os.environ.clear()
            os.environ.update(before)
        seconds = round(time.monotonic() - began, 2)
        answer = {"name": case["name"], "refused": refused, "message": message, "seconds": seconds}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
