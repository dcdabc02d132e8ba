"""How SGLang is asked to stop.

From sglang 0.5.23, as observed: SIGTERM when ready drains without a limit and goes on taking new requests
(srt/managers/tokenizer_manager.py, sigterm_watchdog), so the work is waited for before the first signal and
the drain that follows has a bound. SIGTERM during the load ends the leader alone: the children die with the
tree. SIGINT ends a ready server in seconds, whatever runs.
"""

from __future__ import annotations

import signal

from orchestrator.engines.base import StopRecipe, StopStep

# idle, SIGTERM takes up to 5 s to be looked at and 3 s more to end
RECIPE = StopRecipe(
    wait_idle=True,
    steps=(StopStep(signal.SIGTERM, 12.0), StopStep(signal.SIGINT, 6.0)),
)
