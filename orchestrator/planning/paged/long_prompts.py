"""From what length a prompt leaves part of a step to others, on vLLM.

vLLM cuts what a request computes in one step to that many tokens while another one runs or waits (0.32.0
v1/core/sched/scheduler.py:640, before it also where none does). SGLang has no such figure.
"""

from __future__ import annotations

from orchestrator.planning.paged.situation import Situation

LEAST = 256
"""Smaller thresholds cut every prompt into many steps."""


def threshold(s: Situation, step: int, max_model_len: int) -> int:
    """Tokens of one prompt in a step of `step` tokens while others run; 0 where nothing is cut.

    Half a step, or the workload's own prompt where that is longer: ordinary prompts are never cut.
    """
    given = s.given("long_prefill_token_threshold")
    if given is not None:
        return int(given) if s.kind == "vllm" else 0
    usual, half = new_tokens(s), step // 2
    if not may_cut(s, step) or s.version < (0, 32) or usual >= step:
        return 0
    return min(max(half, usual), max_model_len)


def may_cut(s: Situation, step: int) -> bool:
    """Whether somebody waits for tokens while a long prompt is computed."""
    return s.kind == "vllm" and s.goal in ("latency", "agent") and step // 2 >= LEAST


def new_tokens(s: Situation) -> int:
    """Tokens of the workload's usual prompt that are computed: of a conversation with a kept beginning only
    what a turn adds."""
    w = s.profile.workload
    if w.turns > 1 and s.given("prefix_caching") is not False:
        return max(1, (w.input_tokens - w.shared_prefix_tokens) // w.turns)
    return w.input_tokens
