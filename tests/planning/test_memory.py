"""Memory's formulas against what engines printed."""

import pytest
from planning_inputs import CARDS, GIB, card

from orchestrator.model_card.card import HybridState
from orchestrator.planning.llamacpp import memory
from orchestrator.planning.llamacpp.memory import Sizing

MIB = 2**20


def sizing(slots: int, context: int, *, unified: bool = False, kv: str = "f16", ubatch: int = 512) -> Sizing:
    pool = context if unified else slots * context
    return Sizing(context, slots, pool, unified, kv, True, 2048, ubatch)


@pytest.mark.parametrize(
    ("slots", "context", "unified", "kv", "mib"),
    [
        (1, 512, False, "f16", 11.25),
        (1, 4096, False, "f16", 90.0),
        (4, 1024, False, "q8_0", 47.8125),
        (4, 8192, False, "f16", 720.0),
        (4, 32768, True, "f16", 720.0),
        (3, 512, False, "f16", 33.75),
    ],
)
def test_kv_is_what_llama_cpp_logged_for_smollm2(
    slots: int, context: int, unified: bool, kv: str, mib: float
) -> None:
    assert memory.kv_bytes(card(), sizing(slots, context, unified=unified, kv=kv)) == mib * MIB


def test_sliding_layers_keep_their_window_only() -> None:
    """gpt-oss-120b, 4 sequences over one cache of 65,536 cells: 2304 MiB full, 36 MiB in 1024 cells."""
    one = sizing(4, 65536, unified=True)
    assert memory.sliding_cells(CARDS["sliding"], one) == 1024
    assert memory.kv_bytes(CARDS["sliding"], one) == (2304 + 36) * MIB


def test_sliding_layers_of_separate_caches_each_keep_a_window() -> None:
    each = sizing(4, 16384)
    cells = memory.padded(128 + 512)
    per_cell = memory.kv_bytes_per_token(CARDS["sliding"], "f16", sliding=True)
    full = memory.kv_bytes_per_token(CARDS["sliding"], "f16") * 4 * 16384
    assert memory.kv_bytes(CARDS["sliding"], each) == full + 4 * cells * per_cell


def test_mla_keeps_one_latent_a_token() -> None:
    """DeepSeek-V3 at 32,768 tokens of f16: 2196 MiB."""
    assert memory.kv_bytes(CARDS["mla"], sizing(1, 32768)) == 2196 * MIB


def test_layers_without_attention_keep_no_kv() -> None:
    assert memory.kv_bytes_per_token(CARDS["hybrid"], "f16") == 12 * 2 * (256 + 256) * 2


def test_an_unknown_state_is_a_margin_and_says_so() -> None:
    size, known = memory.state_bytes(CARDS["hybrid"], 4)
    assert (size, known) == (4 * 128 * MIB, False)
    told = card(hybrid=HybridState(layers=10, state_bytes_per_layer=1000))
    assert memory.state_bytes(told, 2) == (20_000, True)


@pytest.mark.parametrize(
    ("ubatch", "cells", "unified", "flash", "logged_mib"),
    [
        (64, 512, False, True, 1.89),
        (512, 8192, False, True, 22.64),
        (2048, 4096, False, True, 74.57),
        (512, 65536, True, True, 78.64),
        (512, 16384, False, False, 327.51),
    ],
)
def test_working_room_is_never_below_what_was_logged(
    ubatch: int, cells: int, unified: bool, flash: bool, logged_mib: float
) -> None:
    z = Sizing(cells, 1, cells, unified, "f16", flash, 2048, ubatch)
    assert logged_mib * MIB < memory.compute_bytes(card(), z) < (logged_mib + 200 * ubatch / 512) * MIB


def test_a_shared_pool_shrinks_with_its_slots_but_holds_one_request() -> None:
    shared = Sizing(8192, 4, 16384, True, "f16", True, 512, 512)
    assert shared.with_slots(2).pool_tokens == 8192
    assert shared.with_slots(1) == Sizing(8192, 1, 8192, False, "f16", True, 512, 512)
    assert shared.with_context(4096).pool_tokens == 8192


def test_the_margin_for_others_is_bounded() -> None:
    assert memory.os_margin_bytes(GIB) == 128 * MIB
    assert memory.os_margin_bytes(512 * GIB) == 2 * GIB


def test_every_type_name_has_bytes() -> None:
    assert memory.cache_type("float16") == "f16"
    assert memory.cache_type("no such type") == "f16"
    assert len(memory.QUANTIZED) == 6
