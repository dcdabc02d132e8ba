"""Which GPUs a plan may use, and which of them belong together.

One tensor group takes equal cards that reach each other; islands are the groups of equal cards, the best
links first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.machine.machine import Gpu, LinkKind, Machine
from orchestrator.planning.request import Reservations

LINKS: tuple[LinkKind, ...] = ("nvlink", "pcie-switch", "pcie-host", "unknown", "cross-socket")
"""Kinds of links, the fastest first; one that is not known is taken for worse than a common PCIe host."""

_RANK = {kind: rank for rank, kind in enumerate(LINKS)}

_BUSY_SHARE = 0.5
"""A card with less free than this share of the freest equal one would hold the others back: every rank gets
as much KV as the poorest."""

_LEAST_FREE = 1 << 30
"""Bytes: a card with less free can hold no model beside the engine's own context."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A GPU that the plan does not use. `code`: reserved, in_use, other_model, mig_slice, not_named."""

    gpu: Gpu
    code: str
    why: str


@dataclass(frozen=True, slots=True)
class Usable:
    """`gpus` are equal cards, best connected and freest first; `left_out` the others, each with why;
    `unknown` the names in `device_ids` that are no GPU of this machine."""

    gpus: tuple[Gpu, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices in rank order, tensor innermost, and the slowest link inside one tensor group."""

    devices: tuple[Gpu, ...]
    link: LinkKind | None


def usable(
    machine: Machine, reservations: Reservations | None = None, *, named: Sequence[str] | str | None = None
) -> Usable:
    """The GPUs of a machine that a plan may use.

    `named` are the lever `device_ids`: UUIDs, beginnings of one, or indexes; what somebody names is not left
    out for being busy. Of several models the one with the most free memory in all is taken.
    """
    found, unknown = _named(machine, named)
    out = [LeftOut(g, "not_named", "not among device_ids") for g in machine.gpus if g not in found]
    held = set(reservations.devices) if reservations is not None else set()
    free = []
    for gpu in found:
        if gpu.uuid in held:
            out.append(LeftOut(gpu, "reserved", "another deployment holds it"))
        elif gpu.free_bytes < _LEAST_FREE:
            out.append(LeftOut(gpu, "in_use", f"{_gib(gpu.free_bytes)} free{_held_by(gpu)}"))
        else:
            free.append(gpu)
    kinds = _by_model(free)
    if not kinds:
        return Usable((), tuple(out), unknown)
    chosen, *others = sorted(kinds.values(), key=lambda k: -sum(g.free_bytes for g in k))
    name = chosen[0].name
    for gpu in (g for kind in others for g in kind):
        why = f"{_size(gpu)} beside {len(chosen)} x {_size(chosen[0])}: one tensor group takes equal cards"
        out.append(LeftOut(gpu, "other_model", why if gpu.name != name else f"{why}, MIG slices included"))
    most = max(g.free_bytes for g in chosen)
    kept = [g for g in chosen if named or g.free_bytes >= most * _BUSY_SHARE]
    for gpu in (g for g in chosen if g not in kept):
        why = f"{_gib(gpu.free_bytes)} free where its equals have {_gib(most)}{_held_by(gpu)}"
        out.append(LeftOut(gpu, "in_use", why))
    if kept[0].mig:
        kept.sort(key=lambda g: -g.free_bytes)
        apart = "a MIG slice of its own: slices have no peer access, an engine sees one"
        out += [LeftOut(g, "mig_slice", apart) for g in kept[1:]]
        kept = kept[:1]
    return Usable(_best_connected(machine, kept), tuple(out), unknown)


def islands(machine: Machine, gpus: Usable | Sequence[Gpu]) -> list[tuple[Gpu, ...]]:
    """Groups of cards in which every pair is joined at least so well: NVLink groups first, then those below
    one PCIe switch, one host bridge, all. Larger ones first among equals; a card alone is no group."""
    cards = gpus.gpus if isinstance(gpus, Usable) else tuple(gpus)
    found: list[tuple[Gpu, ...]] = []
    for level in Topology(machine, cards).levels:
        groups = sorted((tuple(cards[i] for i in g) for g in level if len(g) > 1), key=lambda g: -len(g))
        found += [g for g in groups if g not in found]
    return found


def slowest_link(machine: Machine, gpus: Sequence[Gpu]) -> LinkKind | None:
    """The worst of the links between these cards, None where there is only one."""
    return Topology(machine, gpus).slowest(range(len(gpus)))


def place(machine: Machine, gpus: Sequence[Gpu], tensor: int, groups: int) -> Placement | None:
    """`groups` tensor groups of `tensor` cards, each inside the best island that has room; None where the
    cards are too few."""
    return Topology(machine, gpus).place(tensor, groups)


class Topology:
    """Cards and what joins them, worked out once for many placements.

    `levels` has, for each kind of link from the fastest on, the cards (by place in `gpus`) cut into groups
    whose pairs all have it or a better one; it ends where all are one group.
    """

    def __init__(self, machine: Machine, gpus: Sequence[Gpu]) -> None:
        self.gpus = tuple(gpus)
        known = {g.uuid: i for i, g in enumerate(self.gpus)}
        unknown = _RANK["unknown"]
        self._ranks = [[unknown] * len(known) for _ in known]
        for link in machine.links:
            a, b = known.get(link.a), known.get(link.b)
            if a is not None and b is not None:
                self._ranks[a][b] = self._ranks[b][a] = _RANK[link.kind]
        self.levels = self._cut()
        self._placed: dict[tuple[int, int], Placement] = {}

    def slowest(self, cards: Iterable[int]) -> LinkKind | None:
        """The worst link between these cards, None where there is only one."""
        which = list(cards)
        worst = max((self._ranks[a][b] for i, a in enumerate(which) for b in which[i + 1 :]), default=None)
        return None if worst is None else LINKS[worst]

    def place(self, tensor: int, groups: int) -> Placement | None:
        """See `place`."""
        wanted = tensor * groups
        if wanted > len(self.gpus):
            return None
        if tensor == 1:
            return Placement(self.gpus[:groups], None)
        kept = self._placed.get((tensor, groups))
        if kept is None:
            kept = self._placed[tensor, groups] = self._place(tensor, wanted)
        return kept

    def _place(self, tensor: int, wanted: int) -> Placement:
        taken: list[int] = []
        used: set[int] = set()
        worst = 0
        for level in self.levels:
            for island in level:
                room = [i for i in island if i not in used]
                while len(room) >= tensor and len(taken) < wanted:
                    group, room = room[:tensor], room[tensor:]
                    taken += group
                    used.update(group)
                    link = self.slowest(group)
                    worst = max(worst, _RANK[link] if link is not None else 0)
            if len(taken) == wanted:
                break
        return Placement(tuple(self.gpus[i] for i in taken), LINKS[worst])

    def _cut(self) -> list[list[list[int]]]:
        levels: list[list[list[int]]] = []
        for rank in range(len(LINKS)):
            groups: list[list[int]] = []
            for i, ranks in enumerate(self._ranks):
                for group in groups:
                    if all(ranks[other] <= rank for other in group):
                        group.append(i)
                        break
                else:
                    groups.append([i])
            levels.append(groups)
            if len(groups) <= 1:
                break
        return levels


def _best_connected(machine: Machine, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The larger NVLink island first, the freer card first inside each."""
    if len(gpus) < 2:
        return tuple(gpus)
    ordered = sorted(Topology(machine, gpus).levels[0], key=lambda group: -len(group))
    return tuple(
        gpus[i] for group in ordered for i in sorted(group, key=lambda i: -(gpus[i].free_bytes >> 30))
    )


def _by_model(gpus: Sequence[Gpu]) -> dict[tuple[object, ...], list[Gpu]]:
    kinds: dict[tuple[object, ...], list[Gpu]] = {}
    for g in gpus:
        kinds.setdefault((g.name, g.vendor, g.compute_capability, g.memory_bytes >> 30, g.mig), []).append(g)
    return kinds


def _named(machine: Machine, named: Sequence[str] | str | None) -> tuple[list[Gpu], tuple[str, ...]]:
    if not named:
        return list(machine.gpus), ()
    names = [named] if isinstance(named, str) else [str(n) for n in named]
    chosen: list[Gpu] = []
    unknown = []
    for name in names:
        matching = [g for g in machine.gpus if g.uuid == name or (name.isdigit() and g.index == int(name))]
        matching = matching or [g for g in machine.gpus if len(name) > 4 and g.uuid.startswith(name)]
        if len(matching) != 1:
            unknown.append(name)
        elif matching[0] not in chosen:
            chosen.append(matching[0])
    return chosen, tuple(unknown)


def _held_by(gpu: Gpu) -> str:
    names = [h.name or f"process {h.pid}" for h in gpu.holders]
    return f", held by {', '.join(names[:3])}" if names else ""


def _size(gpu: Gpu) -> str:
    return f"{gpu.name} ({_gib(gpu.memory_bytes)})"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
