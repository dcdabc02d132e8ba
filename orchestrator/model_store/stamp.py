"""The stamp of a stored model: which files it has, and what they were when they were verified.

A folder without a stamp is no stored model, so nothing half-made is ever believed. A later use looks at size
and modification time alone; only where the time differs is a file hashed again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import folders

STAMP = ".llmserve-model.json"
SCHEMA_VERSION = 1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StampedFile:
    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """`origin` is "wheel:NAME==VERSION" or "hub:ORG/NAME"; `commit` the hub's. `files` by relative path."""

    name: str
    origin: str
    files: Mapping[str, StampedFile]
    commit: str | None = None
    revision: str | None = None


def make(
    folder: Path,
    name: str,
    origin: str,
    *,
    commit: str | None = None,
    revision: str | None = None,
    hashed: Callable[[int], None] | None = None,
) -> Stamp:
    """Hash every file below `folder`; `hashed` hears how many bytes so far."""
    files = {}
    done = 0
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != STAMP):
        seen = path.stat()
        files[path.relative_to(folder).as_posix()] = StampedFile(seen.st_size, seen.st_mtime_ns, sha256(path))
        done += seen.st_size
        if hashed is not None:
            hashed(done)
    return Stamp(name, origin, files, commit, revision)


def write(folder: Path, stamp: Stamp) -> None:
    folders.write_whole(
        folder / STAMP, json.dumps({"schema_version": SCHEMA_VERSION} | asdict(stamp), indent=1), mode=0o644
    )


def read(folder: Path) -> Stamp | None:
    """The stamp of a folder, None where there is none that this version understands."""
    try:
        data: dict[str, Any] = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        if data.pop("schema_version") != SCHEMA_VERSION:
            return None
        files = {str(k): StampedFile(**v) for k, v in data.pop("files").items()}
        return Stamp(files=files, **data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def problems(folder: Path, stamp: Stamp, *, fully: bool = False) -> list[str]:
    """What is wrong with a stored model, a sentence a file; hashes what has a new time, or all `fully`."""
    found = []
    moved = False
    for name, was in stamp.files.items():
        path = folder / name
        try:
            now = path.stat()
        except OSError:
            found.append(f"{name} is missing")
            continue
        if now.st_size != was.size:
            found.append(f"{name} has {now.st_size:,} bytes of {was.size:,}")
        elif fully or now.st_mtime_ns != was.mtime_ns:
            if sha256(path) != was.sha256:
                found.append(f"{name} has other content than what was fetched")
            moved = moved or now.st_mtime_ns != was.mtime_ns
    if moved and not found:
        times = {}
        for name, f in stamp.files.items():
            times[name] = StampedFile(f.size, (folder / name).stat().st_mtime_ns, f.sha256)
        if os.access(folder, os.W_OK):
            write(folder, Stamp(stamp.name, stamp.origin, times, stamp.commit, stamp.revision))
    return found


def sha256(path: Path) -> str:
    """The checksum of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
