"""Writes and takes out single entries of `engines.yaml`; the user's other lines stay, comments too."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import folders, settings
from orchestrator.errors import LlmserveError, refused

if TYPE_CHECKING:
    import yaml

Entries = dict[str, dict[str, Any]]


def add(name: str, kind: str, path: Path, note: str = "") -> None:
    """Write one more entry, with `note` as its comment; an equal one is left. Makes the file if need be.

    Raises LlmserveError: exit 2 where the file cannot be read, exit 3 where another entry has that name or
    the file is not written as lines of `name: …`.
    """
    # JSON's strings and mappings are YAML's
    line = f"{name}: {{kind: {kind}, path: {json.dumps(str(path), ensure_ascii=False)}}}"
    wanted = {"kind": kind, "path": str(path), "env": {}}
    with _open() as (text, entries):
        if name in entries:
            if entries[name] == wanted:
                return
            message = f"{settings.engines_file()} has another engine named {name}"
            raise refused("engine_exists", message, "choose another --name, or remove that entry")
        end = "\r\n" if "\r\n" in text else "\n"
        body = text if not text or text.endswith(("\n", "\r")) else text + end
        entry = line + (f"  # {note}" if note else "") + end
        _write(body + entry, entries | {name: wanted}, f"add this line to it: {line}")


def take_out(name: str) -> None:
    """Remove an entry; nothing is done where there is none.

    Raises LlmserveError: exit 2 where the file cannot be read, exit 3 where it is not written as lines of
    `name: …`.
    """
    with _open() as (text, entries):
        if name not in entries:
            return
        rest = {n: e for n, e in entries.items() if n != name}
        _write(without_key(text, name), rest, f"delete the entry {name} from it")


def without_key(text: str, key: str) -> str:
    """YAML text without the lines of a top-level key and its value; comments above and below them stay."""
    import yaml

    node = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = text.splitlines(keepends=True)
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if name.value == key:
            last = _last_line(value)
            # a block of text counts the empty lines below it as its own
            while last > name.start_mark.line and not lines[last].strip():
                last -= 1
            del lines[name.start_mark.line : last + 1]
            break
    return "".join(lines)


def _last_line(node: yaml.Node) -> int:
    """The last line of a value, from 0. A block's own end mark lies behind the comments that follow it."""
    import yaml

    end = node.end_mark
    if isinstance(node, yaml.ScalarNode):
        return end.line - (node.style in ("|", ">") and end.column == 0)
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(end.line)
    last = node.value[-1]
    return _last_line(last[1] if isinstance(last, tuple) else last)


@contextlib.contextmanager
def _open() -> Iterator[tuple[str, Entries]]:
    """The file's text and entries, while no other process of llmserve changes it."""
    folder = folders.config_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = settings.engines()
        text = ""
        # newline="": a file with CR LF keeps them
        with (
            contextlib.suppress(FileNotFoundError),
            settings.engines_file().open(encoding="utf-8", newline="") as f,
        ):
            text = f.read()
        yield text, entries
    finally:
        os.close(lock)


def _write(text: str, wanted: Mapping[str, dict[str, Any]], remedy: str) -> None:
    """Put `text` in the file's place, by rename, if it reads as `wanted` and nothing else."""
    # a link to a file that is kept elsewhere stays a link
    target = settings.engines_file().resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    fd, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    new = Path(made)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", newline="") as f:
            f.write(text)
            f.flush()
            os.fsync(fd)
            os.fchmod(fd, mode)
        if not _reads_as(new, wanted):
            message = f"{target} is not written as lines of `name: …`, so it is not changed here"
            raise refused("engines_form", message, remedy)
        os.replace(new, target)
    finally:
        new.unlink(missing_ok=True)


def _reads_as(file: Path, wanted: Mapping[str, dict[str, Any]]) -> bool:
    try:
        return list(settings.engines(file).items()) == list(wanted.items())
    except LlmserveError:
        return False
