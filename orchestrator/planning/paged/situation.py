"""What there is to give on an engine with a paged KV pool: devices, host memory, the model's family."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from orchestrator.machine.gpu_facts import GpuFacts
from orchestrator.machine.gpu_facts import facts as gpu_facts
from orchestrator.machine.machine import Gpu
from orchestrator.plan import Decision, Rejected
from orchestrator.planning.paged import devices
from orchestrator.planning.paged.memory import Kind
from orchestrator.planning.situation import AUTO
from orchestrator.planning.situation import Situation as Common

if TYPE_CHECKING:
    from orchestrator.model_families.families import Family, Requirements

GIB = 2**30
MIB = 2**20

_OF_MODEL = frozenset(
    {
        "kind",
        "family",
        "needs",
        "version",
        "device",
        "on_cpu",
        "trained_context",
        "needed_context",
        "request_tokens",
    }
)
_OF_DEVICES = frozenset({"usable", "gpus", "gpu", "gpu_facts", "capability", "usable_cores", "host_budget"})
"""What levers do not change, the one of them that names devices aside."""

LENGTH_STEP = 256
"""Contexts that the planner chooses are multiples of this."""


@dataclass(frozen=True)
class Situation(Common):
    """Inputs with the figures that decisions about vLLM and SGLang need.

    `known` keeps what follows from model, machine and engine alone, for all drafts of one plan.
    """

    known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def changed(self, change: Mapping[str, Any]) -> Situation:
        """With some levers set otherwise; "auto" leaves one to the planner again."""
        other = Situation(self.inputs.with_levers(change), self.known)
        kept = _OF_MODEL if "device_ids" in change else _OF_MODEL | _OF_DEVICES
        vars(other).update({name: value for name, value in vars(self).items() if name in kept})
        return other

    @cached_property
    def kind(self) -> Kind:
        """ "vllm" or "sglang"."""
        return "sglang" if self.inputs.installation.kind == "sglang" else "vllm"

    @property
    def version_text(self) -> str:
        return self.inputs.installation.version

    @cached_property
    def version(self) -> tuple[int, ...]:
        """The engine's version as numbers: (0, 32, 0)."""
        return numbers(self.inputs.installation.version)

    @cached_property
    def device(self) -> str:
        """What the installation computes on: "cuda", "rocm" or "cpu"."""
        return str(self.inputs.installation.extras.get("device", "cuda"))

    @cached_property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @cached_property
    def usable(self) -> devices.Usable:
        """GPUs that this plan may use, best connected first, and those that it may not, each with why."""
        named = self.profile.levers.get("device_ids")
        named = None if named == AUTO else named
        return devices.usable(self.inputs.machine, self.inputs.reservations, named=named)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        return () if self.on_cpu else self.usable.gpus

    @cached_property
    def gpu(self) -> Gpu | None:
        """The kind of GPU that the plan is for: the first usable one."""
        return self.gpus[0] if self.gpus else None

    @cached_property
    def gpu_facts(self) -> GpuFacts | None:
        return gpu_facts(self.gpu) if self.gpu is not None else None

    @cached_property
    def capability(self) -> float | None:
        """Compute capability of NVIDIA GPUs (8.9), None where there is none or it is not known."""
        text = self.gpu.compute_capability if self.gpu is not None else None
        if text is None and self.gpu_facts is not None:
            text = self.gpu_facts.compute_capability
        return float(text) if text is not None else None

    @cached_property
    def family(self) -> Family | None:
        from orchestrator.model_families.families import family

        return family(self.card)

    @cached_property
    def needs(self) -> Requirements:
        """What the model's family needs on this engine and these devices."""
        from orchestrator.model_families.families import Requirements, gpu_generation

        if self.family is None:
            return Requirements()
        generation = gpu_generation(self.gpu)
        told = self.family.requirements(self.kind, self.version_text, generation, tools=self.goal == "agent")
        return self._listed(told)

    def _listed(self, told: Requirements) -> Requirements:
        """Without the flags, values of flags, and variables that this installation does not have, and without
        KV that these devices do not read: they were published for others."""
        from orchestrator.model_families import arguments, variables
        from orchestrator.planning.paged.fp8_kv import why_unread

        this = f"{self.kind} {self.version_text}"
        has = self.inputs.installation.extras
        unsure = has.get("variables_unsure", ())
        env, left = variables.known(told.env, self.version_text, has.get("variables"), unsure)
        unknown = [name for name, flag in _CHOICES.items() if not self._offers(flag, told.levers.get(name))]
        left |= {f"{_CHOICES[n]} {told.levers[n]}": f"{this} does not take this value" for n in unknown}
        unread = why_unread(self, str(told.levers.get("kv_cache_dtype")))
        if unread is not None and "kv_cache_dtype" not in unknown:
            unknown.append("kv_cache_dtype")
            left[f"{_CHOICES['kv_cache_dtype']} {told.levers['kv_cache_dtype']}"] = unread
        levers = {name: value for name, value in told.levers.items() if name not in unknown}
        absent = [f for f in told.flags if f.startswith("--") and f not in self.has_flag]
        left |= dict.fromkeys(absent, f"{this} has no such flag")
        kept = arguments.without(arguments.Arguments(flags=told.flags), absent)
        return replace(told, levers=levers, flags=kept.flags, env=env, left_out={**told.left_out, **left})

    def _offers(self, flag: str, value: Any) -> bool:
        """Whether the installation takes a value; True where nothing is asked, or it lists no choices."""
        known = self.has_flag.get(flag)
        return value is None or known is None or not known.choices or str(value) in known.choices

    @cached_property
    def _levers(self) -> dict[str, Any]:
        """What is not left to the planner: a family's needs go before a profile's default, what a person set
        goes before both."""
        out = {name: value for name, value in self.profile.levers.items() if value != AUTO}
        return out | {n: v for n, v in self.needs.levers.items() if self._is_needed(n)}

    def _is_needed(self, lever: str) -> bool:
        return lever in self.needs.levers and not self.inputs.resolved.user_set(lever)

    def given(self, lever: str) -> Any:
        """The value that somebody wrote for a lever, or that the model's family needs; None where the planner
        decides."""
        return self._levers.get(lever)

    def is_free(self, lever: str) -> bool:
        return self._levers.get(lever) is None

    @cached_property
    def of_levers(self) -> dict[str, Any]:
        """What is worked out from these levers and holds for all layouts; kept by those that ask."""
        return {}

    def as_given(self, lever: str, *, lossless: bool = True, rejected: tuple[Rejected, ...] = ()) -> Decision:
        """The decision of a lever that somebody set, or that the family needs: kept exactly."""
        if not self._is_needed(lever):
            return super().as_given(lever, lossless=lossless, rejected=rejected)
        why = self.needs.why.get(lever, "published with the model")
        return Decision(
            self.given(lever),
            f"the model's published launch sets it ({why})",
            "family_requirement",
            lossless,
            rejected=rejected,
        )

    @cached_property
    def trained_context(self) -> int:
        """The context that the model has: its own limit or a published lower one, unless engine_args override
        its configuration."""
        text = " ".join(self.profile.engine_args[self.kind])
        found = re.search(r'"max_position_embeddings"\s*:\s*([0-9]{1,9})\b', text)
        if found:
            return int(found[1])
        return min(self.card.context_length, self.needs.max_model_len or self.card.context_length)

    @cached_property
    def needed_context(self) -> int:
        """The smallest context that holds the workload's request and that the model has."""
        return min(self.request_tokens, self.trained_context)

    @cached_property
    def usable_cores(self) -> int:
        m = self.inputs.machine
        return max(1, min(m.physical_cores, int(m.cpus)))

    @cached_property
    def host_budget(self) -> int:
        """Host memory that the deployment may hold: what can be had now and nobody was promised, less a
        margin for everything else (5 %, at least 512 MiB, at most 8 GiB)."""
        m = self.inputs.machine
        there = min(m.memory_available_bytes, m.memory_limit_bytes) - self.inputs.reservations.memory_bytes
        return max(0, there - min(8 * GIB, max(512 * MIB, m.memory_limit_bytes // 20)))

    def lists(self, *flags: str) -> bool:
        """Whether the installation lists any of these flags."""
        return any(f in self.has_flag for f in flags)


_CHOICES = {"block_size": "--block-size", "kv_cache_dtype": "--kv-cache-dtype"}
"""Levers of families whose flag has had other choices in other versions."""


def numbers(version: str) -> tuple[int, ...]:
    """`0.32.0+cpu` as (0, 32, 0); an unknown version counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(n or 0) for n in found.groups()) if found else (math.inf,)  # type: ignore[return-value]


def stepped(tokens: int, step: int = LENGTH_STEP) -> int:
    """Tokens rounded down to whole steps, as they are where they are fewer than one."""
    return tokens // step * step or tokens
