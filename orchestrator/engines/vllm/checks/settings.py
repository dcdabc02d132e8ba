"""A process of a plan as vLLM will see it: its arguments read, with the model, devices and version beside."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.engines.base import Installation
from orchestrator.engines.command_line import Parsed
from orchestrator.engines.vllm.arguments import parse
from orchestrator.plan import Plan, ProcessPlan

_PORT = re.compile(r"\{port:\w+\}")
_last: tuple[tuple[Any, ...], list[Settings]] | None = None
_ENGINE_ROLES = ("router", "gate")


@dataclass(frozen=True, slots=True)
class Settings:
    """`parsed` are the arguments, `model` and `gpus` the plan's facts, `version` the vLLM's numbers."""

    parsed: Parsed
    installation: Installation
    model: Mapping[str, Any]
    machine: Mapping[str, Any]
    gpus: tuple[Mapping[str, Any], ...]
    version: tuple[int, ...]
    env: Mapping[str, str]

    @property
    def device(self) -> str:
        """ "cuda", "rocm", "cpu", … as the installation was built."""
        return str(self.installation.extras.get("device") or ("cuda" if self.gpus else "cpu"))

    @property
    def model_path(self) -> str:
        words = self.parsed.positionals
        return str(words[0] if words else self.parsed.values.get("--model") or self.model.get("path") or "")

    def given(self, flag: str) -> bool:
        return self.parsed.values.get(flag) is not None

    def number(self, flag: str) -> float | int | None:
        """The value of a flag that takes a number; None where it is not given or none."""
        value = self.parsed.values.get(flag)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def count(self, flag: str, default: int = 1) -> int:
        """A size at least 1; what is below is the bounds' affair."""
        value = self.number(flag)
        return max(1, int(value)) if value is not None else default

    def text(self, flag: str) -> str | None:
        value = self.parsed.values.get(flag)
        return str(value) if isinstance(value, str) and value else None

    def on(self, flag: str) -> bool | None:
        """A switch: None where neither it nor its negation is given."""
        value = self.parsed.values.get(flag)
        return value if isinstance(value, bool) else None

    def json(self, flag: str) -> dict[str, Any]:
        value = self.parsed.values.get(flag)
        return value if isinstance(value, dict) else {}

    @property
    def context(self) -> int | None:
        """max_model_len in tokens; the model's own where unset, None where it is fitted or unknown."""
        asked = self.number("--max-model-len")
        if asked is None:
            own = self.model.get("context_length")
            return own if isinstance(own, int) else None
        return int(asked) if asked > 0 else None

    @property
    def world(self) -> int:
        """Ranks of one copy of the model: tensor, pipeline and prefill-context sizes multiplied."""
        return (
            self.count("--tensor-parallel-size")
            * self.count("--pipeline-parallel-size")
            * self.count("--prefill-context-parallel-size")
        )

    @property
    def speculation(self) -> dict[str, Any] | None:
        """--speculative-config with the --spec-* flags in it; None where speculation is off."""
        found = {k.replace("-", "_"): v for k, v in self.json("--speculative-config").items()}
        for flag, key in SPEC_FLAGS.items():
            if self.given(flag):
                found.setdefault(key, self.parsed.values[flag])
        return found or None

    def capability(self) -> float | None:
        """The lowest compute capability among the devices, as 8.9; None where one is unknown."""
        known = [_capability(g.get("compute_capability")) for g in self.gpus]
        return min((c for c in known if c is not None), default=None) if known and None not in known else None

    def at_least(self, version: str) -> bool:
        return self.version >= numbers(version)

    def step_defaults(self) -> tuple[int, int]:
        """max_num_batched_tokens and max_num_seqs where neither is set (vllm/engine/arg_utils.py:2939)."""
        for row in rules()["step_defaults"]:
            if row.get("device") not in (None, self.device):
                continue
            if "since" in row and not self.at_least(row["since"]):
                continue
            if "at_least_gib" in row:
                sizes = [int(g.get("memory_bytes") or 0) for g in self.gpus]
                if not sizes or min(sizes) < row["at_least_gib"] << 30:
                    continue
                if any(row.get("not_named", "-") in str(g.get("name", "")).lower() for g in self.gpus):
                    continue
            ranks = self.world if row.get("per_rank") else 1
            throughput = 2 if self.text("--performance-mode") == "throughput" else 1
            return row["tokens"] * ranks * throughput, row["seqs"] * ranks * throughput
        raise AssertionError("the last row fits every device")

    def step(self) -> tuple[int, int]:
        """Tokens in a step and requests at once as vLLM will hold them, what is unset filled as it does."""
        default_tokens, default_seqs = self.step_defaults()
        tokens, seqs = self.number("--max-num-batched-tokens"), self.number("--max-num-seqs")
        filled = int(tokens) if tokens is not None else default_tokens
        requests = int(seqs) if seqs is not None else default_seqs
        if tokens is None:
            if self.on("--enable-chunked-prefill") is False and self.context:
                filled = max(self.context, filled)
            if self.context:
                filled = min(requests * self.context, filled)
        return filled, requests if seqs is not None else min(requests, filled)


SPEC_FLAGS = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}


def settings_of(plan: Plan, installation: Installation) -> list[Settings]:
    """One for each process of the plan that is a vLLM server; kept, as checks follow warnings on the same."""
    global _last
    seen = (plan.processes, plan.model, plan.machine, installation)
    if _last is None or any(a is not b for a, b in zip(_last[0], seen, strict=True)):
        _last = seen, _read(plan, installation)
    return _last[1]


def _read(plan: Plan, installation: Installation) -> list[Settings]:
    there = tuple(g for g in plan.machine.get("gpus") or () if isinstance(g, Mapping))
    # those that the plan leaves out bind nothing
    gpus = tuple(g for g in there if g.get("used", True)) or there
    return [
        Settings(
            parse(words, installation),
            installation,
            plan.model,
            plan.machine,
            gpus,
            numbers(installation.version),
            process.env,
        )
        for process in plan.processes
        if process.role not in _ENGINE_ROLES and (words := _words(process, installation)) is not None
    ]


def _words(process: ProcessPlan, installation: Installation) -> Sequence[str] | None:
    """The arguments behind the program's own words, a placeholder's number standing for it."""
    prefix = installation.argv
    argv = process.argv
    if argv[: len(prefix)] == prefix:
        argv = argv[len(prefix) :]
    elif "serve" in argv[:4]:
        argv = argv[argv.index("serve") + 1 :]
    else:
        return None
    return [_PORT.sub("1", word) for word in argv]


def numbers(version: str) -> tuple[int, ...]:
    """ "0.10.1rc1" to (0, 10, 1)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(n) for n in found[0].split(".")) if found else ()


def _capability(value: Any) -> float | None:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return float(f"{value[0]}.{value[1]}")
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


@functools.cache
def rules() -> dict[str, Any]:
    """`rules.yaml`, read once."""
    import yaml

    data: dict[str, Any] = yaml.load(
        (Path(__file__).parent / "rules.yaml").read_text(encoding="utf-8"),
        getattr(yaml, "CSafeLoader", yaml.SafeLoader),
    )
    return data
