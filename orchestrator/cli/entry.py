"""Where the `llmserve` command begins: an interrupt during the imports is an interrupt, not a traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Never returns."""
    try:
        from orchestrator.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
