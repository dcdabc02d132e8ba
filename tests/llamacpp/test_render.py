from typing import Any

import pytest

from orchestrator.engines.base import Installation, Rendered, RenderRequest
from orchestrator.engines.llamacpp.help_text import parse_help
from orchestrator.engines.llamacpp.render import render
from orchestrator.plan import Decision


def rendered(installation: Installation, *, stock: tuple[str, ...] = (), **levers: Any) -> Rendered:
    asked = {"engine_args": (), "env": {}, "api_key_file": None}
    asked |= {k: levers.pop(k) for k in list(levers) if k in asked}
    decided = {k: Decision(v, "because", "rule", stock=k in stock) for k, v in levers.items()}
    return render(RenderRequest(decided, installation, "/m/x.gguf", "small", **asked))  # type: ignore[arg-type]


def line(made: Rendered) -> str:
    assert made.violations == ()
    return " ".join(made.processes[0].argv) + " "


def codes(made: Rendered) -> list[str]:
    return [v.code for v in made.violations]


def test_a_line_always_says_model_name_address_and_slots(binary: Installation) -> None:
    made = rendered(binary)
    assert "--model /m/x.gguf --alias small --host 127.0.0.1 --port {port:http} " in line(made)
    assert "--metrics --slots --offline --log-colors off --parallel 1 " in line(made)
    process = made.processes[0]
    assert (process.role, process.ports, process.bound) == ("server", {"http": None}, "127.0.0.1")


def test_context_is_per_request_so_the_line_multiplies_by_the_slots(binary: Installation) -> None:
    made = line(rendered(binary, max_num_seqs=3, max_model_len=1000))
    assert "--parallel 3 --no-kv-unified --ctx-size 3000 " in made


def test_a_unified_pool_has_its_own_size_and_a_limit_for_each_request(binary: Installation) -> None:
    made = line(rendered(binary, max_num_seqs=4, max_model_len=1024, kv_unified=True, kv_cache_tokens=2048))
    assert "--parallel 4 --kv-unified --ctx-size 2048 --kv-unified-per-slot 1024 " in made


def test_every_lever_of_the_table_has_its_flag_on_both_installations(
    binary: Installation, embedded: Installation
) -> None:
    levers: dict[str, Any] = {
        "max_num_batched_tokens": 512, "ubatch_tokens": 256, "kv_cache_dtype": "q8_0",
        "flash_attention": "on",
        "prefix_caching": True, "cache_reuse_tokens": 64, "kv_offload_bytes": 64 << 20, "threads": 2,
        "gpu_layers": 8, "tool_call_parser": "jinja", "reasoning_parser": "deepseek", "chunked_prefill": True,
        "chat_template": "/t.jinja",
    }  # fmt: skip
    for installation in (binary, embedded):
        made = rendered(installation, **levers)
        for part in (
            "--batch-size 512", "--ubatch-size 256", "--cache-type-k q8_0 --cache-type-v q8_0",
            "--flash-attn on", "--cache-prompt", "--cache-reuse 64", "--cache-ram 64",
            "--threads 2 --threads-batch 2 --poll 0", "--gpu-layers 8 --fit off", "--jinja",
            "--reasoning-format deepseek", "--chat-template-file /t.jinja",
        ):  # fmt: skip
            assert part + " " in line(made)
        assert made.not_expressible == ()


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        ("off", ""),
        ({"method": "ngram", "num_tokens": 8, "size_n": 3},
         "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8"),
        ({"method": "ngram-mod", "num_tokens": 16}, "--spec-type ngram-mod --spec-ngram-mod-n-max 16"),
        ({"method": "ngram-map-k4v", "min_hits": 2},
         "--spec-type ngram-map-k4v --spec-ngram-map-k4v-min-hits 2"),
        ({"method": "draft", "model": "/d.gguf", "num_tokens": 5},
         "--spec-type draft-simple --model-draft /d.gguf --spec-draft-n-max 5"),
        ("ngram-cache", "--spec-type ngram-cache"),
    ],
)  # fmt: skip
def test_speculation_is_spelled_by_method(binary: Installation, asked: Any, flags: str) -> None:
    made = line(rendered(binary, speculative=asked))
    assert flags in made
    assert ("--spec" in made) == bool(flags)


def test_an_older_build_gets_the_older_spellings() -> None:
    old = parse_help(
        "-c, --ctx-size N   x\n-np, --parallel N   x\n-fa, --flash-attn   x\n"
        "-md, --model-draft FNAME   x\n--draft-max N   x\n"
    )
    installation = Installation("old", "llamacpp", "4000", ("llama-server",), old.flags)
    draft = {"method": "draft", "model": "/d.gguf", "num_tokens": 5}
    made = rendered(installation, flash_attention="on", speculative=draft, max_num_seqs=2, max_model_len=512)
    assert " --flash-attn --model-draft /d.gguf --draft-max 5 " in line(made)
    assert "--no-kv-unified" not in line(made)
    assert "--spec-type" not in line(made)


def test_a_method_that_is_not_offered_is_refused_with_those_that_are(binary: Installation) -> None:
    made = rendered(binary, speculative={"method": "medusa", "num_tokens": 2})
    assert codes(made) == ["speculative_method"]
    assert "ngram-simple" in made.violations[0].message


def test_only_what_was_asked_for_and_has_no_word_here_is_not_expressible(binary: Installation) -> None:
    made = rendered(
        binary,
        stock=("cuda_graph",),
        quantization="fp8", dtype=None, data_parallel_size=1, scheduling_policy="priority", cuda_graph=64,
        chunked_prefill=False, stream_interval=1, expert_parallel=False, block_size=32, kv_cache_dtype="fp8",
    )  # fmt: skip
    assert set(made.not_expressible) == {
        "quantization", "scheduling_policy", "chunked_prefill", "block_size", "kv_cache_dtype",
    }  # fmt: skip


def test_neutral_names_of_cache_types_are_translated(binary: Installation) -> None:
    assert "--cache-type-k f16 --cache-type-v f16 " in line(rendered(binary, kv_cache_dtype="fp16"))


def test_devices_are_chosen_by_uuid_in_the_environment(binary: Installation) -> None:
    made = rendered(binary, device_ids=["GPU-a", "GPU-b"], tensor_parallel_size=2, gpu_layers=99)
    assert "--split-mode row " in line(made)
    assert made.processes[0].env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert rendered(binary, device_ids=[]).processes[0].env["CUDA_VISIBLE_DEVICES"] == ""


def test_keys_travel_by_file(binary: Installation) -> None:
    assert "--api-key-file /k " in line(rendered(binary, api_key_file="/k"))
    bare = Installation("old", "llamacpp", "1", ("x",), ())
    assert codes(rendered(bare, api_key_file="/k")) == ["api_key_file_unknown"]


@pytest.mark.parametrize(
    "args",
    [
        ("-c", "512"), ("--ctx-size=512",), ("--ctx_size", "512"), ("-np", "9"), ("-nocb",), ("-no-kvu",),
        ("--no-kv-unified",), ("-fa", "off"), ("-ngl", "1"), ("-nkvo", "-ctv", "f32"), ("--no-slots",),
        ("--hf-repo", "a/b"), ("--no-cache-prompt",), ("-md", "x"), ("--api-key", "s"), ("--port", "1"),
        ("--draft-max", "3"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_raw_arguments_cannot_set_what_the_plan_owns(binary: Installation, args: tuple[str, ...]) -> None:
    made = rendered(binary, engine_args=args)
    assert codes(made) == ["engine_args_owned"]


def test_an_owned_flag_names_the_lever_that_sets_it(binary: Installation) -> None:
    violation = rendered(binary, engine_args=("-ub", "64")).violations[0]
    assert "--set ubatch_tokens=" in violation.remedy
    assert "--ubatch-size" in violation.message


@pytest.mark.parametrize(
    ("args", "variable"),
    [
        (("--api-key", "hidden"), "LLAMA_API_KEY"), (("--api_key=hidden",), "LLAMA_API_KEY"),
        (("--hf-token", "hidden"), "HF_TOKEN"), (("-hft", "hidden"), "HF_TOKEN"),
        (("--hf_token=hidden",), "HF_TOKEN"),
    ],
)  # fmt: skip
def test_a_secret_belongs_in_the_environment_and_is_not_repeated(
    binary: Installation, args: tuple[str, ...], variable: str
) -> None:
    made = rendered(binary, engine_args=args)
    assert codes(made) == ["engine_args_owned"]
    assert made.violations[0].remedy == f"set {variable} in the environment"
    assert "hidden" not in made.violations[0].message + made.violations[0].remedy
    assert codes(rendered(binary, env={variable: "hidden"})) == []


def test_a_variable_cannot_set_what_the_plan_owns_either(binary: Installation) -> None:
    made = rendered(
        binary, env={"LLAMA_ARG_CTX_SIZE": "1", "LLAMA_ARG_NO_CACHE_PROMPT": "1", "LLAMA_ARG_TOP_K": "1",
                     "LLAMA_API_KEY": "k", "HF_HOME": "/h"},
    )  # fmt: skip
    assert [v.message.split()[1] for v in made.violations] == [
        "LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_NO_CACHE_PROMPT",
    ]  # fmt: skip


def test_raw_arguments_that_the_build_would_refuse_are_refused_first(binary: Installation) -> None:
    made = rendered(
        binary, engine_args=("--top-kk", "3", "--draft-min", "1", "--top-k=4", "--mirostat", "2", "-s", "-1")
    )
    assert codes(made) == ["unknown_flag", "engine_args_owned", "flag_with_equals"]
    assert "--top-k" in made.violations[0].remedy


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("--temp",), ["missing_value"]),
        (("--temp", "--top-k", "3"), ["missing_value"]),
        (("--mirostat", "2", "--temp"), ["missing_value"]),
        (("--temp", "-1"), []),
        (("--no-repack",), []),
        (("--no-repack", "3"), ["stray_argument"]),
        (("3", "--temp", "1"), ["stray_argument"]),
        (("--nonesuch", "3"), ["unknown_flag"]),
        (("--nonesuch", "-1"), ["unknown_flag"]),
        (("--nonesuch", "--temp", "1"), ["unknown_flag"]),
        (("--nonesuch", "3", "4"), ["unknown_flag", "stray_argument"]),
        (("--spec-ngram-size-n", "3"), ["removed_flag"]),
        (("--ctx-size", "3"), ["engine_args_owned"]),
        (("--ctx-size",), ["engine_args_owned"]),
        (("--model-url", "x", "--hf-repo", "y/z"), ["engine_args_owned"] * 2),
    ],
    ids=lambda v: " ".join(v),
)
def test_each_mistake_in_raw_arguments_is_told_once(
    binary: Installation, args: tuple[str, ...], found: list[str]
) -> None:
    assert codes(rendered(binary, engine_args=args)) == found


def test_a_missing_value_says_what_stands_in_its_place(binary: Installation) -> None:
    nothing, other = (
        rendered(binary, engine_args=args).violations[0] for args in (("--temp",), ("--temp", "-s", "1"))
    )
    assert "--temp takes a value, and nothing follows" in nothing.message
    assert "--temp takes a value, and the flag -s follows" in other.message
    assert "[--temp, VALUE]" in nothing.remedy


@pytest.mark.parametrize(
    ("size_bytes", "nearest"),
    [
        (1, ("kv_offload_bytes=0,", "kv_offload_bytes=1MiB")),
        ((1 << 20) - 1, ("kv_offload_bytes=0,", "kv_offload_bytes=1MiB")),
        (10**9, ("kv_offload_bytes=953MiB,", "kv_offload_bytes=954MiB")),
    ],
)
def test_a_prompt_cache_that_is_no_whole_mib_is_refused_with_the_two_nearest(
    binary: Installation, size_bytes: int, nearest: tuple[str, str]
) -> None:
    made = rendered(binary, kv_offload_bytes=size_bytes)
    assert codes(made) == ["kv_offload_bytes"]
    assert all(n in made.violations[0].remedy for n in nearest)
    assert "--cache-ram" not in made.processes[0].argv


def test_a_whole_mib_or_none_is_rendered_as_it_is(binary: Installation) -> None:
    assert "--cache-ram 1 " in line(rendered(binary, kv_offload_bytes=1 << 20))
    assert "--cache-ram 0 " in line(rendered(binary, kv_offload_bytes=0))


def test_the_name_of_a_tool_call_parser_is_not_expressible(binary: Installation) -> None:
    made = rendered(binary, tool_call_parser="hermes")
    assert "--jinja " in line(made)
    assert made.not_expressible == ("tool_call_parser",)


@pytest.mark.parametrize(
    ("asked", "flags", "left"),
    [
        ({"method": "ngram", "prompt_lookup_max": 4}, "--spec-ngram-simple-size-n 4 ", ()),
        ({"method": "ngram", "prompt_lookup_min": 4}, "--spec-ngram-simple-size-n 4 ", ()),
        ({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 4}, "-size-n 4 ", ()),
        ({"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}, "-size-n 4 ",
         ("speculative.prompt_lookup_min",)),
        ({"method": "ngram", "size_n": 3, "prompt_lookup_max": 4}, "-size-n 3 ",
         ("speculative.prompt_lookup_max",)),
        ({"method": "ngram", "min_tokens": 2, "p_min": 0.5, "model": "/d"}, "--spec-type ngram-simple ",
         ("speculative.min_tokens", "speculative.p_min", "speculative.model")),
        ({"method": "ngram-mod", "min_hits": 2, "min_tokens": 3}, "--spec-ngram-mod-n-min 3 ",
         ("speculative.min_hits",)),
        ({"method": "ngram-cache", "size_n": 2}, "--spec-type ngram-cache ", ("speculative.size_n",)),
        ({"method": "draft", "model": "/d", "p_min": 0.5, "prompt_lookup_min": 2},
         "--spec-draft-p-min 0.5 ", ("speculative.prompt_lookup_min",)),
    ],
)  # fmt: skip
def test_a_figure_of_speculation_that_the_method_lacks_is_not_expressible(
    binary: Installation, asked: dict[str, Any], flags: str, left: tuple[str, ...]
) -> None:
    made = rendered(binary, speculative=asked)
    assert flags in line(made)
    assert made.not_expressible == left


@pytest.mark.parametrize(
    "levers",
    [
        {"max_num_batched_tokens": 2**31}, {"ubatch_tokens": 2**31}, {"threads": 2**31},
        {"cache_reuse_tokens": 2**31}, {"gpu_layers": 2**31}, {"max_num_seqs": 2**31},
        {"kv_offload_bytes": 2**51}, {"kv_cache_tokens": 2**31, "kv_unified": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_number_that_does_not_fit_in_32_bits_is_refused(
    binary: Installation, levers: dict[str, Any]
) -> None:
    made = rendered(binary, **levers)
    assert set(codes(made)) == {"above_int32"}
    assert made.violations[0].message.startswith(f"{next(iter(levers))} is ")
    assert "2147483647" in made.violations[0].message
    assert codes(rendered(binary, **{k: v if v is True else 2**31 - 1 for k, v in levers.items()})) in (
        [],
        ["kv_offload_bytes"],
    )


def test_what_cannot_be_used_is_refused_with_its_reason(binary: Installation) -> None:
    extras = {"broken": "the variable LLAMA_SERVER points to /nope", "remedy": "unset it", "embedded": False}
    made = rendered(Installation("llama-server", "llamacpp", "", ("/nope",), (), extras=extras), threads=1)
    assert [(v.code, v.message, v.remedy) for v in made.violations] == [
        ("engine_broken", "the variable LLAMA_SERVER points to /nope", "unset it")
    ]
    assert made.not_expressible == ()


def test_raw_arguments_that_are_free_come_last(binary: Installation) -> None:
    made = rendered(binary, engine_args=("--mirostat", "2", "--top-k", "-1"))
    assert line(made).endswith("--mirostat 2 --top-k -1 ")


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"]
)
def test_which_devices_there_are_is_the_plans(binary: Installation, name: str) -> None:
    (refusal,) = rendered(binary, env={name: "0"}).violations
    assert (refusal.code, name in refusal.message) == ("engine_args_owned", True)
