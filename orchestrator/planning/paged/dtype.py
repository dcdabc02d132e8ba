"""In which type weights are loaded and activations computed."""

from __future__ import annotations

from orchestrator.plan import Decision, Rejected
from orchestrator.planning.paged.memory import rules
from orchestrator.planning.paged.situation import Situation

BF16_CAPABILITY = 8.0
"""First NVIDIA generation with bfloat16 (vLLM 0.33 platforms/cuda.py:651 refuses it below)."""

_SAME = {"half": "float16", "float": "float32"}


def decide(s: Situation) -> Decision:
    """The checkpoint's own type; where the card has no bfloat16 half precision, or single precision for
    models that are unstable in half."""
    own = s.card.dtype or "bfloat16"
    if not s.is_free("dtype"):
        return s.as_given("dtype", lossless=_keeps(own, s.given("dtype")))
    capability = s.capability
    if capability is None or capability >= BF16_CAPABILITY or own not in ("bfloat16", "float32"):
        reason = f"the checkpoint's own, {own}"
        if own == "float32" and s.card.quantization is None:
            reason = "the checkpoint is float32, which engines load in 16 bits unless told otherwise"
        return Decision("auto", reason, "checkpoint_dtype")
    why = f"compute capability {capability:g} has no bfloat16, and the engine refuses it"
    if s.card.model_type in rules()["no_float16"] and s.card.quantization is None:
        half = Rejected("half", f"models of type {s.card.model_type} are unstable in it")
        taken = f"{why}; twice the memory, and every answer kept"
        return Decision("float32", taken, "no_bfloat16_nor_half", rejected=(half, Rejected(own, why)))
    return Decision("half", why, "no_bfloat16", lossless=False, rejected=(Rejected(own, why),))


def taken(s: Situation) -> str:
    """The type as a value of --dtype, "auto" for the checkpoint's."""
    key = ("dtype", s.given("dtype"), s.capability)
    if key not in s.known:
        s.known[key] = str(decide(s).value)
    found: str = s.known[key]
    return found


def _keeps(own: str, given: object) -> bool:
    """Whether a type holds every number of the checkpoint's."""
    asked = _SAME.get(str(given), str(given))
    return asked in ("auto", own, "float32")
