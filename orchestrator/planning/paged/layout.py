"""How one deployment is spread over devices."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.machine.machine import Gpu, LinkKind


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of every kind of parallelism, and the devices in rank order: data outermost, then pipeline, then
    attention data, then tensor.

    `tensor` devices share each attention layer; `attention_data` ranks hold attention whole and share the
    experts; `data` counts whole copies. `link` is the slowest link inside one tensor group, None where
    `tensor` is 1 or where it crosses nodes. Over several `nodes` the devices are those of the first, which
    the others are like. `devices` may be empty where a layout is only counted with.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    attention_data: int = 1
    expert: bool = False
    devices: tuple[Gpu, ...] = ()
    nodes: int = 1
    link: LinkKind | None = None

    @property
    def world(self) -> int:
        """Devices of the whole deployment, over all nodes."""
        return self.tensor * self.pipeline * self.data * self.attention_data

    @property
    def ranks_sharing_experts(self) -> int:
        """Devices over which one layer's experts are spread."""
        return self.tensor * self.attention_data if self.expert else self.tensor
