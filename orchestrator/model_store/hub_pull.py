"""Pulling a hub's repository into the store: files chosen first, resumed where it was cut, checked last."""

from __future__ import annotations

import fnmatch
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import refused
from orchestrator.model_card import hub, safetensors
from orchestrator.model_card.hub import RemoteFile, Repository
from orchestrator.model_store import fetching, stamp
from orchestrator.model_store.fetching import Progress

_BESIDE_WEIGHTS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py", "LICENSE*", "NOTICE*")


def chosen(repo: Repository, file: str | None, include: Sequence[str]) -> list[RemoteFile]:
    """Which files a pull takes: the named GGUF with all its parts, what the patterns match, or else the
    safetensors weights with the small files beside them, or the repository's only GGUF.

    Raises LlmserveError (`model_not_found`, `model_ambiguous`).
    """
    names: list[str]
    if file is not None:
        names = hub.parts(file)
        absent = [n for n in names if n not in repo.files]
        if absent:
            have = [n for n in sorted(repo.files) if n.endswith((".gguf", ".safetensors"))][:12]
            raise refused(
                "model_not_found",
                f"{repo.id} has no file {absent[0]}",
                f"it has: {', '.join(have) or 'no weights'}",
            )
    elif include:
        names = [n for n in repo.files if any(fnmatch.fnmatch(n, p) for p in include)]
        if not names:
            raise refused(
                "model_not_found",
                f"nothing in {repo.id} matches {', '.join(include)}",
                "use a wider --include",
            )
    else:
        top = [n for n in repo.files if "/" not in n]
        sharded = safetensors.INDEX in top
        weights = [n for n in top if n.endswith(".safetensors")]
        if not sharded:
            weights = safetensors.weight_files(top, None)
        else:
            weights = [n for n in weights if not n.startswith(("consolidated", "adapter_"))]
        if "config.json" in top and weights:
            names = weights + [n for n in top if any(fnmatch.fnmatch(n, p) for p in _BESIDE_WEIGHTS)]
        else:
            names = hub.gguf_choice(repo)
    return [repo.files[n] for n in sorted(set(names)) if _stays_inside(n)]


def pull(
    repository: str,
    *,
    file: str | None = None,
    include: Sequence[str] = (),
    revision: str | None = None,
    progress: Progress | None = None,
) -> tuple[Path, bool]:
    """Pull a model into the store: its folder, and whether anything was fetched. A pull that was cut goes on
    where it stopped; a stored copy of the same commit is verified in full, and only what is damaged is
    fetched again.

    Raises LlmserveError: what `hub.look_up` raises, `disk_full`, `store_unwritable`, `model_fetch_failed`.
    """
    with fetching.alone(repository, progress):
        repo = hub.look_up(repository, revision)
        files = chosen(repo, file, include)
        work = fetching.partial(repository)
        target = fetching.root() / fetching.folder_name(repository)
        wanted = {f.name for f in files}
        have = stamp.read(target)
        if have is not None and have.commit == repo.commit and set(have.files) == wanted:
            damaged = stamp.problems(target, have, fully=True)
            if not damaged:
                return target, False
            _reopen(target, have, damaged, work)
        _begin(work, repo.commit, wanted)
        total = sum(f.size or 0 for f in files)
        fetching.require_room(max(0, total - fetching.sum_of_files(work)), repository)
        with (
            fetching.watched(lambda: fetching.sum_of_files(work), total, progress),
            hub.Remote(repo) as remote,
        ):
            for f in files:
                _download(remote, f, work)
        for scratch in (_PARTS, ".cache"):
            shutil.rmtree(work / scratch, ignore_errors=True)
        (work / _COMMIT).unlink(missing_ok=True)
        made = stamp.make(work, repository, f"hub:{repository}", commit=repo.commit, revision=revision)
        _check(files, made, work)
        stamp.write(work, made)
        return fetching.put_in_place(work, repository), True


_COMMIT = ".commit"
_PARTS = ".parts"
_CHUNK_BYTES = 1 << 18
_MAX_HTTP_BYTES = 50_000_000_000
"""The hub gives no larger file over plain HTTP (huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE)."""
_TRIES = 4


def _begin(work: Path, commit: str, wanted: set[str]) -> None:
    """A working folder for this commit: what an earlier pull of another commit left is thrown away."""
    note = work / _COMMIT
    if work.exists() and (not note.exists() or note.read_text() != commit):
        shutil.rmtree(work)
    work.mkdir(parents=True, exist_ok=True)
    note.write_text(commit)
    for path in [p for p in work.rglob("*") if p.is_file()]:
        name = path.relative_to(work).as_posix()
        if name != _COMMIT and not name.startswith((".cache/", f"{_PARTS}/")) and name not in wanted:
            path.unlink()


def _reopen(target: Path, have: stamp.Stamp, damaged: list[str], work: Path) -> None:
    """Turn a damaged stored model back into a pull that lacks the damaged files."""
    shutil.rmtree(work, ignore_errors=True)
    work.parent.mkdir(parents=True, exist_ok=True)
    os.rename(target, work)
    (work / stamp.STAMP).unlink()
    for name in have.files:
        if any(d.startswith(name + " ") for d in damaged):
            (work / name).unlink(missing_ok=True)
    (work / _COMMIT).write_text(have.commit or "")


def _download(remote: hub.Remote, f: RemoteFile, work: Path) -> None:
    """One file to its place, going on where an earlier try stopped (huggingface_hub 2 begins anew)."""
    there = work / f.name
    if there.is_file() and (f.size is None or there.stat().st_size == f.size):
        return
    there.parent.mkdir(parents=True, exist_ok=True)
    if f.size is not None and f.size > _MAX_HTTP_BYTES:
        _download_large(remote.repo, f, work)
        return
    part = work / _PARTS / f"{hashlib.sha256(f.name.encode()).hexdigest()[:16]}.part"
    part.parent.mkdir(exist_ok=True)
    import httpx

    tries = 0
    with hub.explained(remote.repo.id):
        while True:
            had = part.stat().st_size if part.exists() else 0
            try:
                _append(remote, f, part, had)
                break
            except httpx.TransportError:
                # a try that brought something counts as new
                tries = 0 if part.exists() and part.stat().st_size > had else tries + 1
                if tries > _TRIES:
                    raise
                threading.Event().wait(0.2 * 2**tries)
    os.replace(part, there)


def _append(remote: hub.Remote, f: RemoteFile, part: Path, had: int) -> None:
    if had and had == f.size:
        return
    if f.size is not None and had > f.size:
        part.unlink()
        had = 0
    if f.size == 0:
        part.touch()
        return
    with remote.stream(f.name, f"{had}-") as answer, part.open("ab") as out:
        if answer.status_code != 206:
            out.truncate(0)
            had = 0
        for piece in answer.iter_bytes(_CHUNK_BYTES):
            had += len(piece)
            if f.size is not None and had > f.size:
                raise refused(
                    "model_fetch_failed", f"{f.name} is longer than the hub says", "try again later"
                )
            out.write(piece)


def _download_large(repo: Repository, f: RemoteFile, work: Path) -> None:
    """Files that the hub gives by its own chunked storage alone."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    # its warnings about retries would be torn into our progress; what fails for good is raised
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    with hub.explained(repo.id):
        hf_hub_download(
            repo.id,
            f.name,
            revision=repo.commit,
            local_dir=work,
            endpoint=hub.endpoint(),
            token=hub.token() or False,
        )


def _check(files: Sequence[RemoteFile], made: stamp.Stamp, work: Path) -> None:
    """Every file has the size and checksum the hub gives; a wrong one is removed: a new pull mends it."""
    for f in files:
        got = made.files.get(f.name)
        wrong = got is None or (f.size is not None and got.size != f.size)
        if wrong or (got is not None and f.sha256 is not None and got.sha256 != f.sha256):
            (work / f.name).unlink(missing_ok=True)
            (work / _COMMIT).write_text(made.commit or "")
            raise refused(
                "model_fetch_failed",
                f"{f.name} of {made.name} came with another size or checksum than the hub gives",
                f"run `llmserve models pull {made.name}` again: it fetches that file alone",
            )


def _stays_inside(name: str) -> bool:
    """A hostile hub must not name a path outside the folder."""
    return not name.startswith(("/", ".")) and ".." not in name.split("/") and "\\" not in name
