"""The user's own settings: `config.yaml` and `engines.yaml` in the configuration folder.

Both may be absent. They are checked as profiles are: strictly, with file, line and the nearest right key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator import folders, strict_yaml
from orchestrator.errors import LlmserveError
from orchestrator.problems import Problem, Problems, error, from_validation, shown

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"


class Config(BaseModel):
    """`config.yaml`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    default_model: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Model to serve where neither --model nor the profile names one."""


class _Engine(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    kind: Literal["llamacpp", "vllm", "sglang"]
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    env: dict[str, str] = {}

    @field_validator("path")
    @classmethod
    def _is_absolute(cls, path: str) -> str:
        try:
            full = Path(path).expanduser()
        except RuntimeError:
            full = Path(path)
        if not full.is_absolute():
            problem = f"{shown(path)} is not an absolute path"
            raise Problems([Problem((), "bad_value", problem, "write it from / or ~/ on")])
        return str(full)


def config_file() -> Path:
    """Where `config.yaml` lies, whether it exists or not."""
    return folders.config_dir() / "config.yaml"


def engines_file() -> Path:
    """Where `engines.yaml` lies, whether it exists or not."""
    return folders.config_dir() / "engines.yaml"


def config() -> Config:
    """`config.yaml`, or the defaults where there is none.

    Raises LlmserveError (exit 2, code "bad_config") with every problem as a violation.
    """
    document = _read(config_file(), "bad_config")
    if document is None:
        return Config()
    try:
        return Config.model_validate(document.data)
    except ValidationError as e:
        found = [(document.place(p.loc), p) for p in from_validation(e, Config)]
        raise error("bad_config", document.path, found) from None


ENGINE_NAME_RULE = "use letters, digits, . _ - and not the word auto"


def is_engine_name(name: str) -> bool:
    """Whether an entry of `engines.yaml` can have this name."""
    return re.fullmatch(_NAME, name) is not None and name != "auto"


def engines(file: Path | None = None) -> dict[str, dict[str, Any]]:
    """`engines.yaml`, or another file: `{name: {kind, path, env}}` in its order; empty where there is none.

    `path` is absolute; whether a program is there is for the engine's probe to say.
    Raises LlmserveError (exit 2, code "bad_engines") with every problem as a violation.
    """
    document = _read(file or engines_file(), "bad_engines")
    if document is None:
        return {}
    entries, problems = _entries(document)
    if problems:
        raise _bad_engines(document, [p for some in problems.values() for p in some])
    return entries


def sound_engines() -> tuple[dict[str, dict[str, Any]], dict[str, LlmserveError]]:
    """The entries of `engines.yaml` that can be read, and the error of each other one by its name; the whole
    file's error has the name ""."""
    try:
        document = _read(engines_file(), "bad_engines")
    except LlmserveError as e:
        return {}, {"": e}
    if document is None:
        return {}, {}
    entries, problems = _entries(document)
    return entries, {name: _bad_engines(document, some) for name, some in problems.items()}


def _entries(document: strict_yaml.Document) -> tuple[dict[str, dict[str, Any]], dict[str, list[Problem]]]:
    """Sound entries, and the problems of the others, by name."""
    entries: dict[str, dict[str, Any]] = {}
    problems: dict[str, list[Problem]] = {}
    for name, raw in document.data.items():
        wrong: list[Problem] = []
        if not is_engine_name(name):
            message = f"`{shown(name)}` cannot be an engine's name"
            wrong.append(Problem((name,), "bad_key", message, ENGINE_NAME_RULE))
        if not isinstance(raw, dict):
            message = f"{shown(raw)} is not a mapping of keys to values"
            remedy = f"write {shown(name)}: {{kind: llamacpp|vllm|sglang, path: /…}}"
            wrong.append(Problem((name,), "bad_value", message, remedy))
        else:
            try:
                entries[name] = _Engine.model_validate(raw).model_dump()
            except ValidationError as e:
                wrong += from_validation(e, _Engine, (name,))
        if wrong:
            entries.pop(name, None)
            problems[name] = wrong
    return entries, problems


def _bad_engines(document: strict_yaml.Document, problems: list[Problem]) -> LlmserveError:
    return error("bad_engines", document.path, [(document.place(p.loc), p) for p in problems])


def _read(path: Path, code: str) -> strict_yaml.Document | None:
    """None where the file is absent or holds nothing but comments."""
    try:
        return strict_yaml.read(path, code)
    except LlmserveError as e:
        if e.code == "no_such_file" or [v["code"] for v in e.violations] == ["empty"]:
            return None
        raise
