"""Whether the release has code for the model's architecture."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.engines.vllm.checks.settings import Settings, rules
from orchestrator.plan import Violation


def check(s: Settings) -> list[Violation]:
    """An installation that was asked says what it and its Transformers have (vLLM 0.32.0
    vllm/model_executor/models/registry.py, inspect_model_cls)."""
    fallback = s.installation.extras.get("transformers_architectures") or ()
    missing = _missing(s)
    if not missing or not fallback or any(name in fallback for name in missing):
        return []
    return [
        Violation(
            "architecture_unknown",
            f"vLLM {s.installation.version} has no code for {', '.join(missing)}, and neither has its "
            "Transformers",
            "use a newer vLLM, another --engine, or another model",
        )
    ]


def warnings(s: Settings) -> Iterator[str]:
    """What a version that is not installed here lacks; its Transformers are not known."""
    missing = _missing(s)
    if missing and "transformers_architectures" not in s.installation.extras:
        yield (
            f"vLLM {s.installation.version} has no code of its own for {', '.join(missing)}: it runs by "
            "Transformers, or not at all"
        )


def _missing(s: Settings) -> tuple[str, ...]:
    """The model's architectures where the release has none of them; () where it has, or it is not known."""
    own = s.installation.extras.get("architectures") or ()
    asked = s.json("--hf-overrides").get("architectures") or s.model.get("architectures") or ()
    named = tuple(str(a) for a in asked) if isinstance(asked, (list, tuple)) else ()
    if not own or not named or s.model.get("needs_remote_code") or s.text("--model-impl") == "terratorch":
        return ()
    suffixes = rules()["architecture_suffixes"]

    def stems(name: str) -> set[str]:
        return {name.removesuffix(end) for end in suffixes if name.endswith(end)}

    there = set(own)
    known = any(
        n in there or any(stem + end in there for stem in stems(n) for end in suffixes) for n in named
    )
    return () if known else named
