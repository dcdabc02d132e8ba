"""Rules of a vLLM that runs on a CPU: what its platform and its V1 model runner lack."""

from __future__ import annotations

from orchestrator.engines.vllm.checks.settings import Settings, rules
from orchestrator.plan import Violation


def check(s: Settings) -> list[Violation]:
    """vLLM 0.32.0 vllm/config/model.py (sleep mode) and vllm/config/vllm.py (model runner)."""
    if s.device != "cpu" or not s.at_least("0.32"):
        return []
    flags = [f for f in rules()["not_on_cpu"] if s.on(f) is True]
    if s.count("--prefill-context-parallel-size") > 1:
        flags.append("--prefill-context-parallel-size")
    return [
        Violation("not_on_cpu", f"{flag} does not work on a CPU", f"take {flag} out of engine_args")
        for flag in flags
    ]
