"""Which layouts are legal, and which are looked at."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.machine import Gpu, Link, Machine, load
from orchestrator.machine.files import names
from orchestrator.machine.machine import LinkKind
from orchestrator.model_card.card import HybridState, ModelCard
from orchestrator.planning.paged.devices import Usable, usable
from orchestrator.planning.paged.layout import Layout
from orchestrator.planning.paged.parallelism import (
    MOST,
    Illegal,
    candidates,
    idle,
    idle_reason,
    illegal,
    legal_tensor_sizes,
    price,
)
from orchestrator.planning.paged.tensor_split import weight_block

GIB = 2**30
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def card(**changes: Any) -> ModelCard:
    """Llama-3.1-8B's shape, with changes."""
    facts: dict[str, Any] = {
        "source": "x",
        "name": "x",
        "path": None,
        "format": "config",
        "architecture": "llama",
        "layers": 32,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "hidden_size": 4096,
        "vocab_size": 128256,
        "context_length": 131072,
        "weights_bytes": 16_060_522_496,
        "intermediate_size": 14336,
    }
    return ModelCard(**facts | changes)


LLAMA_8B = card()
QWEN_72B = card(layers=80, heads=64, hidden_size=8192, intermediate_size=29568)
QWEN3_30B_A3B = card(
    layers=48,
    heads=32,
    kv_heads=4,
    hidden_size=2048,
    intermediate_size=6144,
    moe_intermediate_size=768,
    experts=128,
    experts_per_token=8,
)
QWEN3_235B = replace(QWEN3_30B_A3B, layers=94, heads=64, hidden_size=4096, moe_intermediate_size=1536)
DEEPSEEK = card(
    layers=61,
    heads=128,
    kv_heads=128,
    hidden_size=7168,
    vocab_size=129280,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    experts=256,
    experts_per_token=8,
    expert_layers=tuple(i >= 3 for i in range(61)),
    mla_kv_lora_rank=512,
    mla_qk_rope_head_dim=64,
    quantization="fp8",
    quantization_config=FP8,
)
QWEN3_NEXT = card(
    layers=48,
    heads=16,
    kv_heads=2,
    head_dim=256,
    hidden_size=2048,
    moe_intermediate_size=512,
    experts=512,
    experts_per_token=10,
    hybrid=HybridState(layers=36, state_bytes_per_layer=None, key_heads=16, value_heads=32),
)
CARDS = {
    "llama 8b": LLAMA_8B,
    "qwen 72b": QWEN_72B,
    "qwen3 30b": QWEN3_30B_A3B,
    "qwen3 235b": QWEN3_235B,
    "deepseek": DEEPSEEK,
    "qwen3 next": QWEN3_NEXT,
    "smollm": card(layers=30, heads=9, kv_heads=3, head_dim=64, hidden_size=576, intermediate_size=1536),
}
MACHINE = load("8xh100")


def machine(count: int, kind: LinkKind = "nvlink", nodes: int = 1) -> Machine:
    cards = tuple(
        Gpu(i, f"GPU-{i}", "NVIDIA H100 80GB HBM3", 80 * GIB, 80 * GIB, "9.0") for i in range(count)
    )
    links = tuple(Link(a.uuid, b.uuid, kind) for a, b in combinations(cards, 2))
    return Machine(
        "m", "test", "linux-x86_64", 16, 32, 16, GIB, GIB, GIB, gpus=cards, links=links, nodes=nodes
    )


def refused(
    c: ModelCard, layout: Layout, kind: str = "vllm", version: str = "0.33.0", on: Machine = MACHINE
) -> list[Illegal]:
    return illegal(c, layout, kind, version, on)


def codes(
    c: ModelCard, layout: Layout, kind: str = "vllm", version: str = "0.33.0", on: Machine = MACHINE
) -> set[str]:
    return {i.code for i in refused(c, layout, kind, version, on)}


def looked_at(c: ModelCard, on: Machine, kind: str = "vllm", **levers: Any) -> list[Layout]:
    return candidates(c, on, usable(on), kind=kind, version="0.33.0", given=levers)


def sizes(layouts: list[Layout]) -> set[tuple[int, int, int, int]]:
    return {(x.tensor, x.pipeline, x.data, x.attention_data) for x in layouts}


@pytest.mark.parametrize(
    ("c", "legal"),
    [
        (LLAMA_8B, [1, 2, 4, 8]),
        (QWEN_72B, [1, 2, 4, 8]),
        (CARDS["smollm"], [1, 3]),
        # above four KV heads they are copied, below they are divided
        (QWEN3_30B_A3B, [1, 2, 4, 8]),
        (DEEPSEEK, [1, 2, 4, 8]),
        # latent attention has no KV heads to divide
        (replace(DEEPSEEK, kv_heads=3), [1, 2, 4, 8]),
        (QWEN3_NEXT, [1, 2, 4, 8]),
        (card(heads=12, kv_heads=12, head_dim=64, intermediate_size=3072), [1, 2, 3, 4, 6]),
        # 24 heads could be cut in three or six, eight KV heads cannot
        (card(heads=24, intermediate_size=12288), [1, 2, 4, 8]),
        (card(heads=24, kv_heads=2, intermediate_size=12288), [1, 2, 4, 6, 8]),
        (card(heads=24, kv_heads=1, intermediate_size=12288), [1, 2, 3, 4, 6, 8]),
    ],
)
def test_tensor_sizes_that_divide_a_model(c: ModelCard, legal: list[int]) -> None:
    for kind, version in (("vllm", "0.33.0"), ("sglang", "0.5.23")):
        assert legal_tensor_sizes(c, 8, kind, version) == legal


CUT = [
    (
        "heads",
        LLAMA_8B,
        Layout(tensor=3),
        {"heads_not_divisible", "kv_heads_not_divisible", "feed_forward_not_divisible"},
    ),
    ("kv heads", card(heads=24, intermediate_size=12288), Layout(tensor=6), {"kv_heads_not_divisible"}),
    ("feed-forward", card(intermediate_size=14340), Layout(tensor=8), {"feed_forward_not_divisible"}),
    (
        "expert size",
        replace(QWEN3_30B_A3B, moe_intermediate_size=771),
        Layout(tensor=2),
        {"expert_size_not_divisible"},
    ),
    (
        "recurrent heads",
        replace(QWEN3_NEXT, hybrid=HybridState(36, None, key_heads=12, value_heads=32)),
        Layout(tensor=8),
        {"recurrent_heads_not_divisible"},
    ),
    (
        "awq group",
        replace(QWEN_72B, quantization_config={"quant_method": "awq", "group_size": 128, "bits": 4}),
        Layout(tensor=2),
        {"quantization_block_cut"},
    ),
    (
        "gptq group in the attention",
        card(
            heads=12,
            head_dim=80,
            kv_heads=12,
            quantization_config={"quant_method": "gptq", "group_size": 128},
        ),
        Layout(tensor=2),
        {"quantization_block_cut"},
    ),
    (
        "fp8 block",
        card(intermediate_size=11008, quantization_config=FP8),
        Layout(tensor=4),
        {"quantization_block_cut"},
    ),
    ("layers", card(layers=4), Layout(pipeline=8), {"more_stages_than_layers"}),
    ("experts of a dense model", LLAMA_8B, Layout(tensor=2, expert=True), {"no_experts"}),
    ("attention copies of a dense model", LLAMA_8B, Layout(attention_data=2), {"no_experts"}),
    (
        "attention copies with whole experts",
        DEEPSEEK,
        Layout(attention_data=8),
        {"attention_data_without_experts"},
    ),
    (
        "more ranks than experts",
        replace(DEEPSEEK, experts=4),
        Layout(tensor=8, expert=True),
        {"experts_not_divisible"},
    ),
    ("too few", LLAMA_8B, Layout(tensor=8, data=2), {"too_few_devices"}),
]


@pytest.mark.parametrize(("c", "layout", "wrong"), [t[1:] for t in CUT], ids=[t[0] for t in CUT])
@pytest.mark.parametrize(("kind", "version"), [("vllm", "0.33.0"), ("sglang", "0.5.23")])
def test_what_does_not_divide_is_refused_and_its_change_mends_it(
    c: ModelCard, layout: Layout, wrong: set[str], kind: str, version: str
) -> None:
    found = refused(c, layout, kind, version)
    assert {i.code for i in found} == wrong
    for i in found:
        assert i.change
        mended = with_levers(layout, i.change)
        assert i.code not in codes(c, mended, kind, version)


def with_levers(layout: Layout, change: Any) -> Layout:
    fields = {
        "tensor_parallel_size": "tensor",
        "pipeline_parallel_size": "pipeline",
        "data_parallel_size": "data",
        "attention_data_parallel_size": "attention_data",
        "expert_parallel": "expert",
    }
    return replace(layout, **{fields[k]: v for k, v in change.items()})


def test_every_violation_is_told_at_once() -> None:
    awq = replace(QWEN_72B, quantization_config={"quant_method": "awq", "group_size": 128})
    found = codes(awq, Layout(tensor=6, pipeline=100, attention_data=2, data=2))
    assert found >= {
        "heads_not_divisible",
        "kv_heads_not_divisible",
        "more_stages_than_layers",
        "two_kinds_of_data_parallel",
        "no_experts",
        "too_few_devices",
    }


def test_blocks_of_experts_are_refused_where_the_engine_refuses_them() -> None:
    fp8 = replace(QWEN3_235B, quantization_config=FP8)
    # 1536 / 8 = 192 is no multiple of 128, and a multiple of 64
    assert codes(fp8, Layout(tensor=4)) == set()
    assert codes(fp8, Layout(tensor=8), version="0.11.0") == {"quantization_block_cut"}
    assert codes(fp8, Layout(tensor=8), kind="sglang", version="0.5.23") == {"quantization_block_cut"}
    assert codes(fp8, Layout(tensor=8), version="0.32.0") == set()
    assert codes(fp8, Layout(tensor=8, expert=True), version="0.11.0") == set()
    (found,) = refused(fp8, Layout(tensor=8), version="0.11.0")
    assert found.change == {"expert_parallel": True}


def test_key_channels_may_end_inside_a_block_on_vllm_only() -> None:
    c = card(heads=64, head_dim=64, quantization_config=FP8)
    assert codes(c, Layout(tensor=4)) == codes(c, Layout(tensor=8)) == set()
    assert codes(c, Layout(tensor=4), kind="sglang") == set()
    (found,) = refused(c, Layout(tensor=8), kind="sglang")
    assert (found.code, found.change) == ("quantization_block_cut", {"tensor_parallel_size": 4})
    assert codes(replace(c, value_head_dim=128), Layout(tensor=8), kind="sglang") == set()
    # layers of a model may have fewer KV heads than its others
    mixed = replace(c, kv_heads_per_layer=(8, 4) * 16)
    assert codes(mixed, Layout(tensor=4), kind="sglang") == {"quantization_block_cut"}


def test_qwens_padded_awq_checkpoint_divides_where_the_plain_size_would_not() -> None:
    awq = {"quant_method": "awq", "group_size": 128}
    assert (
        codes(replace(QWEN_72B, intermediate_size=29696, quantization_config=awq), Layout(tensor=8)) == set()
    )


def test_parts_that_the_checkpoint_keeps_plain_have_no_blocks() -> None:
    config = {"quant_method": "compressed-tensors", "group_size": 128, "ignore": ["re:.*mlp.*"]}
    assert codes(replace(QWEN_72B, quantization_config=config), Layout(tensor=2)) == set()


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (None, None),
        ({"quant_method": "fp8"}, None),
        (FP8, 128),
        ({"quant_method": "awq", "group_size": 64}, 64),
        ({"quant_method": "gptq", "group_size": -1}, None),
        ({"quant_method": "mxfp4", "group_size": 32}, None),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"group_size": 32, "strategy": "group"}}},
            },
            32,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"strategy": "block", "block_structure": [128, 128]}}},
            },
            128,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"strategy": "channel"}}},
            },
            None,
        ),
        (
            {"quant_method": "x", "config_groups": ["odd"], "weight_block_size": "odd", "group_size": "odd"},
            None,
        ),
    ],
)
def test_the_block_that_a_checkpoint_states(config: dict[str, Any] | None, size: int | None) -> None:
    block = weight_block(card(quantization_config=config))
    assert (block.size if block is not None else None) == size


def test_copies_of_a_model_with_experts_differ_by_engine() -> None:
    (found,) = refused(DEEPSEEK, Layout(data=8))
    assert found.code == "copies_share_experts"
    assert found.change == {
        "data_parallel_size": 1,
        "attention_data_parallel_size": 8,
        "expert_parallel": True,
    }
    assert codes(DEEPSEEK, Layout(data=8), kind="sglang") == set()
    assert codes(LLAMA_8B, Layout(data=8)) == set()


def test_experts_need_not_divide_on_vllm_and_must_on_sglang() -> None:
    odd = replace(QWEN3_30B_A3B, experts=60)
    layout = Layout(tensor=8, expert=True)
    assert codes(odd, layout) == set()
    assert codes(odd, layout, kind="sglang") == {"experts_not_divisible"}


GPT_OSS = replace(
    QWEN3_30B_A3B, heads=64, kv_heads=8, head_dim=64, hidden_size=2880, architectures=("GptOssForCausalLM",)
)


@pytest.mark.parametrize("experts", [32, 128])
@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_gpt_oss_spreads_its_experts_evenly_or_not_at_all(experts: int, count: int) -> None:
    c = replace(GPT_OSS, experts=experts)
    spread = candidates(c, machine(count), machine(count).gpus, kind="vllm", version="0.33.0")
    assert all(experts % x.ranks_sharing_experts == 0 for x in spread if x.expert)
    wrong = Layout(attention_data=count, expert=True, devices=machine(count).gpus)
    (told,) = refused(c, wrong)
    assert told.code == "experts_not_divisible"
    assert f"{experts} experts cannot be spread evenly over {count} ranks" in told.message
    assert not refused(c, with_levers(wrong, told.change))


def test_a_tensor_size_far_too_large_has_one_remedy_that_works() -> None:
    found = refused(LLAMA_8B, Layout(tensor=1_000_000, devices=MACHINE.gpus))
    assert len(found) > 1
    assert {x.change["tensor_parallel_size"] for x in found} == {8}


def test_sglang_keeps_copies_on_one_node() -> None:
    on = load("2x8xh100-ib")
    layout = Layout(tensor=8, data=2, nodes=2)
    assert codes(LLAMA_8B, layout, on=on) == set()
    assert codes(LLAMA_8B, layout, kind="sglang", on=on) == {"copies_over_nodes"}


def test_mig_slices_and_unequal_cards_form_no_group() -> None:
    cards = machine(2).gpus
    slices = tuple(replace(g, mig=True) for g in cards)
    assert "mig_slices_form_no_group" in codes(LLAMA_8B, Layout(tensor=2, devices=slices))
    unequal = (cards[0], replace(cards[1], name="NVIDIA A100-SXM4-80GB"))
    assert codes(LLAMA_8B, Layout(tensor=2, devices=unequal)) == {"unequal_devices"}


def test_devices_that_are_held_do_not_count() -> None:
    four = MACHINE.gpus[:4]
    layouts = candidates(
        LLAMA_8B, MACHINE, four, kind="vllm", version="0.33.0", given={"tensor_parallel_size": 8}
    )
    (found,) = illegal(LLAMA_8B, layouts[0], "vllm", "0.33.0", MACHINE)
    assert (found.code, found.change) == ("too_few_devices", {"tensor_parallel_size": 4})


def test_what_needs_too_many_devices_is_made_smaller_to_something_legal() -> None:
    (found,) = refused(LLAMA_8B, Layout(tensor=8), on=machine(7))
    assert found.change == {"tensor_parallel_size": 4}
    (found,) = refused(LLAMA_8B, Layout(tensor=2, data=8))
    assert found.change == {"data_parallel_size": 4}


def test_a_cpu_has_a_rank_for_each_core_at_most() -> None:
    cpu = load("cpu16")
    assert codes(LLAMA_8B, Layout(tensor=2), on=cpu) == set()
    assert codes(LLAMA_8B, Layout(tensor=16), on=cpu) >= {"too_few_devices"}
    assert looked_at(LLAMA_8B, cpu) == [Layout()]
    assert looked_at(LLAMA_8B, cpu, tensor_parallel_size=2) == [Layout(tensor=2)]


def test_eight_cards_on_nvlink_share_or_copy_and_never_pipeline() -> None:
    assert sizes(looked_at(LLAMA_8B, load("8xh100"))) == {
        (1, 1, 1, 1),
        (2, 1, 1, 1),
        (4, 1, 1, 1),
        (8, 1, 1, 1),
        (1, 1, 8, 1),
        (2, 1, 4, 1),
        (4, 1, 2, 1),
    }


def test_latent_attention_with_experts_is_copied_over_the_ranks() -> None:
    found = looked_at(DEEPSEEK, load("8xh200"))
    assert {(1, 1, 1, 8), (2, 1, 1, 4), (8, 1, 1, 1)} <= sizes(found)
    assert all(x.expert for x in found if x.attention_data > 1)
    assert {x.expert for x in found if x.tensor == 8} == {False, True}
    assert not any(x.data > 1 for x in found)
    assert any(x.data > 1 for x in looked_at(DEEPSEEK, load("8xh200"), kind="sglang"))


def test_over_pcie_copies_and_stages_come_before_sharing_which_has_a_price() -> None:
    found = looked_at(LLAMA_8B, load("2xrtx3090-pcie"))
    assert [(x.tensor, x.pipeline, x.data) for x in found] == [(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1)]
    assert [price(x) is not None for x in found] == [False, False, False, True]
    assert "PCIe" in (price(found[-1]) or "")


@pytest.mark.parametrize("kind", ["pcie-host", "cross-socket", "unknown"])
def test_every_slow_link_has_its_price_said(kind: LinkKind) -> None:
    on = machine(2, kind)
    (found,) = looked_at(LLAMA_8B, on, tensor_parallel_size=2)
    assert found.link == kind
    assert "waits twice" in (price(found) or "")


def test_a_switch_with_peer_access_and_nvlink_have_no_price() -> None:
    for kind in ("nvlink", "pcie-switch"):
        (found,) = looked_at(LLAMA_8B, machine(2, kind), tensor_parallel_size=2)
        assert price(found) is None


def test_two_nodes_pipeline_between_them_and_share_inside() -> None:
    found = looked_at(QWEN_72B, load("2x8xh100-ib"))
    assert (8, 2, 1, 1) in sizes(found)
    across = [x for x in found if x.tensor == 16]
    assert [price(x) is not None for x in across] == [True]
    assert "network between 2 nodes" in (price(across[0]) or "")
    assert across[0] == found[-1]
    inside = next(x for x in found if (x.tensor, x.pipeline) == (8, 2))
    assert (inside.nodes, inside.link, len(inside.devices), inside.world) == (2, "nvlink", 8, 16)


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_odd_counts_are_used_by_copies_and_stages_and_the_rest_is_named(count: int) -> None:
    on = machine(count)
    found = looked_at(LLAMA_8B, on)
    assert {(1, 1, count, 1), (1, count, 1, 1)} <= sizes(found)
    assert max(x.tensor for x in found) == {3: 2, 5: 4, 6: 4, 7: 4}[count]
    four = next(x for x in found if x.tensor == max(y.tensor for y in found) and x.world == x.tensor)
    left = idle(on.gpus, four)
    assert len(left) == count - four.world
    reason = idle_reason(LLAMA_8B, on.gpus, four, "vllm", "0.33.0") or ""
    stay = "stays" if len(left) == 1 else "stay"
    assert f"{len(left)} of {count} devices {stay} idle" in reason
    assert left[0].uuid in reason
    assert f"pipeline_parallel_size={count}" in reason
    assert f"data_parallel_size={count}" in reason
    whole = next(x for x in found if x.data == count)
    assert idle_reason(LLAMA_8B, on.gpus, whole, "vllm", "0.33.0") is None


def test_only_what_is_legal_and_has_room_is_said_to_use_idle_devices() -> None:
    on = machine(6)
    four = next(x for x in looked_at(QWEN_72B, on) if x.tensor == 4 and x.world == 4)
    large = replace(QWEN_72B, weights_bytes=140 << 30)
    reason = idle_reason(large, on.gpus, four, "vllm", "0.33.0") or ""
    # a copy on each device would not fit, more processes behind an address are not in this version
    assert "pipeline_parallel_size=6" in reason
    assert "data_parallel_size" not in reason
    assert "replicas" not in reason
    none = idle_reason(replace(large, weights_bytes=1400 << 30), on.gpus, four, "vllm", "0.33.0") or ""
    assert "no layout that is legal and has room uses them all" in none
    # vLLM makes no whole copies of a model with experts
    experts = idle_reason(QWEN3_30B_A3B, on.gpus, four, "vllm", "0.33.0") or ""
    assert " data_parallel_size" not in experts


def test_slices_of_a_card_are_never_joined() -> None:
    cards = tuple(replace(g, mig=True) for g in machine(7).gpus)
    for kind in ("vllm", "sglang"):
        on = replace(machine(7), gpus=cards)
        found = candidates(LLAMA_8B, on, cards, kind=kind, version="0.33.0")
        assert {x.world for x in found} == {1}


def test_sglang_refuses_tensor_ranks_with_uneven_memory() -> None:
    first, second = machine(2).gpus
    two = Layout(tensor=2, devices=(first, replace(second, free_bytes=first.free_bytes * 4 // 5)))
    assert "uneven_free_memory" in {x.code for x in illegal(LLAMA_8B, two, "sglang", "0.5.23", machine(2))}
    for kind, layout in (("vllm", two), ("sglang", replace(two, tensor=1, data=2))):
        found = illegal(LLAMA_8B, layout, kind, "0.33.0", machine(2))
        assert "uneven_free_memory" not in {x.code for x in found}


def test_three_cards_share_a_model_whose_heads_divide_by_three() -> None:
    found = looked_at(CARDS["smollm"], machine(3))
    assert (3, 1, 1, 1) in sizes(found)


def test_levers_that_somebody_set_are_kept() -> None:
    on = load("8xh100")
    assert {x.tensor for x in looked_at(LLAMA_8B, on, tensor_parallel_size=4)} == {4}
    assert {x.data for x in looked_at(LLAMA_8B, on, data_parallel_size=2)} == {2}
    assert {x.pipeline for x in looked_at(LLAMA_8B, on, pipeline_parallel_size=2)} == {2}
    assert {x.expert for x in looked_at(DEEPSEEK, on, expert_parallel=True)} == {True}
    assert {x.expert for x in looked_at(DEEPSEEK, on, expert_parallel=False)} == {False}
    assert {x.attention_data for x in looked_at(DEEPSEEK, on, attention_data_parallel_size=4)} == {4}
    assert sizes(looked_at(LLAMA_8B, on, tensor_parallel_size=2, data_parallel_size=3)) == {(2, 1, 3, 1)}


@pytest.mark.parametrize(
    "levers",
    [
        {"tensor_parallel_size": 3},
        {"tensor_parallel_size": 64},
        {"data_parallel_size": 9},
        {"expert_parallel": True},
        {"attention_data_parallel_size": 2},
        {"pipeline_parallel_size": 33},
    ],
)
def test_levers_that_allow_nothing_legal_come_back_to_be_explained(levers: dict[str, Any]) -> None:
    (only,) = looked_at(LLAMA_8B, MACHINE, **levers)
    assert illegal(LLAMA_8B, only, "vllm", "0.33.0", MACHINE)
    assert with_levers(only, levers) == only


def test_attention_copies_alone_mean_spread_experts() -> None:
    (only,) = looked_at(
        replace(DEEPSEEK, heads=127), MACHINE, attention_data_parallel_size=8, tensor_parallel_size=2
    )
    assert only.expert


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("on", names())
def test_candidates_are_legal_placed_distinct_and_few(on: str, name: str, kind: str) -> None:
    m = load(on)
    found = looked_at(CARDS[name], m, kind)
    assert 1 <= len(found) <= MOST
    assert len(found) == len(set(found))
    for x in found:
        assert not illegal(CARDS[name], x, kind, "0.33.0", m)
        if m.gpus:
            assert len(x.devices) * x.nodes == x.world
            assert len({g.uuid for g in x.devices}) == len(x.devices)
            assert (x.link is None) == (x.tensor == 1 or x.tensor > len(x.devices))
    ordered = [price(x) is not None for x in found]
    assert ordered == sorted(ordered)


@settings(max_examples=150, deadline=None)
@given(
    heads=st.sampled_from([7, 8, 9, 12, 14, 16, 20, 24, 28, 32, 40, 56, 64, 96, 128]),
    group=st.sampled_from([1, 2, 4, 7, 8]),
    layers=st.integers(1, 100),
    experts=st.sampled_from([None, 4, 8, 60, 64, 128, 256]),
    inner=st.integers(1, 300).map(lambda n: n * 64),
    config=st.sampled_from([None, FP8, {"quant_method": "awq", "group_size": 128}]),
    count=st.integers(1, 10),
    link=st.sampled_from(["nvlink", "pcie-switch", "pcie-host", "cross-socket", "unknown"]),
    nodes=st.sampled_from([1, 1, 2, 3]),
    kind=st.sampled_from(["vllm", "sglang"]),
)
def test_whatever_the_model_something_legal_is_found_or_nothing_is(
    heads: int,
    group: int,
    layers: int,
    experts: int | None,
    inner: int,
    config: dict[str, Any] | None,
    count: int,
    link: LinkKind,
    nodes: int,
    kind: str,
) -> None:
    c = card(
        heads=heads,
        kv_heads=max(1, heads // group),
        layers=layers,
        intermediate_size=inner,
        experts=experts,
        experts_per_token=2 if experts else None,
        moe_intermediate_size=inner if experts else None,
        quantization_config=config,
    )
    m = machine(count, link, nodes)
    found = candidates(c, m, m.gpus, kind=kind, version="0.20.0")
    # one device is always legal
    assert found[0].world == 1
    assert all(not illegal(c, x, kind, "0.20.0", m) for x in found)
    for size in range(1, count + 1):
        refusals = illegal(c, Layout(tensor=size), kind, "0.20.0", m)
        assert all(i.message and i.lever for i in refusals)
        for i in refusals:
            assert i.code not in {
                j.code for j in illegal(c, with_levers(Layout(tensor=size), i.change), kind, "0.20.0", m)
            }


def test_busy_and_other_cards_are_not_placed() -> None:
    cards = list(machine(4).gpus)
    cards[1] = replace(cards[1], free_bytes=10 * GIB)
    cards[3] = replace(cards[3], name="NVIDIA A100-SXM4-80GB")
    m = replace(machine(4), gpus=tuple(cards))
    found = usable(m)
    assert isinstance(found, Usable)
    used = {g.index for x in candidates(LLAMA_8B, m, found, kind="vllm", version="0.33.0") for g in x.devices}
    assert used == {0, 2}


def test_a_version_may_be_numbers_or_text() -> None:
    fp8 = replace(QWEN3_235B, quantization_config=FP8)
    layout = Layout(tensor=8)
    assert illegal(fp8, layout, "vllm", (0, 25, 1), MACHINE)
    assert not illegal(fp8, layout, "vllm", (0, 32, 1), MACHINE)
    assert not illegal(fp8, layout, "vllm", "0.32.0+cpu", MACHINE)
    assert not illegal(fp8, layout, "vllm", "unknown", MACHINE)
