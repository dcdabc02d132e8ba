"""How llama-server is asked to stop.

The first SIGTERM cuts what runs and, in llama-server, hangs while a client waits; the second ends at once
(https://github.com/ggml-org/llama.cpp/pull/18292). So the work is waited for before the first.
"""

from __future__ import annotations

import signal

from orchestrator.engines.base import StopRecipe, StopStep

RECIPE = StopRecipe(
    wait_idle=True,
    steps=(StopStep(signal.SIGTERM, 2.0), StopStep(signal.SIGTERM, 2.0)),
)
