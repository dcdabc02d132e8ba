"""The one kind of error that reaches a user, and the exit codes of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    REFUSED = 3
    """A plan was refused, a model is missing, a name or port is taken."""
    ENGINE = 4
    """The engine failed or is not healthy."""
    NOT_FOUND = 5
    """No such deployment, profile or engine."""
    DAEMON = 6
    """The daemon cannot be reached."""
    INTERRUPTED = 130


class LlmserveError(Exception):
    """Says what was asked and what is so (`message`), and what to do next (`remedy`).

    `code` is a stable snake_case word for programs. `violations` are dicts with the keys
    `code, message, remedy`, where a plan was refused.
    """

    def __init__(
        self,
        code: str,
        message: str,
        remedy: str = "",
        *,
        exit_code: Exit = Exit.UNEXPECTED,
        violations: Sequence[dict[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code
        self.violations = list(violations)

    def to_json(self) -> dict[str, Any]:
        """`{schema_version, error: {code, message, remedy}}`, with `violations` where there are any."""
        out: dict[str, Any] = {
            "schema_version": 1,
            "error": {"code": self.code, "message": self.message, "remedy": self.remedy},
        }
        if self.violations:
            out["violations"] = self.violations
        return out


def system_error(error: OSError) -> LlmserveError:
    """What the system refused: a full disk, a folder that may not be written (exit 3: it can be mended)."""
    where = f": {error.filename}" if error.filename else ""
    return LlmserveError(
        "system",
        f"{error.strerror or error}{where}",
        "look at the path's permissions and at free space (df -h)",
        exit_code=Exit.REFUSED,
    )


def usage(code: str, message: str, remedy: str = "") -> LlmserveError:
    """The command was given something it cannot read (exit 2)."""
    return LlmserveError(code, message, remedy, exit_code=Exit.USAGE)


def refused(code: str, message: str, remedy: str = "") -> LlmserveError:
    """What was asked is clear and is not done (exit 3); the refusal is its own single violation."""
    violation = {"code": code, "message": message, "remedy": remedy}
    return LlmserveError(code, message, remedy, exit_code=Exit.REFUSED, violations=[violation])


def not_found(code: str, message: str, remedy: str = "") -> LlmserveError:
    """No such deployment, profile or engine (exit 5)."""
    return LlmserveError(code, message, remedy, exit_code=Exit.NOT_FOUND)
