"""What a checkpoint is, from its headers alone: GGUF file, Hugging Face folder, or hub id. Never weights."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.errors import refused
from orchestrator.model_card.card import HybridState, ModelCard

__all__ = ["HybridState", "ModelCard", "read_card"]


def read_card(source: str, *, offline: bool = False, name: str | None = None) -> ModelCard:
    """The card of a local path, or of a hub id ORG/NAME that is no path here.

    A path is a GGUF file, the first part of a split one, a folder with a config.json (format "config",
    weights estimated, where it holds no weights), or a folder with exactly one GGUF model. `name` is what the
    model is called; by default the file's or folder's stem, or the hub id. `offline` forbids asking the hub.

    Raises LlmserveError (exit 3): `model_not_found`, `model_unreadable`, `model_ambiguous`, and what
    `hub.look_up` raises.
    """
    path = Path(source).expanduser()
    try:
        known = source != "" and os.path.lexists(path)
    except (OSError, ValueError):
        known = False
    if known:
        return _read_path(path, source, name)
    from orchestrator.model_card import hub, reading

    if not hub.HUB_ID.match(source) or source.endswith(".gguf"):
        raise reading.missing(repr(source)[1:-1][:200] or "without a name")
    if offline:
        raise refused(
            "model_not_found",
            f"{source} is not on this machine",
            f"`llmserve models pull {source}` fetches it, or give a local path",
        )
    return hub.read_hub(source, name)


def _read_path(path: Path, source: str, name: str | None) -> ModelCard:
    from orchestrator.model_card import gguf_card, huggingface, reading

    if not path.is_dir():
        if path.suffix in (".safetensors", ".json"):
            raise reading.unreadable(str(path), "is one file of a model", f"give its folder, {path.parent}")
        return gguf_card.read_gguf(path, source, name or gguf_card.stem(path.name))
    try:
        entries = sorted(p.name for p in path.iterdir())
    except OSError as e:
        raise reading.unreadable(str(path), f"cannot be listed: {e.strerror}") from None
    weights = any(n.endswith(".safetensors") for n in entries)
    models = sorted({gguf_card.split_files(n)[0] for n in entries if n.endswith(".gguf")})
    models = [m for m in models if "mmproj" not in m.lower()]
    if "config.json" in entries and (weights or not models):
        return huggingface.read_folder(path, source, name or path.absolute().name)
    if len(models) == 1:
        return gguf_card.read_gguf(path / models[0], source, name or path.absolute().name)
    if models:
        raise refused(
            "model_ambiguous",
            f"{path} holds {len(models)} GGUF models: {', '.join(models[:12])}",
            f"give one of them: {path / models[0]}",
        )
    raise reading.unreadable(str(path), "holds neither a config.json nor a GGUF file")
