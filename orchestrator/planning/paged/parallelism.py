"""Which layouts an engine can start, and which of them are worth a look.

`illegal` says everything at once that vLLM or SGLang would refuse about a layout, most of it only after the
model was being loaded. `candidates` lists legal layouts, the simple ones first: one device, copies, tensor
groups inside islands, pipelines, nodes. Whether they fit is the memory's question, which is best the goal's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.machine.machine import Gpu, Machine
from orchestrator.model_card.card import ModelCard
from orchestrator.planning.paged.devices import Topology, Usable
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.memory import Kind
from orchestrator.planning.paged.tensor_split import Uneven, uneven
from orchestrator.planning.paged.weights import weights_per_gpu
from orchestrator.planning.words import count

MOST = 48
"""Layouts that are looked at; a machine of eight cards has about twenty."""

LEVERS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "attention_data_parallel_size",
)

_MOST_STAGES = 16

_MOST_WEIGHTS = 0.8
"""Of a device's free memory: with more weights than that a layout is not worth the advice."""

_UNBALANCED = 0.9
"""SGLang refuses tensor ranks where one has less free than this share of another's (0.5.23
srt/distributed/bootstrap.py:442 _check_tp_memory_balance)."""

_NO_PEER = "pcie-host", "cross-socket", "unknown"

_EVEN_EXPERTS = frozenset({"GptOssForCausalLM"})
"""Models whose experts vLLM loads in equal parts, while the layer that takes them holds the remainder too
(0.32.0 model_executor/models/gpt_oss.py:1358, layers/fused_moe/expert_map_manager.py:66; since its first
release with them). It spreads every other model's with a remainder."""


@dataclass(frozen=True, slots=True)
class Illegal:
    """What an engine would refuse: the lever, a code, what is so; the levers in `change` mend it, an empty
    one says that none does."""

    lever: str
    code: str
    message: str
    change: Mapping[str, Any] = field(default_factory=dict)


def illegal(
    card: ModelCard, layout: Layout, kind: str, version: str | tuple[int, ...], machine: Machine
) -> list[Illegal]:
    """Everything about a layout that the engine would refuse, empty where it is legal.

    `kind` is "vllm" or "sglang".
    """
    found = [*_of_model(card, layout, kind, version), *_devices(card, layout, machine, kind, version)]
    return _of_one_size(found)


def _of_one_size(found: list[Illegal]) -> list[Illegal]:
    """Of the tensor sizes that each refusal would take, the smallest in all of them: it mends them all."""
    key = "tensor_parallel_size"
    least = min((x.change[key] for x in found if key in x.change), default=None)
    return [replace(x, change={**x.change, key: least}) if key in x.change else x for x in found]


def _of_model(card: ModelCard, layout: Layout, kind: str, version: str | tuple[int, ...]) -> list[Illegal]:
    """What the model forbids, whatever the devices."""
    found = [_from_split(card, layout, u, kind, version) for u in uneven(card, layout, kind, version)]
    return [*found, *_sizes(card, layout, kind), *_experts(card, layout, kind)]


def legal_tensor_sizes(card: ModelCard, most: int, kind: str, version: str | tuple[int, ...]) -> list[int]:
    """Tensor parallel sizes up to `most` that divide the model, with or without expert parallelism."""
    return [
        size
        for size in range(1, most + 1)
        if not uneven(card, Layout(tensor=size), kind, version)
        or (card.experts and not uneven(card, Layout(tensor=size, expert=True), kind, version))
    ]


def candidates(
    card: ModelCard,
    machine: Machine,
    usable: Usable | Sequence[Gpu],
    *,
    kind: str,
    version: str | tuple[int, ...],
    given: Mapping[str, Any] | None = None,
) -> list[Layout]:
    """Legal layouts that keep to the levers in `given`, at most 48.

    Those whose tensor groups cross nothing slow come first, then fewer nodes, fewer stages, fewer devices.
    Where the levers leave no legal one, what they say is returned as it is, for `illegal` to explain. Without
    GPUs there is one layout, without devices.
    """
    gpus = usable.gpus if isinstance(usable, Usable) else tuple(usable)
    fixed = {k: v for k, v in (given or {}).items() if v is not None}
    if not gpus:
        return [_sizes_asked(fixed)]
    topology = Topology(machine, gpus)
    found: dict[tuple[Any, ...], Layout] = {}
    whole: dict[tuple[int, bool], bool] = {}
    for x in _shapes(card, machine, topology, kind, version, fixed):
        key = (x.tensor, x.pipeline, x.data, x.attention_data, x.expert, x.nodes)
        if key in found:
            continue
        split = x.tensor, x.expert
        if split not in whole:
            whole[split] = not uneven(card, x, kind, version)
        # cheap ones first: most shapes that fall do so here
        if not whole[split] or _sizes(card, x, kind) or _experts(card, x, kind):
            continue
        layout = _placed(topology, x)
        if layout is not None and not _devices(card, layout, machine, kind, version):
            found[key] = layout
    ordered = sorted(found.values(), key=lambda x: (price(x) is not None, x.nodes, x.pipeline, x.world))
    return ordered[:MOST] or [_as_asked(machine, topology, fixed)]


def price(layout: Layout) -> str | None:
    """What a layout costs that crosses something slow, None where it does not."""
    if layout.nodes > 1 and layout.tensor > len(layout.devices):
        return (
            f"every layer waits twice for the network between {layout.nodes} nodes: a published pair on two "
            "nodes without a fast network made a quarter to a third of the tokens of a pair in one node"
        )
    if layout.tensor > 1 and layout.link in _NO_PEER:
        where = {"unknown": "a link nobody knows", "cross-socket": "the link between two sockets"}
        over = where.get(layout.link or "", "PCIe and the host")
        return (
            f"every layer waits twice for {over}: two A100 without peer access were 1.3 times as fast as one "
            "at one request, and slower than one from 50 requests at once"
        )
    return None


def idle(usable: Usable | Sequence[Gpu], layout: Layout) -> tuple[Gpu, ...]:
    """Usable devices that a layout does not use."""
    gpus = usable.gpus if isinstance(usable, Usable) else tuple(usable)
    used = {g.uuid for g in layout.devices}
    return tuple(g for g in gpus if g.uuid not in used)


def idle_reason(
    card: ModelCard, usable: Usable | Sequence[Gpu], layout: Layout, kind: str, version: str | tuple[int, ...]
) -> str | None:
    """Why devices stay idle and what would use them, None where none does."""
    left = idle(usable, layout)
    if not left:
        return None
    total = len(left) + len(layout.devices)
    legal = legal_tensor_sizes(card, total, kind, version)
    which = ", ".join(g.uuid for g in left[:8])
    reason = ""
    if total not in legal:
        sizes = ", ".join(map(str, legal))
        reason = f"tensor groups of this model can have {sizes} of {count(total, 'device')}; "
    least = min(g.free_bytes for g in (*left, *layout.devices))
    uses = " or ".join(_using(card, total, least, kind, version))
    told = f"{uses} would use them all" if uses else "no layout that is legal and has room uses them all"
    stay = "stays" if len(left) == 1 else "stay"
    return f"{len(left)} of {count(total, 'device')} {stay} idle ({which}): {reason}{told}"


def _using(
    card: ModelCard, devices: int, free_bytes: int, kind: str, version: str | tuple[int, ...]
) -> Iterator[str]:
    """Levers that spread the model over so many devices, as they are typed: legal ones whose weights leave
    room on each."""
    text = version if isinstance(version, str) else ".".join(map(str, version))
    engine: Kind = "sglang" if kind == "sglang" else "vllm"
    for lever, layout in (
        ("tensor_parallel_size", Layout(tensor=devices)),
        ("data_parallel_size", Layout(data=devices)),
        ("attention_data_parallel_size", Layout(attention_data=devices, expert=True)),
        ("pipeline_parallel_size", Layout(pipeline=devices)),
    ):
        if _of_model(card, layout, kind, version):
            continue
        if weights_per_gpu(card, layout, kind=engine, version=text).worst <= free_bytes * _MOST_WEIGHTS:
            yield f"--set {lever}={devices}"


def _from_split(
    card: ModelCard, layout: Layout, problem: Uneven, kind: str, version: str | tuple[int, ...]
) -> Illegal:
    """With the nearest size below that has no such problem, or expert parallelism where that mends it."""
    whole = replace(layout, expert=True)
    if problem.experts_only and not layout.expert and not uneven(card, whole, kind, version):
        return Illegal("tensor_parallel_size", problem.code, problem.message, {"expert_parallel": True})
    for size in range(layout.tensor - 1, 0, -1):
        if not uneven(card, replace(layout, tensor=size), kind, version):
            change = {"tensor_parallel_size": size}
            return Illegal("tensor_parallel_size", problem.code, problem.message, change)
    return Illegal("tensor_parallel_size", problem.code, problem.message)


def _sizes(card: ModelCard, layout: Layout, kind: str) -> list[Illegal]:
    found = []
    if layout.pipeline > card.layers:
        message = f"pipeline_parallel_size {layout.pipeline} is more than the model's {card.layers} layers"
        change = {"pipeline_parallel_size": card.layers}
        found.append(Illegal("pipeline_parallel_size", "more_stages_than_layers", message, change))
    if layout.data > 1 and layout.attention_data > 1:
        # srt/arg_groups/parallel_hook.py refuses it; vLLM has one size for both
        message = (
            f"data_parallel_size {layout.data} and attention_data_parallel_size {layout.attention_data}: "
            "an engine has one of them"
        )
        found.append(
            Illegal("data_parallel_size", "two_kinds_of_data_parallel", message, {"data_parallel_size": 1})
        )
    if layout.data > 1 and layout.nodes > 1 and kind == "sglang":
        # srt/arg_groups/parallel_hook.py: dp_size > 1 with nnodes > 1 is refused
        message = f"SGLang keeps the copies of data_parallel_size {layout.data} on one node"
        instead: dict[str, Any] = {"data_parallel_size": 1}
        if card.experts:
            instead |= {"attention_data_parallel_size": layout.data, "expert_parallel": True}
        found.append(Illegal("data_parallel_size", "copies_over_nodes", message, instead))
    return found


def _experts(card: ModelCard, layout: Layout, kind: str) -> list[Illegal]:
    found = []
    if not card.experts:
        message = "the model has no experts to spread"
        if layout.expert:
            # vllm/config/model.py: "Number of experts in the model must be greater than 0"
            found.append(Illegal("expert_parallel", "no_experts", message, {"expert_parallel": False}))
        if layout.attention_data > 1:
            size = layout.attention_data
            lever = "attention_data_parallel_size"
            found.append(Illegal(lever, "no_experts", message, {lever: 1, "data_parallel_size": size}))
        return found
    if layout.attention_data > 1 and not layout.expert:
        message = "attention copies share the experts, which expert_parallel spreads"
        found.append(
            Illegal("expert_parallel", "attention_data_without_experts", message, {"expert_parallel": True})
        )
    if layout.data > 1 and kind == "vllm":
        # vllm/model_executor/layers/fused_moe/config.py: experts are cut over tensor x data ranks, always
        message = (
            f"vLLM's --data-parallel-size makes no whole copies of a model with experts: its {layout.data} "
            "ranks share them"
        )
        change = {
            "data_parallel_size": 1,
            "attention_data_parallel_size": layout.data,
            "expert_parallel": True,
        }
        found.append(Illegal("data_parallel_size", "copies_share_experts", message, change))
    ranks, even = (
        layout.ranks_sharing_experts,
        kind == "sglang" or bool(_EVEN_EXPERTS & {*card.architectures}),
    )
    if layout.expert and (ranks > card.experts or (even and card.experts % ranks)):
        message = f"{card.experts} experts cannot be spread {'evenly ' if even else ''}over {ranks} ranks"
        change = {"expert_parallel": False}
        if layout.attention_data > 1:
            sizes = range(1, layout.attention_data)
            fitting = [n for n in sizes if _spread(card.experts, n * layout.tensor, even=even)]
            change = {"attention_data_parallel_size": max(fitting, default=1)}
        found.append(Illegal("expert_parallel", "experts_not_divisible", message, change))
    return found


def _spread(experts: int, ranks: int, *, even: bool) -> bool:
    """Whether experts spread over so many ranks."""
    return experts % ranks == 0 if even else ranks <= experts


def _devices(
    card: ModelCard, layout: Layout, machine: Machine, kind: str, version: str | tuple[int, ...]
) -> list[Illegal]:
    found = []
    there = len(machine.gpus) * machine.nodes
    if layout.devices and len(layout.devices) * layout.nodes < layout.world:
        # those that are usable: others are held, or of another model
        there = len(layout.devices) * layout.nodes
    slots = there or machine.physical_cores
    cut = any(g.mig for g in layout.devices)
    if layout.world > slots and not cut:
        verb = "is" if slots == 1 else "are"
        kind_of = "usable GPU" if there else "core"
        what = f"there {verb} {count(slots, kind_of)}" + ("" if there else ", and each rank needs one")
        message = f"the layout needs {layout.world} devices, {what}"
        change = _smaller(card, layout, slots, kind, version)
        found.append(Illegal(_largest(layout), "too_few_devices", message, change))
    if layout.world > 1 and cut:
        message = "MIG slices have no peer access, and a process sees one of them: a deployment takes one"
        found.append(Illegal(_largest(layout), "mig_slices_form_no_group", message, dict.fromkeys(LEVERS, 1)))
    shared = kind == "sglang" and layout.tensor * layout.attention_data > 1
    free = sorted(g.free_bytes for g in layout.devices) if shared else []
    if len(free) > 1 and free[0] < free[-1] * _UNBALANCED:
        message = (
            f"SGLang refuses tensor ranks with uneven memory: {free[0] / 2**30:.1f} to "
            f"{free[-1] / 2**30:.1f} GiB are free on them"
        )
        found.append(Illegal("device_ids", "uneven_free_memory", message))
    unequal = len({(g.name, g.memory_bytes) for g in layout.devices}) > 1
    kinds = sorted({f"{g.name} of {g.memory_bytes / 2**30:.0f} GiB" for g in layout.devices if unequal})
    if len(kinds) > 1:
        message = f"one deployment takes equal cards, these are {', '.join(kinds)}"
        found.append(Illegal("device_ids", "unequal_devices", message))
    return found


def _largest(layout: Layout) -> str:
    sizes = (layout.tensor, layout.pipeline, layout.data, layout.attention_data)
    return LEVERS[max(range(4), key=lambda i: sizes[i])]


def _smaller(
    card: ModelCard, layout: Layout, slots: int, kind: str, version: str | tuple[int, ...]
) -> dict[str, Any]:
    """The lever that was set largest, as large as it may be; more than one where that is not enough."""
    change: dict[str, Any] = {}
    for name, attribute in (
        ("data_parallel_size", "data"),
        ("attention_data_parallel_size", "attention_data"),
        ("pipeline_parallel_size", "pipeline"),
        ("tensor_parallel_size", "tensor"),
    ):
        size = getattr(layout, attribute)
        if layout.world <= slots or size == 1:
            continue
        room = max(1, slots // (layout.world // size))
        if attribute == "tensor":
            room = max(legal_tensor_sizes(card, room, kind, version), default=1)
        layout = replace(layout, **{attribute: room})
        change[name] = room
    return change


def _sizes_asked(given: Mapping[str, Any]) -> Layout:
    tensor, pipeline, data, attention = (int(given.get(name) or 1) for name in LEVERS)
    return Layout(tensor, pipeline, data, attention, bool(given.get("expert_parallel", attention > 1)))


def _as_asked(machine: Machine, topology: Topology, given: Mapping[str, Any]) -> Layout:
    sizes = _sizes_asked(given)
    if sizes.world > len(topology.gpus):
        sizes = replace(sizes, nodes=machine.nodes)
    return _placed(topology, sizes) or replace(sizes, devices=topology.gpus[: sizes.world])


def _shapes(
    card: ModelCard,
    machine: Machine,
    topology: Topology,
    kind: str,
    version: str | tuple[int, ...],
    given: Mapping[str, Any],
) -> Iterator[Layout]:
    """Sizes without devices, for one node and for all nodes."""
    here = len(topology.gpus)
    cards = here * machine.nodes
    legal = legal_tensor_sizes(card, cards, kind, version)
    for nodes in (1, machine.nodes) if machine.nodes > 1 else (1,):
        cards = here * nodes
        asked = given.get("tensor_parallel_size")
        tensors = [t for t in legal if t <= here or t == cards] if asked is None else [int(asked)]
        for tensor in tensors:
            room = cards // tensor
            stages = _stages(topology, tensor, room, nodes, legal)
            for pipeline in _one_of(given.get("pipeline_parallel_size"), stages):
                left = room // pipeline
                if not left:
                    continue
                # copies of a model with experts share them on vLLM, see `_experts`
                copies = {1, left} if not card.experts or kind != "vllm" else {1}
                for data in _one_of(given.get("data_parallel_size"), copies):
                    ranks = {1, left} if card.experts and data == 1 else {1}
                    for attention in _one_of(given.get("attention_data_parallel_size"), ranks):
                        if nodes > 1 and tensor * pipeline * data * attention <= here:
                            continue
                        for expert in _experts_spread(card, tensor, attention, given):
                            yield Layout(tensor, pipeline, data, attention, expert, nodes=nodes)


def _one_of(given: Any, sizes: set[int]) -> list[int]:
    return [int(given)] if given is not None else sorted(sizes)


def _stages(topology: Topology, tensor: int, room: int, nodes: int, legal: Sequence[int]) -> set[int]:
    """Pipeline sizes: one; one stage a node; and inside a node those where as many tensor ranks would be
    illegal or joined by something slower than NVLink."""
    if nodes > 1:
        return {1, nodes, room} if room <= _MOST_STAGES else {1, nodes}
    sizes = {1}
    for size in range(2, min(room, _MOST_STAGES) + 1):
        if room % size and size != room:
            continue
        placement = topology.place(tensor * size, 1) if tensor * size in legal else None
        if placement is None or placement.link != "nvlink":
            sizes.add(size)
    return sizes


def _experts_spread(card: ModelCard, tensor: int, attention: int, given: Mapping[str, Any]) -> list[bool]:
    asked = given.get("expert_parallel")
    if asked is not None:
        return [bool(asked)]
    if not card.experts:
        return [False]
    if attention > 1:
        return [True]
    return [False, True] if tensor > 1 else [False]


def _placed(topology: Topology, sizes: Layout) -> Layout | None:
    """With devices: the best islands of one node, or of every node, which are like this one."""
    here = math.ceil(sizes.world / sizes.nodes)
    if sizes.world % sizes.nodes or here > len(topology.gpus):
        return None
    if here % sizes.tensor:
        # the group crosses nodes: all of this one's cards are in it
        return replace(sizes, devices=topology.gpus[:here]) if sizes.tensor == sizes.world else None
    placement = topology.place(sizes.tensor, here // sizes.tensor)
    if placement is None:
        return None
    return Layout(
        sizes.tensor,
        sizes.pipeline,
        sizes.data,
        sizes.attention_data,
        sizes.expert,
        placement.devices,
        sizes.nodes,
        placement.link,
    )
