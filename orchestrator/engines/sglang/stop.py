"""How SGLang is asked to stop, from what sglang 0.5.23 does.

SIGTERM drains without a limit and goes on taking new requests meanwhile (srt/managers/tokenizer_manager.py,
sigterm_watchdog), so it is not used. The first SIGINT closes the port at once and lets what runs come to its
end; the second ends within a second, and clients get an error. During the load SIGINT unwinds the whole tree
in two seconds, where SIGTERM ends the leader alone and leaves its children.
"""

from __future__ import annotations

import signal

from orchestrator.engines.base import StopRecipe, StopStep

RECIPE = StopRecipe(
    wait_idle=True,
    steps=(StopStep(signal.SIGINT, 5.0), StopStep(signal.SIGINT, 3.0)),
)
