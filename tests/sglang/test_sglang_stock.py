import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.sglang.captured import captured
from orchestrator.engines.sglang.stock import memory_defaults, requests_default, stock
from orchestrator.machine.machine import Gpu

NEWEST = captured("0.5.23")
H100 = Gpu(0, "GPU-a", "H100", 81559 << 20, 81559 << 20, "9.0")
OBSERVED = [
    json.loads(line)
    for line in Path(__file__)
    .with_name("memory-defaults-0.5.23.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
"""What SGLang 0.5.23 resolved for GPUs of these sizes, on a machine where prefill graphs are off."""


@pytest.mark.parametrize("row", OBSERVED, ids=lambda r: f"{r['memory_mib']}-{r['given']}")
def test_step_graphs_and_static_share_are_what_sglang_resolves(row: dict[str, Any]) -> None:
    found = memory_defaults("0.5.23", row["memory_mib"], prefill_graphs=False, **row["given"])
    assert (found.chunked_prefill_size, found.cuda_graph_max_bs, found.mem_fraction_static) == (
        row["chunked_prefill_size"], row["cuda_graph_max_bs"], row["mem_fraction_static"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "memory_mib", "tensor", "expected"),
    [
        # 0.5.1: 2.8 GiB and a tenth a rank; 0.5.4: 16 graphs; 0.5.6 to 0.5.18: 24; from 0.5.20: 48 and 4096
        ("0.5.1", 24564, 1, (2048, 8, 0.879)),
        ("0.5.4", 24564, 1, (2048, 16, 0.848)),
        ("0.5.9", 24564, 1, (2048, 24, 0.847)),
        ("0.5.9", 24564, 4, (2048, 80, 0.827)),
        ("0.5.20", 24564, 4, (4096, 160, 0.679)),
        ("0.5.9", 81559, 1, (8192, 256, 0.835)),
        ("0.5.9", 81559, 8, (8192, 512, 0.818)),
        ("0.5.1", 183359, 8, (16384, None, 0.821)),
    ],
)
def test_older_versions_had_other_steps_and_shares(
    version: str, memory_mib: int, tensor: int, expected: tuple[int, int | None, float]
) -> None:
    found = memory_defaults(version, memory_mib, tensor=tensor)
    assert (found.chunked_prefill_size, found.cuda_graph_max_bs, found.mem_fraction_static) == expected


def test_prefill_graphs_and_drafts_are_reserved_for_where_the_version_does() -> None:
    def reserved(version: str, **more: Any) -> float:
        mib = memory_defaults(version, 46068, **more).reserved_mib
        assert mib is not None
        return mib

    assert reserved("0.5.12") - reserved("0.5.12", prefill_graphs=False) == 8 * 50
    assert reserved("0.5.12", mla=True) - reserved("0.5.12", prefill_graphs=False) == 1536
    assert reserved("0.5.9", prefill_graphs=None) == reserved("0.5.9", prefill_graphs=False)
    assert reserved("0.5.9", method="EAGLE3") - reserved("0.5.9") == 2048
    assert reserved("0.5.9", method="STANDALONE") - reserved("0.5.9") == 6144
    assert reserved("0.5.9", method="NGRAM") == reserved("0.5.9")
    assert reserved("0.5.12", method="EAGLE") - reserved("0.5.12") == 4096
    assert reserved("0.5.23", method="EAGLE") == reserved("0.5.23")
    assert reserved("0.5.23") - reserved("0.5.23", cuda_graph="off") == 2 * 32 + 8 * 50


def test_a_gpu_of_unknown_memory_has_fixed_figures() -> None:
    found = memory_defaults("0.5.23", None)
    assert (found.chunked_prefill_size, found.mem_fraction_static, found.reserved_mib) == (4096, 0.95, None)
    assert memory_defaults("0.5.9", None).mem_fraction_static == 0.88


def test_stock_values_are_the_parsers_and_those_of_the_gpu() -> None:
    assert stock("scheduling_policy", NEWEST) == "fcfs"
    assert stock("stream_interval", NEWEST) == 1
    assert stock("kv_cache_dtype", NEWEST) == "auto"
    assert stock("max_num_batched_tokens", NEWEST) is None
    assert stock("max_num_batched_tokens", NEWEST, gpu=H100) == 8192
    assert (
        stock("mem_fraction_static", NEWEST, gpu=H100) == memory_defaults("0.5.23", 81559).mem_fraction_static
    )
    assert stock("max_model_len", NEWEST, gpu=H100) is None
    assert stock("prefix_caching", NEWEST) is True
    assert stock("kv_offload_bytes", NEWEST) == 0


def test_requests_at_once_follow_the_pool_and_speculation_cuts_them() -> None:
    assert requests_default(1_000_000, 8192) == 4096
    assert requests_default(1_000_000, 131072) == 3906
    assert requests_default(3000, 8192) == 1500
    assert requests_default(1_000_000, 8192, speculating=True) == 48
