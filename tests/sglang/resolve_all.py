"""Asks an installed SGLang about many command lines, in one interpreter, for a GPU that is not here.

`python resolve_all.py < cases.jsonl`: each line {"argv": [...], "gpu_mib": 81559}. Prints a line for each:
the error it would start with, or null. Run by the interpreter of that SGLang; nothing is started. What it
finds of the platform (SM version, default attention backends) is of the machine it runs on.
"""

import contextlib
import io
import json
import logging
import os
import sys


def refusal(argv, gpu_mib):
    """What SGLang says against this command line, or None."""
    import sglang.srt.arg_groups.memory_hook as memory_hook
    from sglang.srt.server_args import prepare_server_args

    memory_hook.get_device_memory_capacity = lambda device=None: gpu_mib
    said = io.StringIO()
    before = dict(os.environ)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args = prepare_server_args(argv)
            args.resolve_once()
            args.check_server_args()
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        os.environ.clear()
        os.environ.update(before)
    return None


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.disable(logging.WARNING)
    for line in sys.stdin:
        case = json.loads(line)
        out.write(json.dumps(refusal(case["argv"], case["gpu_mib"])) + "\n")
        out.flush()


main()
