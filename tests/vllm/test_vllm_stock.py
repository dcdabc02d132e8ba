from typing import Any

import pytest

from orchestrator.engines.base import RenderRequest
from orchestrator.engines.vllm.captured import captured, versions
from orchestrator.engines.vllm.render import render
from orchestrator.engines.vllm.stock import batch_sizes, stock
from orchestrator.levers import LEVERS
from orchestrator.machine.machine import Gpu
from orchestrator.plan import Decision

GIB = 1 << 30


def gpu(name: str, gib: float, capability: str = "9.0") -> Gpu:
    return Gpu(0, "GPU-0", name, int(gib * GIB), int(gib * GIB), capability)


H100 = gpu("NVIDIA H100 80GB HBM3", 80)
A100 = gpu("NVIDIA A100-SXM4-80GB", 80, "8.0")
L4 = gpu("NVIDIA L4", 22.5, "8.9")
H200 = gpu("NVIDIA H200", 141)
B200 = gpu("NVIDIA B200", 180, "10.0")
GB10 = gpu("NVIDIA GB10", 119, "12.1")


@pytest.mark.parametrize(
    ("version", "card", "tokens", "seqs"),
    [
        ("0.10.0", H100, 8192, 1024), ("0.33.0", H100, 8192, 1024), ("0.33.0", H200, 8192, 1024),
        ("0.10.0", A100, 2048, 256), ("0.33.0", A100, 2048, 256), ("0.33.0", L4, 2048, 256),
        ("0.27.1", B200, 8192, 1024), ("0.32.0", B200, 16384, 1024), ("0.33.0", B200, 16384, 1024),
        ("0.32.0", GB10, 8192, 1024), ("0.33.0", GB10, 2048, 256),
    ],
)  # fmt: skip
def test_batch_sizes_go_by_the_gpu_and_the_release(version: str, card: Gpu, tokens: int, seqs: int) -> None:
    i = captured(version)
    assert batch_sizes(i, card) == (tokens, seqs)
    assert stock("max_num_batched_tokens", i, card) == tokens
    assert stock("max_num_seqs", i, gpu=card) == seqs


def test_batch_sizes_without_a_gpu_are_known_on_a_cpu_alone() -> None:
    assert stock("max_num_seqs", captured("0.33.0")) is None
    assert stock("max_num_seqs", captured("0.32.0", "cpu")) == 128
    assert stock("max_num_batched_tokens", captured("0.32.0", "cpu")) == 2048


def by_version(lever: str, device: str = "cuda") -> list[Any]:
    return [stock(lever, captured(v, device)) for v in versions()]


def test_defaults_follow_the_release() -> None:
    assert by_version("gpu_memory_utilization") == [0.9] * 3 + [0.92] * 4
    assert by_version("async_scheduling") == [False] * 2 + [True] * 5
    assert by_version("async_scheduling", "cpu") == [False] * 7
    assert by_version("performance_mode") == [None] * 3 + ["balanced"] * 4
    assert by_version("block_size", "cpu") == [128] * 7


def test_what_vllm_computes_from_model_and_memory_has_no_stock_value() -> None:
    for lever in ("max_model_len", "kv_cache_bytes", "quantization", "gpu_layers"):
        assert by_version(lever) == [None] * 7


def test_the_rest_is_the_same_everywhere() -> None:
    fixed = {
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1, "dtype": "auto",
        "chunked_prefill": True, "prefix_caching": True, "kv_cache_dtype": "auto", "stream_interval": 1,
        "max_queued_requests": 0, "kv_unified": True, "front": "none", "replicas": 1,
        "scheduling_policy": "fcfs", "long_prefill_token_threshold": 0, "speculative": "off",
        "cuda_graph": "auto", "kv_offload_bytes": 0, "shutdown_timeout_s": 0, "trust_remote_code": False,
        "expert_parallel": False,
    }  # fmt: skip
    for lever, value in fixed.items():
        assert by_version(lever) == [value] * 7


def test_a_lever_at_its_stock_value_can_always_be_said() -> None:
    for version in versions():
        i = captured(version)
        for lever in LEVERS:
            value = stock(lever, i, H100)
            made = render(RenderRequest({lever: Decision(value, "", "", stock=True)}, i, "/m", "m"))
            assert (made.violations, made.not_expressible) == ((), ()), (version, lever)
