"""How a vLLM server is asked to stop.

A SIGTERM that comes while the engine core starts is lost: the server goes on and becomes ready (observed on
0.32.0). One that cuts requests can leave the front-end waiting for their connections for ever, deaf to
further signals (0.33.0 vllm/entrypoints/launchers/launcher.py:253). So the work is waited for before the
first signal, the signal is repeated, and the tree is killed after the last. A server without work ends
within seconds; workers get 5 + 4 s of their own (vllm/v1/executor/multiproc_executor.py:559).
"""

from __future__ import annotations

import signal

from orchestrator.engines.base import StopRecipe, StopStep

RECIPE = StopRecipe(
    wait_idle=True,
    steps=(
        StopStep(signal.SIGTERM, 5.0),
        StopStep(signal.SIGTERM, 10.0),
        StopStep(signal.SIGTERM, 10.0),
    ),
)
