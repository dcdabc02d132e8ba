"""Rules of quantised weights: the method's name, the checkpoint's own, the GPU, the type it computes in."""

from __future__ import annotations

from orchestrator.engines.checkpoint_format import method
from orchestrator.engines.vllm.checks.context import dtype
from orchestrator.engines.vllm.checks.settings import Settings, numbers, rules
from orchestrator.plan import Violation

_OTHERS = "use --set quantization=auto, a checkpoint in that format, or one made while loading (fp8)"


def check(s: Settings) -> list[Violation]:
    """ModelConfig's and VllmConfig's checks (vLLM 0.33.0 vllm/config/model.py:1420-1475, 0.32.0
    vllm/config/vllm.py, _get_quantization_config)."""
    asked, own = s.text("--quantization"), method(s.model.get("quantization"))
    kind = asked or own
    if kind is None:
        return []
    refusal = _unknown(s, kind, asked) or (_mismatch(s, asked, own) if asked else None)
    if refusal is not None:
        return [refusal]
    return [*_capability(s, kind), *_dtype(s, kind, asked is not None and own is None)]


def _unknown(s: Settings, kind: str, asked: str | None) -> Violation | None:
    """A method that the release has no more, or not yet: by its own list, where that is known."""
    table, offered = rules()["quantization"], s.installation.extras.get("quantizations") or ()
    gone = table["removed"].get(kind)
    if offered:
        absent = kind not in offered and (gone is not None or asked in table["online"])
    else:
        absent = gone is not None and s.version >= numbers(gone)
    if not absent:
        return None
    what = f"vLLM {s.installation.version} has no quantization {kind}"
    if asked is None:
        remedy = "use a checkpoint in another format, or an older vLLM"
        return Violation("quantization_gone", f"{what}, in which the weights are", remedy)
    return Violation("quantization_gone", what, _OTHERS)


def _mismatch(s: Settings, asked: str, own: str | None) -> Violation | None:
    table = rules()["quantization"]
    if "quantization" not in s.model:
        return None
    if own is not None:
        # the kernels that know a format under another name are the GPUs'
        alike = s.device != "cpu" and any(asked in row and own in row for row in table["same"])
        if asked == own or alike:
            return None
        return Violation(
            "quantization_differs",
            f"quantization is {asked} and the weights are {s.model['quantization']}",
            "use --set quantization=auto: the checkpoint says it itself",
        )
    if asked in table["online"]:
        return None
    if asked in table["described"]:
        if any(k.startswith("quantization_config_") for k in s.json("--hf-overrides")):
            return None
        return Violation(
            "quantization_undescribed",
            f"quantization is {asked}, and nothing says how: the weights are not quantised so",
            f"use a checkpoint in that format, or give --hf-overrides with {table['described'][asked]}",
        )
    offered = s.installation.extras.get("quantizations") or ()
    if asked in table["minimum"] or asked in offered:
        said = f"quantization is {asked}, and the weights are not quantised so"
    else:
        said = f"vLLM {s.installation.version} knows no quantization {asked}"
    return Violation("quantization_without_weights", said, _OTHERS)


def _capability(s: Settings, kind: str) -> list[Violation]:
    capability, need = s.capability(), rules()["quantization"]["minimum"].get(kind)
    if need is None or s.device != "cuda" or capability is None or round(capability * 10) >= need:
        return []
    return [
        Violation(
            "quantization_needs_newer_gpu",
            f"{kind} weights need compute capability {need / 10}, and a GPU here has {capability}",
            "use a checkpoint in another format, or other GPUs with --set device_ids",
        )
    ]


def _dtype(s: Settings, kind: str, is_online: bool) -> list[Violation]:
    """The type that a method computes in (get_supported_act_dtypes). vLLM lowers float32 by itself."""
    computed, asked = dtype(s), s.text("--dtype")
    if computed is None or (asked in (None, "auto") and computed == "float32"):
        return []
    rows = rules()["quantization"]["dtypes"]
    row = next((r for r in rows if kind in r["methods"] and r.get("online", is_online) == is_online), None)
    if row is None or computed in row["takes"]:
        return []
    return [
        Violation(
            "quantization_dtype",
            f"{kind} weights compute in {' or '.join(row['takes'])}, and dtype is {computed}",
            f"use --set dtype={row['takes'][0]}" + ("" if asked in (None, "auto") else ", or auto"),
        )
    ]
