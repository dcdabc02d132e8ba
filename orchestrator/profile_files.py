"""Where profiles lie: the user's folder first, then those that come with llmserve.

Light on purpose: completion in the shell reads it.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator import folders
from orchestrator.errors import LlmserveError, not_found
from orchestrator.problems import nearest, shown

_SUFFIXES = (".yaml", ".yml")
_NO_PROFILES = ("gpus.yaml",)
"""Files in the folder of those that come with llmserve that hold other data."""


def builtin_dir() -> Path:
    """The profiles that come with llmserve: beside the package in a wheel, in the checkout otherwise."""
    here = Path(__file__).resolve().parent
    packed = here / "_profiles"
    return packed if packed.is_dir() else here.parent / "profiles"


def user_dir() -> Path:
    """The user's own profiles."""
    return folders.config_dir() / "profiles"


def is_builtin(path: Path) -> bool:
    """Whether a profile file comes with llmserve."""
    return path.resolve().parent == builtin_dir()


def found() -> dict[str, Path]:
    """Every profile that has a name: the user's own hide built-in ones of the same name."""
    out: dict[str, Path] = {}
    for folder in (builtin_dir(), user_dir()):
        try:
            files = sorted(
                p for p in folder.iterdir() if p.suffix in _SUFFIXES and not p.name.startswith(".")
            )
            if folder == builtin_dir():
                files = [p for p in files if p.name not in _NO_PROFILES]
        except OSError:
            continue
        out |= {p.stem: p for p in reversed(files)}
    return dict(sorted(out.items()))


def is_path(name_or_path: str) -> bool:
    """Whether a profile is meant by its file: it has a folder or a YAML suffix in it."""
    return "/" in name_or_path or name_or_path.endswith(_SUFFIXES)


def candidates(name_or_path: str, beside: Path | None = None) -> list[Path]:
    """The files that may be meant, best first; at least one.

    A relative path is looked up from `beside` (a folder; default: the working folder).
    Raises LlmserveError (exit 5) with the known names where a name is unknown.
    """
    if is_path(name_or_path):
        try:
            path = Path(name_or_path).expanduser()
        except RuntimeError:
            path = Path(name_or_path)
        return [path if beside is None or path.is_absolute() else beside / path]
    out = [
        folder / (name_or_path + suffix)
        for folder in (user_dir(), builtin_dir())
        for suffix in _SUFFIXES
        if _is_file(folder / (name_or_path + suffix))
        and (folder != builtin_dir() or name_or_path + suffix not in _NO_PROFILES)
    ]
    if not out:
        raise _unknown(name_or_path)
    return out


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _unknown(name: str) -> LlmserveError:
    known = list(found())
    near = nearest(name, known)
    remedy = f"did you mean `{near}`? " if near else ""
    remedy += f"Profiles: {', '.join(known)}. " if known else ""
    if _is_file(Path(name)):
        remedy += f"To use the file here, write ./{name}"
    else:
        remedy += f"Your own go into {user_dir()}"
    return not_found("no_such_profile", f"there is no profile `{shown(name)}`", remedy)
