"""What there is to give on llama.cpp: cells of KV, layers on devices, host memory."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from orchestrator.machine import Gpu
from orchestrator.planning.llamacpp import memory
from orchestrator.planning.llamacpp.memory import Room, Sizing
from orchestrator.planning.situation import Situation as Common

GPU_CONTEXT_BYTES = 512 * memory.MIB
"""What a CUDA process holds on a device before any buffer of ours."""

CANNOT_OFFLOAD = "the embedded engine computes on the CPU"


@dataclass(frozen=True)
class Placement:
    """Where the parts of a sizing lie. `gpu_layers` counts the output layer as one, as llama.cpp does.

    `host_bytes` is what the host must give, `gpu_bytes` each device; `fits` whether all of them can.
    """

    gpu_layers: int
    host_bytes: int
    gpu_bytes: tuple[int, ...]
    fits: bool
    room: Room


@dataclass(frozen=True)
class Situation(Common):
    """Inputs with the figures that decisions about llama.cpp need."""

    @cached_property
    def longest(self) -> int:
        """The model's context in whole steps of KV cells, or as it is where it is shorter than one."""
        cells = self.trained_context // memory.CELLS * memory.CELLS
        return cells or max(1, self.trained_context)

    @cached_property
    def trained_context(self) -> int:
        """The context that the engine will believe the model has, which it never exceeds.

        RoPE scaling does not lift it (llama-server caps a slot at the trained context all the same); an
        override of the model's own key does.
        """
        text = " ".join(self.profile.engine_args["llamacpp"])
        found = re.search(r"--override-kv \S*\.context_length=int:([0-9]{1,9})\b", text)
        return int(found[1]) if found else self.card.context_length

    @cached_property
    def needed_context(self) -> int:
        """The smallest context that holds the workload's request and that the model has."""
        return min(memory.padded(self.request_tokens), self.longest)

    # devices

    @cached_property
    def usable_cpus(self) -> int:
        """Logical CPUs that this process may use at once, by affinity and quota."""
        m = self.inputs.machine
        return max(1, min(m.logical_cpus, math.ceil(m.cpus)))

    @cached_property
    def usable_cores(self) -> int:
        """Physical cores that this process may use at once."""
        return max(1, min(self.inputs.machine.physical_cores, int(self.inputs.machine.cpus)))

    @cached_property
    def can_offload(self) -> bool:
        extras = self.inputs.installation.extras
        return bool(extras.get("gpu_offload", not extras.get("embedded", False)))

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The devices this plan may use: those named, else every one that nobody holds, at most as many as
        share layers or hold stages where somebody said how many."""
        if not self.can_offload or self.given("gpu_layers") == 0:
            return ()
        named = self.given("device_ids")
        free = [g for g in self.inputs.machine.gpus if g.uuid not in self.inputs.reservations.devices]
        if named is not None:
            return tuple(g for g in free if g.uuid in named)
        tensor, stages = self.given("tensor_parallel_size") or 1, self.given("pipeline_parallel_size")
        wanted = tensor if tensor > 1 else stages or len(free)
        return tuple(free[:wanted]) if wanted <= len(free) else tuple(free)

    @cached_property
    def gpu_budgets(self) -> tuple[int, ...]:
        """Bytes of each device that the deployment may hold: the free ones less a margin, or its share."""
        share = self.given("gpu_memory_utilization")
        return tuple(
            int(min(0.95 * g.free_bytes, share * g.memory_bytes if share is not None else g.free_bytes))
            for g in self.gpus
        )

    @cached_property
    def host_budget(self) -> int:
        """Host memory that the deployment may hold: what can be had now and nobody was promised, less a
        margin for everything else."""
        m = self.inputs.machine
        there = min(m.memory_available_bytes, m.memory_limit_bytes) - self.inputs.reservations.memory_bytes
        if m.unified_memory:
            there = min(there, m.memory_total_bytes)
        return max(0, there - memory.os_margin_bytes(m.memory_limit_bytes))

    @cached_property
    def draft_bytes(self) -> int:
        """Weights of the draft model that was named, and its KV for one context of the workload a slot."""
        draft = self.inputs.draft
        if draft is None:
            return 0
        slots = self.given("max_num_seqs") or self.profile.workload.concurrency
        kv = memory.kv_bytes_per_token(draft, "f16") * slots * self.needed_context
        return draft.weights_bytes + kv

    def place(self, sizing: Sizing, prompt_cache_bytes: int = 0, most_layers: int | None = None) -> Placement:
        """Put a sizing on the devices, layer by layer, as many layers as they hold (at most `most_layers`
        where given); the rest on the host."""
        room = memory.room(self.card, sizing, draft_bytes=self.draft_bytes)
        layers = self.card.layers + 1
        split = room.weights + room.kv + room.state
        fixed = GPU_CONTEXT_BYTES + room.compute
        each = max(1, -(-split // layers))
        capacities = [max(0, (budget - fixed) // each) for budget in self.gpu_budgets]
        asked = self.given("gpu_layers")
        wanted = min(layers, asked if asked is not None else layers) if self.gpus else 0
        on_gpu = min(wanted, sum(capacities), layers if most_layers is None else most_layers)
        gpu_bytes = []
        for left, capacity in zip(_before(on_gpu, capacities), capacities, strict=True):
            here = min(left, capacity)
            gpu_bytes.append(fixed + here * each if here else 0)
        rest = split - split * on_gpu // layers
        # the embedding table stays on the host, and so do the masks of a pass
        if on_gpu == layers:
            rest = room.weights // layers
        host = rest + room.compute + room.checkpoints + room.process + prompt_cache_bytes
        fits = host <= self.host_budget and (asked is None or on_gpu == wanted) and self._kv_fits(room)
        return Placement(on_gpu, host, tuple(gpu_bytes), fits, room)

    def _kv_fits(self, room: Room) -> bool:
        limit = self.given("kv_cache_bytes")
        return limit is None or room.kv <= limit * max(1, len(self.gpus))

    @cached_property
    def set_cache_bytes(self) -> int:
        """Host prompt cache that somebody set, 0 where the planner sizes it from what is left."""
        return self.given("kv_offload_bytes") or 0


def _before(layers: int, capacities: list[int]) -> list[int]:
    """Layers still to place when each device's turn comes."""
    out, left = [], layers
    for capacity in capacities:
        out.append(left)
        left = max(0, left - capacity)
    return out
