import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sglang_lines import SILENT, VALUES, many, rendered, single, words

import orchestrator.engines.sglang
from orchestrator.engines.base import Installation, Rendered, RenderRequest
from orchestrator.engines.sglang import captured
from orchestrator.engines.sglang.captured import versions
from orchestrator.engines.sglang.owned import read
from orchestrator.engines.sglang.render import render
from orchestrator.levers import LEVERS
from orchestrator.plan import Decision

TABLES = Path(orchestrator.engines.sglang.__file__).parent / "flags"
NEWEST = captured.captured("0.5.23")
CPU = captured.captured("0.5.23", "cpu")
OLD = captured.captured("0.5.4")


def line(made: Rendered) -> str:
    assert made.violations == ()
    return " ".join(made.processes[0].argv) + " "


def codes(made: Rendered) -> list[str]:
    return [v.code for v in made.violations]


def table(version: str) -> dict[str, dict[str, Any]]:
    """A version's flags by spelling, straight from the file."""
    rows = json.loads((TABLES / f"{version}.json").read_text(encoding="utf-8"))["flags"]
    return {s: r for r in rows for s in r["spellings"]}


def not_in(listed: dict[str, dict[str, Any]], given: list[str]) -> list[str]:
    """Flags that are not listed by exactly that name, and values that theirs does not offer."""
    wrong, rest = [], list(given)
    while rest:
        name = rest.pop(0)
        row = listed.get(name)
        if row is None:
            wrong.append(name)
        elif row["type"] != "bool":
            value = rest.pop(0)
            if row.get("choices") and value not in row["choices"]:
                wrong.append(f"{name} {value}")
    return wrong


@pytest.mark.parametrize("version", versions())
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_emitted_flag_is_listed_by_its_version_letter_for_letter(version: str, device: str) -> None:
    installation, listed = captured.captured(version, device), table(version)
    for levers in [*single(), *many(60)]:
        given = words(rendered(installation, **levers), installation)
        assert not_in(listed, given) == [], levers
        assert read(given, installation).ok, levers


def test_a_sabotaged_table_is_noticed() -> None:
    listed = table("0.5.23")
    row = listed.pop("--tp-size")
    listed["--tp-size-x"] = row
    given = words(rendered(NEWEST, tensor_parallel_size=2), NEWEST)
    assert not_in(listed, given)[0] == "--tp-size"
    listed = table("0.5.23")
    listed["--kv-cache-dtype"]["choices"].remove("fp8_e4m3")
    assert not_in(listed, words(rendered(NEWEST, kv_cache_dtype="fp8"), NEWEST)) == [
        "--kv-cache-dtype fp8_e4m3"
    ]


@pytest.mark.parametrize("version", versions())
def test_no_lever_is_dropped_without_a_word(version: str) -> None:
    installation = captured.captured(version)
    bare = rendered(installation)
    for levers in single():
        ((lever, value),) = levers.items()
        made = rendered(installation, **levers)
        said = made.processes != bare.processes or made.violations != bare.violations
        said = said or any(name.split(".")[0] == lever for name in made.not_expressible)
        assert said != (value in SILENT.get(lever, ())), levers


def test_the_sweep_has_every_lever_that_an_engine_is_asked_for() -> None:
    elsewhere = {"replicas", "disaggregation", "front"}
    assert set(LEVERS) - elsewhere == set(VALUES)


def test_a_line_always_says_model_name_address_ports_and_metrics() -> None:
    made = rendered(NEWEST)
    assert line(made) == (
        "python -m sglang.launch_server --model-path /m/x --served-model-name small --host 127.0.0.1 "
        "--port {port:http} --nccl-port {port:nccl} --enable-metrics "
    )
    process = made.processes[0]
    assert (process.role, process.ports, process.bound) == (
        "server",
        {"http": None, "nccl": None},
        "127.0.0.1",
    )
    assert process.env == {
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0", "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0", "TMPDIR": "{tmpdir}",
    }  # fmt: skip


def test_whole_copies_take_their_own_internal_ports() -> None:
    made = rendered(NEWEST, data_parallel_size=2)
    assert "--dp-size 2 " in line(made)
    assert "--nccl-port" not in line(made)
    assert made.processes[0].ports == {"http": None}


def test_attention_ranks_are_counted_inside_the_tensor_group_in_each_versions_words() -> None:
    levers: dict[str, Any] = {"tensor_parallel_size": 2, "attention_data_parallel_size": 4}
    assert "--tp-size 8 --attn-dp-size 4 --ep-size 8 " in line(rendered(NEWEST, **levers))
    assert "--tp-size 8 --enable-dp-attention --dp-size 4 --ep-size 8 " in line(rendered(OLD, **levers))
    assert "--ep-size" not in line(rendered(NEWEST, expert_parallel=False, **levers))
    assert "--tp-size 4 --ep-size 4 " in line(rendered(NEWEST, tensor_parallel_size=4, expert_parallel=True))


def test_figures_of_one_rank_are_multiplied_where_sglang_counts_the_group() -> None:
    levers: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "kv_cache_tokens": 9000}
    group = line(rendered(NEWEST, attention_data_parallel_size=4, **levers))
    assert "--max-running-requests 64 --chunked-prefill-size 8192 --max-total-tokens 9000 " in group
    copies = line(rendered(NEWEST, data_parallel_size=4, **levers))
    assert "--max-running-requests 16 --chunked-prefill-size 2048 --max-total-tokens 9000 " in copies
    # up to 0.5.8 the requests were shared among whole copies too
    assert "--max-running-requests 64 --chunked-prefill-size 2048 " in line(
        rendered(OLD, data_parallel_size=4, **levers)
    )


@pytest.mark.parametrize(
    ("levers", "flags"),
    [
        ({"chunked_prefill": False}, "--chunked-prefill-size -1 "),
        ({"chunked_prefill": False, "max_num_batched_tokens": 900},
         "--chunked-prefill-size -1 --max-prefill-tokens 900 "),
        ({"mem_fraction_static": 0.835}, "--mem-fraction-static 0.835 "),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8_e4m3 "),
        ({"prefix_caching": False, "block_size": 16}, "--disable-radix-cache --page-size 16 "),
        ({"kv_offload_bytes": 100 * 10**9, "tensor_parallel_size": 8},
         "--enable-hierarchical-cache --hicache-size 12 "),
        ({"dtype": "fp16", "quantization": "fp8", "trust_remote_code": True},
         "--dtype float16 --quantization fp8 --trust-remote-code "),
        ({"cuda_graph": 64}, "--cuda-graph-max-bs-decode 64 "),
        ({"cuda_graph": "off"},
         "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled "),
        ({"async_scheduling": False}, "--disable-overlap-schedule "),
        ({"scheduling_policy": "fcfs"}, "--schedule-policy fcfs "),
        ({"scheduling_policy": "priority"}, "--enable-priority-scheduling --schedule-policy fcfs "),
        ({"scheduling_policy": "shortest"}, "--schedule-policy shortest-prefill-first "),
        ({"max_queued_requests": 9, "stream_interval": 4}, "--max-queued-requests 9 --stream-interval 4 "),
        ({"tool_call_parser": "qwen25", "reasoning_parser": "qwen3", "chat_template": "/t"},
         "--tool-call-parser qwen25 --reasoning-parser qwen3 --chat-template /t "),
    ],
)  # fmt: skip
def test_levers_have_these_words(levers: dict[str, Any], flags: str) -> None:
    made = rendered(NEWEST, **levers)
    assert line(made).endswith(flags)
    assert made.not_expressible == ()


def test_an_older_version_gets_its_own_words() -> None:
    assert "--cuda-graph-max-bs 64 " in line(rendered(OLD, cuda_graph=64))
    assert "--disable-cuda-graph " in line(rendered(OLD, cuda_graph="off"))
    made = rendered(captured.captured("0.5.12"), cuda_graph="off")
    assert "--disable-cuda-graph --disable-piecewise-cuda-graph " in line(made)
    assert rendered(OLD, scheduling_policy="shortest").not_expressible == ("scheduling_policy",)


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        ({"method": "eagle3", "model": "/h", "num_tokens": 3},
         "EAGLE3 --speculative-draft-model-path /h --speculative-num-steps 3 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 4 "),
        ({"method": "eagle", "model": "/h", "num_tokens": 7, "num_steps": 5, "topk": 4},
         "EAGLE --speculative-draft-model-path /h --speculative-num-steps 5 --speculative-eagle-topk 4 "
         "--speculative-num-draft-tokens 8 "),
        ({"method": "mtp", "num_tokens": 1},
         "NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2 "),
        ({"method": "mtp"}, "NEXTN "),
        ({"method": "draft_model", "model": "/d", "num_tokens": 5},
         "STANDALONE --speculative-draft-model-path /d --speculative-num-steps 5 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 6 "),
        ({"method": "ngram", "num_tokens": 3},
         "NGRAM --speculative-num-draft-tokens 4 --speculative-ngram-max-bfs-breadth 4 "),
        ({"method": "ngram", "num_tokens": 16}, "NGRAM --speculative-num-draft-tokens 17 "),
        ({"method": "dflash", "model": "/h", "num_tokens": 7},
         "DFLASH --speculative-draft-model-path /h --speculative-num-draft-tokens 8 "),
    ],
)  # fmt: skip
def test_speculation_has_steps_width_and_tokens_that_agree(asked: dict[str, Any], flags: str) -> None:
    made = rendered(NEWEST, speculative=asked)
    assert line(made).endswith(f"--speculative-algorithm {flags}")
    assert made.not_expressible == ()


def test_a_figure_that_a_method_does_not_have_is_said() -> None:
    asked = {"method": "ngram", "num_tokens": 4, "prompt_lookup_max": 4}
    assert rendered(NEWEST, speculative=asked).not_expressible == ("speculative.prompt_lookup_max",)
    made = rendered(OLD, speculative=asked)
    assert "--speculative-ngram-max-match-window-size 4 " in line(made)
    assert made.not_expressible == ()
    asked = {"method": "mtp", "num_tokens": 2, "p_min": 0.5}
    assert rendered(NEWEST, speculative=asked).not_expressible == ("speculative.p_min",)


def test_a_method_that_is_not_offered_is_refused_with_those_that_are() -> None:
    made = rendered(OLD, speculative={"method": "medusa", "model": "/h"})
    assert codes(made) == ["speculative_method"]
    assert "EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM" in made.violations[0].message


def test_a_value_that_is_not_offered_is_refused_to_the_user_and_not_expressible_for_a_rule() -> None:
    made = rendered(OLD, kv_cache_dtype="nvfp4")
    assert (made.not_expressible, codes(made)) == (("kv_cache_dtype",), [])
    made = rendered(OLD, kv_cache_dtype="nvfp4", rule="user")
    assert (made.not_expressible, codes(made)) == ((), ["value_not_offered"])
    assert "auto, fp8_e5m2, fp8_e4m3, bf16, bfloat16" in made.violations[0].message


def test_only_what_was_asked_for_and_has_no_word_here_is_not_expressible() -> None:
    made = rendered(
        NEWEST,
        stock=("gpu_layers",),
        gpu_layers=4, performance_mode="throughput", flash_attention="off", kv_unified=True,
        long_prefill_token_threshold=0, cache_reuse_tokens=64, shutdown_timeout_s=30, ubatch_tokens=None,
    )  # fmt: skip
    assert set(made.not_expressible) == {
        "performance_mode", "flash_attention", "cache_reuse_tokens", "shutdown_timeout_s",
    }  # fmt: skip


def test_bytes_and_shares_need_the_pool_or_the_static_share_beside_them() -> None:
    levers: dict[str, Any] = {"kv_cache_bytes": 1 << 30, "gpu_memory_utilization": 0.9}
    assert rendered(NEWEST, **levers).not_expressible == ("kv_cache_bytes", "gpu_memory_utilization")
    assert rendered(NEWEST, kv_cache_tokens=100, **levers).not_expressible == ()
    assert rendered(NEWEST, mem_fraction_static=0.8, **levers).not_expressible == ()


def test_a_cpu_is_named_with_a_kernel_that_it_has_and_a_pool_of_stated_size() -> None:
    made = rendered(CPU, kv_cache_tokens=8192, threads=2, device_ids=[])
    assert "--max-total-tokens 8192 --device cpu --attention-backend torch_native " in line(made)
    env = made.processes[0].env
    assert (env["SGLANG_USE_CPU_ENGINE"], env["OMP_NUM_THREADS"]) == ("1", "2")
    assert codes(rendered(CPU)) == ["kv_cache_tokens_unset"]


def test_devices_are_made_visible_by_uuid() -> None:
    env = rendered(NEWEST, device_ids=["GPU-a", "MIG-b"]).processes[0].env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("GPU-a,MIG-b", "PCI_BUS_ID")


def test_several_devices_go_by_their_numbers_where_those_are_known() -> None:
    decided = {"device_ids": Decision(["GPU-a", "GPU-c"], "", "test")}
    numbers = {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}
    request = RenderRequest(decided, NEWEST, "/m", "m", device_indexes=numbers)
    env = render(request).processes[0].env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("0,2", "PCI_BUS_ID")
    one = RenderRequest(
        {"device_ids": Decision(["GPU-c"], "", "test")}, NEWEST, "/m", "m", device_indexes=numbers
    )
    assert render(one).processes[0].env["CUDA_VISIBLE_DEVICES"] == "GPU-c"


def test_less_host_memory_than_a_gigabyte_a_rank_is_refused_with_what_is_enough() -> None:
    made = rendered(NEWEST, kv_offload_bytes=3 * 10**9, tensor_parallel_size=4)
    assert codes(made) == ["kv_offload_bytes"]
    assert "kv_offload_bytes=4GB" in made.violations[0].remedy


def test_a_name_with_a_colon_and_a_key_file_are_refused() -> None:
    assert codes(rendered(NEWEST, served="qwen3:8b")) == ["served_model_name"]
    assert codes(rendered(NEWEST, key_file="/k")) == ["api_key_file_unknown"]


def test_the_users_arguments_come_last_and_the_entrys_variables_stay() -> None:
    installation = Installation("mine", "sglang", "0.5.23", ("py", "-m", "x"), NEWEST.flags, env={"A": "1"})
    made = rendered(installation, args=("--attention-backend", "fa3"), env={"B": "2"})
    assert made.processes[0].argv[-2:] == ("--attention-backend", "fa3")
    assert made.processes[0].argv[:3] == ("py", "-m", "x")
    assert {"A": "1", "B": "2"}.items() <= made.processes[0].env.items()


def test_one_that_cannot_be_used_is_one_violation() -> None:
    extras = {"broken": "it is not there", "remedy": "install it"}
    made = rendered(Installation("mine", "sglang", "", ("py",), (), extras=extras), max_num_seqs=3)
    assert [(v.code, v.message, v.remedy) for v in made.violations] == [
        ("engine_broken", "it is not there", "install it")
    ]


PARSE_ALL = """
import argparse, json, os, sys
out = os.fdopen(os.dup(1), "w"); os.dup2(2, 1)
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
lines = json.load(sys.stdin)
refused = []
for line in lines:
    try:
        parser.parse_args(line)
    except SystemExit:
        refused.append(line)
json.dump(refused, out)
"""


@pytest.mark.real_engine
@pytest.mark.full
def test_the_real_parser_takes_every_line_of_the_sweep() -> None:
    folder = os.environ.get("LLMSERVE_TEST_SGLANG")
    assert folder, "set LLMSERVE_TEST_SGLANG to what scripts/sglang-cpu prints"
    lines = [words(rendered(i, **levers), i) for i in (NEWEST, CPU) for levers in [*single(), *many(200)]]
    assert len(lines) > 500
    done = subprocess.run(
        [f"{folder}/bin/python", "-c", PARSE_ALL],
        input=json.dumps([*lines, ["--model-path", "x", "--tensor-parallel", "two"]]),
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"},
        check=True,
    )
    assert json.loads(done.stdout) == [["--model-path", "x", "--tensor-parallel", "two"]]
