"""Where llmserve keeps things: one folder each for state, runtime, configuration, models.

`LLMSERVE_HOME` moves all of them below itself.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_APP = "llmserve"


def _below_home(part: str, variable: str, fallback: str) -> Path:
    home = os.environ.get("LLMSERVE_HOME")
    if home:
        return Path(home).expanduser().absolute() / part
    base = os.environ.get(variable)
    root = Path(base) if base and os.path.isabs(base) else Path.home() / fallback
    return root / _APP


def state_dir() -> Path:
    """Deployments, daemon lock and log. One folder per deployment below `deployments/`."""
    return _below_home("state", "XDG_STATE_HOME", ".local/state")


def config_dir() -> Path:
    """`config.yaml`, `engines.yaml`, and the user's own `profiles/`."""
    return _below_home("config", "XDG_CONFIG_HOME", ".config")


def data_dir() -> Path:
    """The local model store (`models/`) and installed engines."""
    return _below_home("data", "XDG_DATA_HOME", ".local/share")


def cache_dir() -> Path:
    """What can be made again: probes of engines."""
    return _below_home("cache", "XDG_CACHE_HOME", ".cache")


def runtime_dir() -> Path:
    """Sockets: the user's runtime folder where there is one, else inside state."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if os.environ.get("LLMSERVE_HOME") or not base or not os.path.isdir(base) or not os.access(base, os.W_OK):
        return state_dir()
    return Path(base) / _APP


def write_whole(path: Path, text: str, mode: int = 0o600) -> None:
    """Write by rename: a reader sees the old text or the new one, never a part. Makes the folder (0700)."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
            os.fchmod(f.fileno(), mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
