"""vLLM's `/metrics`, read: Prometheus text with the prefix `vllm:` and labels `engine` and `model_name`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(r'^vllm:(\w+)(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\})?[ \t]+(\S+)', re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Samples:
    """Every sample by name without `vllm:`: its labels and its value, in the order of the text."""

    rows: Mapping[str, tuple[tuple[dict[str, str], float], ...]]

    def total(self, name: str) -> float | None:
        """The sum over all labels (engines, models, reasons); None where there is no such sample."""
        rows = self.rows.get(name)
        return None if rows is None else sum(value for _, value in rows)

    def labels(self, name: str) -> list[dict[str, str]]:
        """The labels of an info sample, one of each engine."""
        return [labels for labels, _ in self.rows.get(name, ())]


def read_metrics(text: str) -> Samples:
    """Prometheus text to samples; what is no number is skipped."""
    rows: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, number in _LINE.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        found = {k: _ESCAPE.sub(_unescaped, v) for k, v in _LABEL.findall(labels)}
        rows.setdefault(name, []).append((found, value))
    return Samples({name: tuple(found) for name, found in rows.items()})


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
