"""Which GPUs a plan may use, and which belong together."""

from dataclasses import replace
from itertools import combinations

from orchestrator.machine import Gpu, Holder, Link, Machine
from orchestrator.machine.machine import LinkKind
from orchestrator.planning.paged.devices import islands, place, slowest_link, usable
from orchestrator.planning.request import Reservations

GIB = 2**30


def gpu(index: int, name: str = "NVIDIA H100 80GB HBM3", gib: float = 80, free: float | None = None) -> Gpu:
    return Gpu(
        index, f"GPU-{index}-abcd", name, int(gib * GIB), int((gib if free is None else free) * GIB), "9.0"
    )


def machine(
    gpus: list[Gpu], kind: LinkKind = "nvlink", better: dict[tuple[int, int], LinkKind] | None = None
) -> Machine:
    """Every pair joined by `kind`, those of `better` by theirs."""
    links = tuple(
        Link(a.uuid, b.uuid, (better or {}).get((a.index, b.index), kind)) for a, b in combinations(gpus, 2)
    )
    return Machine("m", "test", "linux-x86_64", 8, 8, 8, GIB, GIB, GIB, gpus=tuple(gpus), links=links)


def indexes(gpus: tuple[Gpu, ...]) -> list[int]:
    return [g.index for g in gpus]


def test_all_equal_free_cards_are_usable() -> None:
    found = usable(machine([gpu(i) for i in range(8)]))
    assert indexes(found.gpus) == list(range(8))
    assert found.left_out == ()


def test_a_reserved_card_is_left_out_by_uuid() -> None:
    found = usable(machine([gpu(0), gpu(1)]), Reservations(devices=("GPU-0-abcd",)))
    assert indexes(found.gpus) == [1]
    assert [(o.gpu.index, o.code) for o in found.left_out] == [(0, "reserved")]


def test_a_card_that_is_half_taken_is_left_out_and_its_holder_named() -> None:
    busy = replace(gpu(1, free=30), holders=(Holder(7, GIB, "python"),))
    found = usable(machine([gpu(0), busy, gpu(2, free=78)]))
    assert indexes(found.gpus) == [0, 2]
    (out,) = found.left_out
    assert out.code == "in_use"
    assert "30.0 GiB free where its equals have 80.0 GiB" in out.why
    assert "python" in out.why


def test_a_card_somebody_names_is_used_though_it_is_busy() -> None:
    cards = machine([gpu(0), gpu(1, free=30), gpu(2)])
    assert indexes(usable(cards, named=["GPU-0-abcd", "GPU-1-abcd"]).gpus) == [0, 1]
    assert indexes(usable(cards, named=["2"]).gpus) == [2]
    assert indexes(usable(cards, named=["GPU-2"]).gpus) == [2]


def test_a_name_that_is_no_card_is_said() -> None:
    found = usable(machine([gpu(0)]), named=["GPU-9", "0"])
    assert (indexes(found.gpus), found.unknown) == ([0], ("GPU-9",))


def test_a_full_card_is_left_out_even_when_named() -> None:
    found = usable(machine([gpu(0, free=0.5)]), named=["0"])
    assert found.gpus == ()
    assert found.left_out[0].code == "in_use"


def test_of_mixed_models_the_larger_group_is_taken_and_the_rest_explained() -> None:
    cards = [gpu(0, "NVIDIA GeForce RTX 3060", 12), gpu(1, "NVIDIA GeForce RTX 4090", 24)]
    found = usable(
        machine([*cards, gpu(2, "NVIDIA GeForce RTX 3060", 12), gpu(3, "NVIDIA GeForce RTX 3060", 12)])
    )
    assert indexes(found.gpus) == [0, 2, 3]
    (out,) = found.left_out
    assert (out.gpu.index, out.code) == (1, "other_model")
    assert "RTX 4090 (24.0 GiB) beside 3 x NVIDIA GeForce RTX 3060 (12.0 GiB)" in out.why
    assert indexes(usable(machine(cards)).gpus) == [1]


def test_of_one_name_with_two_memory_sizes_one_size_is_taken() -> None:
    found = usable(machine([gpu(0, gib=80), gpu(1, gib=40), gpu(2, gib=80)]))
    assert indexes(found.gpus) == [0, 2]


def test_mig_slices_never_form_a_group() -> None:
    slices = [
        replace(gpu(0, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40), uuid=f"MIG-{i}", mig=True) for i in range(2)
    ]
    found = usable(machine(slices))
    assert len(found.gpus) == 1
    assert [o.code for o in found.left_out] == ["mig_slice"]


def test_a_machine_without_gpus_has_none() -> None:
    assert usable(machine([])).gpus == ()


def test_islands_begin_with_nvlink_and_end_with_all() -> None:
    pairs: dict[tuple[int, int], LinkKind] = {(0, 1): "nvlink", (2, 3): "nvlink", (0, 2): "pcie-switch"}
    cards = machine([gpu(i) for i in range(4)], "pcie-host", pairs)
    assert [indexes(g) for g in islands(cards, usable(cards))] == [[0, 1], [2, 3], [0, 1, 2, 3]]


def test_a_larger_island_comes_first_and_sockets_come_last() -> None:
    near: dict[tuple[int, int], LinkKind] = {
        (0, 1): "pcie-host",
        (2, 3): "pcie-host",
        (2, 4): "pcie-host",
        (3, 4): "pcie-host",
    }
    cards = machine([gpu(i) for i in range(5)], "cross-socket", near)
    assert [indexes(g) for g in islands(cards, cards.gpus)] == [[2, 3, 4], [0, 1], [0, 1, 2, 3, 4]]


def test_an_island_holds_only_cards_that_all_reach_each_other() -> None:
    # a chain of bridges is no island of three
    cards = machine([gpu(i) for i in range(3)], "pcie-host", {(0, 1): "nvlink", (1, 2): "nvlink"})
    assert indexes(islands(cards, cards.gpus)[0]) == [0, 1]


def test_groups_are_placed_inside_islands_before_across_them() -> None:
    bridged: dict[tuple[int, int], LinkKind] = {(0, 3): "nvlink", (1, 2): "nvlink"}
    cards = machine([gpu(i) for i in range(4)], "pcie-host", bridged)
    two = place(cards, cards.gpus, 2, 2)
    assert two is not None
    assert (indexes(two.devices), two.link) == ([0, 3, 1, 2], "nvlink")
    four = place(cards, cards.gpus, 4, 1)
    assert four is not None
    assert four.link == "pcie-host"


def test_a_group_takes_what_is_left_over_a_worse_link_and_says_so() -> None:
    cards = machine([gpu(i) for i in range(4)], "cross-socket", {(0, 1): "nvlink"})
    placed = place(cards, cards.gpus, 2, 2)
    assert placed is not None
    assert (indexes(placed.devices), placed.link) == ([0, 1, 2, 3], "cross-socket")


def test_too_few_cards_place_nothing_and_one_card_needs_no_link() -> None:
    cards = machine([gpu(0), gpu(1)])
    assert place(cards, cards.gpus, 2, 2) is None
    alone = place(cards, cards.gpus, 1, 2)
    assert alone is not None
    assert (indexes(alone.devices), alone.link) == ([0, 1], None)


def test_links_that_are_not_known_are_worse_than_a_common_host() -> None:
    cards = machine([gpu(i) for i in range(3)], "unknown", {(0, 1): "pcie-host"})
    assert slowest_link(cards, cards.gpus) == "unknown"
    assert slowest_link(cards, cards.gpus[:2]) == "pcie-host"
    assert slowest_link(replace(cards, links=()), cards.gpus) == "unknown"
