"""Where the `llmserve` command begins: an interrupt during the imports is an interrupt, not a traceback."""

from __future__ import annotations

import gc
import sys

_OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Python's own 700 make a command that imports and then ends look for garbage a hundred times, a tenth of its
time; most of what is made then lives to the end."""


def main() -> None:
    """Run the command line. Never returns."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        from orchestrator.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
