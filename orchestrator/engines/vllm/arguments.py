"""vLLM's way of reading an argument list (vllm/utils/argparse_utils.py, 0.10 to 0.33).

Underscores stand for dashes, names may be shortened, `--flag.key value` sets one key of a JSON flag, and
`-O3` is short for --optimization-level 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.engines import command_line
from orchestrator.engines.base import Installation
from orchestrator.engines.command_line import Parsed


def parse(argv: Sequence[str], installation: Installation) -> Parsed:
    """What the installation's `vllm serve` would make of the words behind it. Raises nothing."""
    return command_line.parse(
        expanded(argv, installation),
        installation,
        underscores=True,
        abbreviations=True,
        dotted=True,
        optional=True,
    )


def expanded(argv: Sequence[str], installation: Installation) -> list[str]:
    """The words with `-O` spelled out: --optimization-level since 0.12, the compilation's level before."""
    newer = installation.flag("--optimization-level") is not None
    made: list[str] = []
    for i, word in enumerate(argv):
        if not word.startswith("-O") or word.startswith("-O."):
            made.append(word)
        elif word != "-O":
            level = word[2:].removeprefix("=")
            made += ["--optimization-level", level] if newer else [f"-O.level={level}"]
        elif newer and argv[i + 1 : i + 2] and argv[i + 1] in ("0", "1", "2", "3"):
            made.append("--optimization-level")
        else:
            made.append(word)
    return made
