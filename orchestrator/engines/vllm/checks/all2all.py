"""Rules of how experts on several ranks exchange tokens, and of steps that are cut in two around it."""

from __future__ import annotations

from orchestrator.engines.vllm.checks.context import dtype
from orchestrator.engines.vllm.checks.settings import Settings, rules
from orchestrator.plan import Violation

_FLAG = "--all2all-backend"


def check(s: Settings) -> list[Violation]:
    """VllmConfig's and ParallelConfig's checks (vLLM 0.33.0 vllm/config/vllm.py:2106-2204,
    vllm/config/parallel.py:1180)."""
    return [*_microbatches(s), *_moonep(s)]


def backend(s: Settings) -> str:
    """The all-to-all backend: the flag's, the variable's of releases before it, else vLLM's own."""
    return s.text(_FLAG) or s.env.get("VLLM_ALL2ALL_BACKEND") or "allgather_reducescatter"


def _microbatches(s: Settings) -> list[Violation]:
    """A step cut in two (DBO). A CPU turns --enable-dbo off itself (vllm/platforms/cpu.py:365)."""
    cut = s.on("--enable-dbo") is True
    parts = 2 if cut else s.count("--ubatch-size")
    if parts < 2 or (cut and s.device == "cpu"):
        return []
    flag, found = "--enable-dbo" if cut else "--ubatch-size", []
    known = [name for name, since in rules()["microbatches"].items() if s.at_least(since)]
    if backend(s) not in known:
        found.append(
            Violation(
                "microbatches_backend",
                f"{flag} cuts steps around an all-to-all of {', '.join(known)}, and it is {backend(s)}",
                f"add {_FLAG} deepep_low_latency to engine_args (its kernels must be installed), or take "
                f"{flag} out",
            )
        )
    for name in ("--dbo-decode-token-threshold", "--dbo-prefill-token-threshold"):
        least = s.number(name)
        if least is not None and least < parts and s.at_least("0.32"):
            found.append(
                Violation(
                    "microbatches_threshold",
                    f"{name} {int(least)} is less than the {parts} parts of a step",
                    f"use {name} {parts} or more, or take it out",
                )
            )
    return found


def _moonep(s: Settings) -> list[Violation]:
    if backend(s) != "moonep":
        return []
    kind, quantized = dtype(s), s.text("--quantization") or s.model.get("quantization")
    if quantized:
        said = f"takes weights that are not quantised, and these are {quantized}"
    elif kind not in (None, "bfloat16"):
        said = f"takes bfloat16 alone, and the model's type is {kind}"
    elif s.on("--enable-eplb") is True:
        said = "does not go with --enable-eplb"
    else:
        return []
    return [Violation("all2all_moonep", f"{_FLAG} moonep {said}", f"take {_FLAG} out of engine_args")]
