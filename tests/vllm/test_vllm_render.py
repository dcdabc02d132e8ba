import itertools
import json
import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.base import Installation, Rendered, RenderRequest
from orchestrator.engines.vllm import arguments
from orchestrator.engines.vllm.captured import captured, versions
from orchestrator.engines.vllm.render import render
from orchestrator.levers import LEVERS
from orchestrator.plan import Decision

NEW = captured("0.33.0")
CPU = captured("0.32.0", "cpu")
GIB = 1 << 30


def rendered(
    installation: Installation = NEW,
    *,
    stock: tuple[str, ...] = (),
    engine_args: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    model: str = "/m/x",
    api_key_file: str | None = None,
    **levers: Any,
) -> Rendered:
    decided = {k: Decision(v, "because", "rule", stock=k in stock) for k, v in levers.items()}
    return render(
        RenderRequest(
            decided, installation, model, "small", engine_args=engine_args, env=env or {},
            api_key_file=api_key_file,
        )
    )  # fmt: skip


def line(made: Rendered) -> str:
    assert made.violations == ()
    return " ".join(made.processes[0].argv) + " "


def codes(made: Rendered) -> list[str]:
    return [v.code for v in made.violations]


def test_a_line_says_model_name_and_address_and_nothing_else_unasked() -> None:
    made = rendered()
    assert line(made) == ("vllm serve /m/x --served-model-name small --host 127.0.0.1 --port {port:http} ")
    process = made.processes[0]
    assert (process.role, process.ports, process.bound) == ("server", {"http": None}, "127.0.0.1")
    assert process.env == {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}


def test_values_that_ask_for_what_every_release_does_have_no_flag() -> None:
    made = rendered(
        tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, expert_parallel=False,
        attention_data_parallel_size=1, kv_cache_dtype="auto", dtype="auto", speculative="off",
        cuda_graph="auto", scheduling_policy="fcfs", stream_interval=1, performance_mode="balanced",
        long_prefill_token_threshold=0, max_queued_requests=0, kv_offload_bytes=0, shutdown_timeout_s=0,
        trust_remote_code=False, quantization=None, tool_call_parser=None, flash_attention="auto",
        async_scheduling=None, distributed_executor_backend="auto", gpu_layers=None, kv_unified=None,
        mem_fraction_static=None, disaggregation="off", replicas=1, front="auto",
    )  # fmt: skip
    assert made == rendered()


def test_every_lever_of_the_table_has_its_flag() -> None:
    made = rendered(
        tensor_parallel_size=4, pipeline_parallel_size=2, max_model_len=8192, max_num_seqs=64,
        max_num_batched_tokens=2048, long_prefill_token_threshold=1024, gpu_memory_utilization=0.9,
        block_size=32, stream_interval=4, shutdown_timeout_s=30, max_queued_requests=100,
        kv_cache_bytes=GIB, kv_cache_dtype="fp8", kv_offload_bytes=16 * GIB, chunked_prefill=True,
        prefix_caching=False, async_scheduling=True, cuda_graph=64, quantization="awq", dtype="bf16",
        performance_mode="throughput", distributed_executor_backend="mp", reasoning_parser="qwen3",
        chat_template="/t.jinja", scheduling_policy="priority", tool_call_parser="hermes",
        trust_remote_code=True,
    )  # fmt: skip
    for part in (
        "--tensor-parallel-size 4", "--pipeline-parallel-size 2", "--max-model-len 8192",
        "--max-num-seqs 64", "--max-num-batched-tokens 2048", "--long-prefill-token-threshold 1024",
        "--gpu-memory-utilization 0.9", "--block-size 32", "--stream-interval 4", "--shutdown-timeout 30",
        "--max-num-queued-reqs 100", "--kv-cache-memory-bytes 1073741824", "--kv-cache-dtype fp8",
        "--kv-offloading-size 16", "--enable-chunked-prefill", "--no-enable-prefix-caching",
        "--async-scheduling", "--max-cudagraph-capture-size 64", "--quantization awq", "--dtype bfloat16",
        "--performance-mode throughput", "--distributed-executor-backend mp", "--reasoning-parser qwen3",
        "--chat-template /t.jinja", "--scheduling-policy priority",
        "--tool-call-parser hermes --enable-auto-tool-choice", "--trust-remote-code",
    ):  # fmt: skip
        assert f" {part} " in line(made)
    assert made.not_expressible == ()


def test_what_a_release_lacks_is_not_expressible_and_never_dropped() -> None:
    asked = {
        "kv_cache_bytes": GIB, "stream_interval": 4, "kv_offload_bytes": GIB, "shutdown_timeout_s": 30,
        "performance_mode": "throughput", "max_queued_requests": 8,
    }  # fmt: skip
    absent = {v: set(rendered(captured(v), **asked).not_expressible) for v in versions()}
    assert absent["0.10.0"] == set(asked)
    assert absent["0.12.0"] == {"shutdown_timeout_s", "performance_mode", "max_queued_requests"}
    assert absent["0.20.2"] == absent["0.27.1"] == {"max_queued_requests"}
    assert absent["0.32.0"] == absent["0.33.0"] == set()


def test_graphs_are_spelled_as_the_release_does() -> None:
    assert " --cuda-graph-sizes 64 " in line(rendered(captured("0.10.0"), cuda_graph=64))
    assert " --max-cudagraph-capture-size 64 " in line(rendered(captured("0.12.0"), cuda_graph=64))
    for off in ("off", False):
        assert " --enforce-eager " in line(rendered(cuda_graph=off))


def test_offloading_names_a_backend_where_the_release_has_none_of_its_own() -> None:
    old = line(rendered(captured("0.12.0"), kv_offload_bytes=3 * GIB // 2))
    assert " --kv-offloading-size 1.5 --kv-offloading-backend native " in old
    assert "backend" not in line(rendered(captured("0.16.0"), kv_offload_bytes=GIB))


def test_attention_copies_are_data_parallel_with_spread_experts() -> None:
    made = line(rendered(attention_data_parallel_size=8, expert_parallel=True))
    assert " --data-parallel-size 8 --enable-expert-parallel " in made
    whole = line(rendered(data_parallel_size=4))
    assert " --data-parallel-size 4 " in whole
    assert "--enable-expert-parallel" not in whole
    assert codes(rendered(data_parallel_size=2, attention_data_parallel_size=2)) == [
        "two_data_parallel_sizes"
    ]


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ({"method": "ngram", "num_tokens": 4, "min_ngram": 2, "max_ngram": 5},
         {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5}),
        ({"method": "draft", "model": "/d", "num_tokens": 3, "draft_tensor_parallel_size": 1},
         {"method": "draft_model", "model": "/d", "num_speculative_tokens": 3,
          "draft_tensor_parallel_size": 1}),
        ({"method": "eagle3", "model": "a/b", "num_tokens": 3},
         {"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}),
        ({"method": "mtp", "num_tokens": 1}, {"method": "mtp", "num_speculative_tokens": 1}),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": 2.0},
         {"method": "suffix", "suffix_decoding_max_spec_factor": 2.0}),
        ("suffix", {"method": "suffix"}),
    ],
)  # fmt: skip
def test_speculation_is_one_json_object(asked: Any, config: dict[str, Any]) -> None:
    argv = rendered(speculative=asked).processes[0].argv
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == config


def test_speculation_keeps_to_the_releases_methods_and_keys() -> None:
    def config(version: str, **asked: Any) -> Any:
        argv = rendered(captured(version), speculative=asked).processes[0].argv
        return json.loads(argv[argv.index("--speculative-config") + 1])

    assert config("0.10.0", method="mtp", num_tokens=1)["method"] == "deepseek_mtp"
    old = rendered(captured("0.10.0"), speculative={"method": "suffix", "num_tokens": 8})
    assert codes(old) == ["speculative_method"]
    assert "ngram" in old.violations[0].message
    assert codes(rendered(speculative={"method": "medusa", "model": "x"})) == ["speculative_method"]
    asked = {"method": "ngram", "num_tokens": 4, "disable_by_batch_size": 8}
    assert config("0.16.0", **asked)["disable_by_batch_size"] == 8
    for version in ("0.20.2", "0.33.0"):
        assert rendered(captured(version), speculative=asked).not_expressible == (
            "speculative.disable_by_batch_size",
        )
    assert rendered(speculative={"method": "eagle", "model": "x", "topk": 4}).not_expressible == (
        "speculative.topk",
    )


def test_a_value_that_the_release_does_not_offer_is_refused_with_those_it_does() -> None:
    made = rendered(captured("0.12.0"), kv_cache_dtype="fp16", block_size=24)
    assert codes(made) == ["block_size_not_offered", "kv_cache_dtype_not_offered"]
    assert "fp8_e4m3" in made.violations[1].message
    assert " --kv-cache-dtype float16 " in line(rendered(captured("0.20.2"), kv_cache_dtype="fp16"))
    assert codes(rendered(kv_cache_dtype="q8_0")) == ["kv_cache_dtype_not_offered"]
    assert codes(rendered(captured("0.32.0"), tool_call_parser="nope")) == ["tool_call_parser_not_offered"]
    with_plugin = rendered(
        captured("0.32.0"), tool_call_parser="mine", engine_args=("--tool-parser-plugin", "/p.py")
    )
    assert "--tool-call-parser mine " in line(with_plugin)


def test_words_of_other_engines_are_not_expressible_unless_they_ask_for_nothing() -> None:
    asked = {
        "gpu_layers": 8, "ubatch_tokens": 256, "cache_reuse_tokens": 64, "flash_attention": "off",
        "mem_fraction_static": 0.8, "kv_cache_tokens": 4096, "scheduling_policy": "shortest", "threads": 4,
    }  # fmt: skip
    made = rendered(stock=("gpu_layers",), **asked)
    assert set(made.not_expressible) == {
        "ubatch_tokens", "cache_reuse_tokens", "mem_fraction_static", "kv_cache_tokens", "scheduling_policy",
        "threads",
    }  # fmt: skip
    # the same pool, in bytes
    assert rendered(kv_cache_tokens=4096, kv_cache_bytes=GIB).not_expressible == ()


def test_devices_are_made_visible_by_uuid() -> None:
    env = rendered(device_ids=["GPU-a", "MIG-b"]).processes[0].env
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-a,MIG-b"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    rocm = rendered(captured("0.33.0", "rocm"), device_ids=["GPU-1"]).processes[0].env
    assert rocm["ROCR_VISIBLE_DEVICES"] == "GPU-1"
    assert "CUDA_VISIBLE_DEVICES" not in rendered(device_ids="auto").processes[0].env


def test_an_entrys_environment_does_not_overrule_the_plans_devices() -> None:
    entry = replace(NEW, env={"CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO"})
    env = rendered(entry, device_ids=["GPU-a"], env={"A": "1"}).processes[0].env
    assert (env["CUDA_VISIBLE_DEVICES"], env["NCCL_DEBUG"], env["A"]) == ("GPU-a", "INFO", "1")


def test_a_model_that_has_to_be_fetched_is_not_offline() -> None:
    assert "HF_HUB_OFFLINE" not in rendered(model="org/name").processes[0].env
    draft = {"method": "eagle3", "model": "org/draft", "num_tokens": 3}
    assert "HF_HUB_OFFLINE" not in rendered(speculative=draft).processes[0].env
    assert "HF_HUB_OFFLINE" in rendered(speculative=draft | {"model": "/d"}).processes[0].env


def test_a_cpus_kv_size_is_exact_where_the_release_takes_bytes() -> None:
    made = rendered(CPU, kv_cache_bytes=GIB + 1, threads=2)
    assert f" --kv-cache-memory-bytes {GIB + 1} " in line(made)
    env = made.processes[0].env
    assert "VLLM_CPU_KVCACHE_SPACE" not in env
    assert (env["VLLM_CPU_OMP_THREADS_BIND"], env["OMP_NUM_THREADS"]) == ("nobind", "2")
    assert made.not_expressible == ()


def test_an_older_cpu_release_takes_whole_gib_by_its_variable() -> None:
    old = captured("0.27.1", "cpu")
    made = rendered(old, kv_cache_bytes=2 * GIB)
    assert "--kv-cache-memory-bytes" not in line(made)
    assert made.processes[0].env["VLLM_CPU_KVCACHE_SPACE"] == "2"
    for size, instead in ((2 * GIB + 1, "2GiB"), (GIB // 2, "1GiB")):
        refused = rendered(old, kv_cache_bytes=size)
        assert codes(refused) == ["kv_cache_bytes"]
        assert instead in refused.violations[0].remedy


def test_a_cpu_is_never_left_to_take_all_memory() -> None:
    assert codes(rendered(CPU)) == ["cpu_kv_cache_unset"]
    assert " --gpu-memory-utilization 0.3 " in line(rendered(CPU, gpu_memory_utilization=0.3))


def test_threads_of_a_cpu_are_shared_by_its_ranks() -> None:
    made = rendered(CPU, kv_cache_bytes=GIB, threads=5, tensor_parallel_size=2)
    assert made.processes[0].env["OMP_NUM_THREADS"] == "2"


def test_a_key_is_neither_on_the_line_nor_read_from_a_file() -> None:
    made = rendered(api_key_file="/k")
    assert codes(made) == ["api_key_file_unknown"]
    assert "VLLM_API_KEY" in made.violations[0].remedy
    assert "/k" not in " ".join(made.processes[0].argv)


def test_a_broken_installation_is_one_violation() -> None:
    broken = Installation(
        "v", "vllm", "", ("/v", "serve"), (), extras={"broken": "no metadata", "remedy": "make it"}
    )
    made = rendered(broken, engine_args=("--nope",))
    assert [(v.code, v.message, v.remedy) for v in made.violations] == [
        ("engine_broken", "no metadata", "make it")
    ]


VALUES: dict[str, list[Any]] = {
    "tensor_parallel_size": [1, 2, 8], "pipeline_parallel_size": [1, 2], "data_parallel_size": [1, 4],
    "attention_data_parallel_size": [1, 8], "expert_parallel": [True, False, "auto", None],
    "max_model_len": [None, 4096, 131072], "max_num_seqs": [None, 1, 1024],
    "max_num_batched_tokens": [None, 256, 8192], "chunked_prefill": [None, True, False],
    "long_prefill_token_threshold": [None, 0, 2048], "gpu_memory_utilization": [None, 0.5, 0.92],
    "kv_cache_bytes": [None, GIB, 123456789], "kv_cache_dtype": [None, "auto", "fp8", "fp16", "q8_0"],
    "prefix_caching": [None, True, False], "kv_offload_bytes": [None, 0, 16 * GIB, GIB + 1],
    "speculative": [
        None, "off", "ngram", {"method": "ngram", "num_tokens": 4, "min_ngram": 2, "max_ngram": 4},
        {"method": "suffix", "num_tokens": 8}, {"method": "draft_model", "model": "/d", "num_tokens": 3},
        {"method": "mtp", "num_tokens": 1}, {"method": "eagle3", "model": "a/b", "num_tokens": 3, "topk": 4},
        {"method": "medusa", "model": "x", "num_tokens": 2},
    ],
    "quantization": [None, "fp8", "awq"], "dtype": [None, "auto", "bf16", "float16"],
    "block_size": [None, 16, 32, 24], "cuda_graph": [None, "auto", "off", 64, True, False],
    "scheduling_policy": [None, "fcfs", "priority", "shortest"], "max_queued_requests": [None, 0, 64],
    "stream_interval": [None, 1, 4], "performance_mode": [None, "balanced", "throughput", "interactivity"],
    "async_scheduling": [None, True, False], "distributed_executor_backend": [None, "auto", "mp", "ray"],
    "device_ids": [None, "auto", [], ["GPU-a", "GPU-b"]], "threads": [None, 2],
    "tool_call_parser": [None, False, "hermes"], "reasoning_parser": [None, False, "qwen3"],
    "chat_template": [None, "auto", "/t.jinja"], "trust_remote_code": [None, True, False],
    "shutdown_timeout_s": [None, 0, 30], "gpu_layers": [None, 8], "ubatch_tokens": [None, 256],
    "kv_cache_tokens": [None, 5000], "kv_unified": [None, True, False], "cache_reuse_tokens": [None, 0, 64],
    "flash_attention": [None, "auto", "on", "off"], "mem_fraction_static": [None, 0.8],
    "replicas": [1, 2], "disaggregation": [None, "off"], "front": ["auto", "none", "router"],
}  # fmt: skip


def sweep() -> list[dict[str, Any]]:
    """Each value of each lever alone, and many mixtures of all."""
    alone = [{lever: v} for lever, values in VALUES.items() for v in values]
    chosen = random.Random(20)
    return alone + [
        {lever: chosen.choice(v) for lever, v in VALUES.items() if chosen.random() < 0.6} for _ in range(60)
    ]


def unknown_to(installation: Installation, table: Installation) -> list[str]:
    """Everything a sweep of lines rendered for one installation holds that a table would not take."""
    found = []
    for levers in sweep():
        made = rendered(installation, **levers)
        words = [w.replace("{port:http}", "8000") for w in made.processes[0].argv[len(installation.argv) :]]
        parsed = arguments.parse(words, table)
        shortened = [g.word for g in parsed.given if g.word != g.spelling]
        if not parsed.ok or shortened or parsed.positionals != ("/m/x",):
            found.append(f"{levers} -> {words}: {parsed.unknown} {parsed.bad} {parsed.ambiguous}")
    return found


INSTALLATIONS = [
    captured(v, device) for v, device in itertools.product((*versions(), "0.15.1"), ("cuda", "cpu"))
]


def test_the_sweep_has_every_lever() -> None:
    assert set(VALUES) == set(LEVERS)


@pytest.mark.parametrize("installation", INSTALLATIONS, ids=lambda i: f"{i.version}-{i.extras['device']}")
def test_no_line_has_a_flag_or_a_value_that_its_version_does_not_take(installation: Installation) -> None:
    assert unknown_to(installation, installation) == []


@pytest.mark.parametrize("flag", ["--max-num-seqs", "--no-enable-prefix-caching", "--stream-interval", "-tp"])
def test_a_table_that_lacks_what_is_rendered_would_be_noticed(flag: str) -> None:
    sabotaged = replace(NEW, flags=tuple(f for f in NEW.flags if flag not in f.spellings))
    assert unknown_to(NEW, sabotaged)
    # and what is rendered for that table keeps to it
    assert unknown_to(sabotaged, sabotaged) == []


@pytest.mark.real_engine
@pytest.mark.full
def test_the_real_parser_takes_every_line_that_is_rendered_for_it() -> None:
    """One interpreter is asked for all of them; some 15 s of imports."""
    python = os.environ.get("LLMSERVE_TEST_VLLM_PYTHON")
    assert python, "set LLMSERVE_TEST_VLLM to what scripts/vllm-cpu prints, and ..._PYTHON to its bin/python"
    lines = [rendered(CPU, **levers).processes[0].argv[len(CPU.argv) + 1 :] for levers in sweep()]
    known = Path(__file__).parent / "parser-0.32.0.jsonl"
    verdicts = [json.loads(text) for text in known.read_text(encoding="utf-8").splitlines()]
    words = [[w.replace("{port:http}", "8000") for w in made] for made in lines]
    asked = "".join(json.dumps(argv) + "\n" for argv in [*words, *(v["argv"] for v in verdicts)])
    out = subprocess.run(
        [python, "-E", str(Path(__file__).parent / "real_parser.py")], input=asked, capture_output=True,
        text=True, timeout=300, check=True, env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
    ).stdout  # fmt: skip
    said = [json.loads(text) for text in out.splitlines()]
    assert len(said) == len(words) + len(verdicts)
    assert [s for s in said[: len(words)] if not s["ok"]] == []
    assert [s["ok"] for s in said[len(words) :]] == [v["ok"] for v in verdicts]


@pytest.mark.parametrize("more", [{"data_parallel_size": 4}, {"attention_data_parallel_size": 4}])
def test_host_memory_for_kv_is_shared_by_the_copies(more: dict[str, int]) -> None:
    assert "--kv-offloading-size 16 " in line(rendered(kv_offload_bytes=64 << 30, **more)) + " "
