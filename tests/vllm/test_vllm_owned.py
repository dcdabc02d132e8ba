from dataclasses import replace

import pytest

from orchestrator.engines.base import Installation, RenderRequest
from orchestrator.engines.vllm.captured import captured, versions
from orchestrator.engines.vllm.owned import OWNED, SECRETS, owned_violations
from orchestrator.plan import Violation

NEW = captured("0.33.0")


def refused(
    *args: str, installation: Installation = NEW, env: dict[str, str] | None = None
) -> list[Violation]:
    return owned_violations(RenderRequest({}, installation, "/m", "m", engine_args=args, env=env or {}))


@pytest.mark.parametrize(
    ("words", "owned"),
    [
        ("--tensor-parallel-size 2", "--tensor-parallel-size"),
        ("--tensor-parallel-size=2", "--tensor-parallel-size"),
        ("--tensor_parallel_size 2", "--tensor-parallel-size"),
        ("--tensor-par 2", "--tensor-parallel-size"),
        ("-tp 2", "--tensor-parallel-size"), ("-tp=2", "--tensor-parallel-size"),
        ("-t 2", "--tensor-parallel-size"), ("-pp 2", "--pipeline-parallel-size"),
        ("-dp 2", "--data-parallel-size"), ("-dpl 2", "--data-parallel-size-local"),
        ("-ep", "--enable-expert-parallel"), ("--no-enable-expert-parallel", "--enable-expert-parallel"),
        ("-q fp8", "--quantization"), ("-qfp8", "--quantization"), ("-n2", "--nnodes"),
        ("-r 1", "--node-rank"),
        ("--enable-prefix-caching", "--enable-prefix-caching"),
        ("--no-enable-prefix-caching", "--enable-prefix-caching"),
        ("--disable-prefix-caching", "--enable-prefix-caching"),
        ("--no_enable_prefix_caching", "--enable-prefix-caching"),
        ("--device-memory-utilization 0.5", "--gpu-memory-utilization"),
        ("-sc {}", "--speculative-config"), ("--speculative-config.method ngram", "--speculative-config"),
        ("--speculative_config.method=ngram", "--speculative-config"), ("--spec-tokens 3", "--spec-tokens"),
        ("--kv-transfer-config.kv_role kv_both", "--kv-transfer-config"),
        ("--config /c.yaml", "--config"), ("--config=/c.yaml", "--config"),
        ("--enforce-eager", "--enforce-eager"), ("-O0", "--enforce-eager"), ("-O 0", "--enforce-eager"),
        ("-cc.cudagraph_mode=NONE", "--enforce-eager"), ("-cc.cudagraph_mode none", "--enforce-eager"),
        ('-cc {"max_cudagraph_capture_size":8}', "--enforce-eager"),
        ("--compilation-config.cudagraph_capture_sizes+ 1,2", "--enforce-eager"),
        ("--cudagraph-capture-sizes 1 2", "--cudagraph-capture-sizes"),
        ("--max_model_len 100", "--max-model-len"), ("--trust-remote-code", "--trust-remote-code"),
        ("--disable-log-stats", "--disable-log-stats"), ("--uds /s", "--uds"),
        ("--num-gpu-blocks-override 4", "--num-gpu-blocks-override"),
    ],
)  # fmt: skip
def test_an_owned_flag_is_refused_in_every_spelling(words: str, owned: str) -> None:
    (found,) = refused(*words.split(" "))
    assert found.code == "engine_args_owned"
    assert owned in found.message
    assert (OWNED[owned] or "leave it out") in found.remedy


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        ("--api-key hidden", "VLLM_API_KEY"), ("--api_key=hidden", "VLLM_API_KEY"),
        ("--api-k hidden", "VLLM_API_KEY"), ("--hf-token hidden", "HF_TOKEN"),
        ("--hf-token=hidden", "HF_TOKEN"), ("--hf_token hidden", "HF_TOKEN"), ("--hf-tok=hidden", "HF_TOKEN"),
    ],
)  # fmt: skip
def test_a_secret_belongs_in_the_environment_and_is_not_repeated(words: str, variable: str) -> None:
    (found,) = refused(*words.split(" "))
    assert found.code == "engine_args_owned"
    assert found.remedy == f"set {variable} in the environment"
    assert "hidden" not in found.message + found.remedy


@pytest.mark.parametrize("version", versions())
def test_a_secret_is_refused_on_every_release_in_every_spelling(version: str) -> None:
    i = captured(version)
    for name in SECRETS:
        flag = i.flag(name)
        assert flag is not None
        for spelling in flag.spellings:
            assert [v.code for v in refused(spelling, "x", installation=i)] == ["engine_args_owned"]
    assert refused(installation=i, env=dict.fromkeys(SECRETS.values(), "x")) == []


@pytest.mark.parametrize(
    "words",
    [
        "--seed 3", "--load-format dummy", "-O3", "-O 1", "-O=2", "-cc.mode=2",
        '-cc {"cudagraph_mode":"FULL"}',
        "-cc.pass_config.fuse_attn true", "--hf-overrides.rope_theta 1e6", "--max-num-active-seqs 8",
        "--enable-lora --lora-modules a=/a b=/b", "--kv-cache-dtype-skip-layers 0 1",
        "--uvicorn-log-level error",
        "--enable-log-requests", "--prefix-caching-hash-algo xxhash", "--generation-config vllm",
        "--limit-mm-per-prompt.image 2", "--hf-token", "--cpu-offload-gb 4",
    ],
)  # fmt: skip
def test_what_the_plan_does_not_decide_is_the_users(words: str) -> None:
    assert refused(*words.split(" ")) == []


def test_every_owned_flag_is_refused_on_every_release_that_has_it() -> None:
    for version in versions():
        i = captured(version)
        listed = [f for f in OWNED if i.flag(f) is not None]
        assert len(listed) > 25
        for name in listed:
            flag = i.flag(name)
            assert flag is not None
            for spelling in flag.spellings:
                words = [spelling, "{}" if flag.type == "json" else "1"] if flag.takes_value else [spelling]
                codes = [v.code for v in refused(*words, installation=i)]
                assert codes == ["engine_args_owned"], (version, spelling)


def test_every_owned_flag_is_one_that_some_release_has() -> None:
    known = {s for v in versions() for f in captured(v).flags for s in f.spellings}
    assert set(OWNED) <= known


@pytest.mark.parametrize(
    ("words", "code", "said", "remedy"),
    [
        ("--swap-space 4", "removed_flag", "no longer has --swap-space", "kv_offload_bytes"),
        ("--swap_space=4", "removed_flag", "no longer has --swap_space", "0.16.0 still had it"),
        ("--no-calculate-kv-scales", "removed_flag", "--no-calculate-kv-scales", "0.27.1 still had it"),
        ("--task embed", "removed_flag", "--task", "--runner"),
        ("--max-num-sekvens 4", "unknown_flag", "no flag of vllm 0.33.0", "--max-num-seqs"),
        ("--qqqq", "unknown_flag", "--qqqq", "--help=all"),
        ("--enable", "ambiguous_flag", "--enable-", "in full"),
        ("--seed", "missing_value", "--seed takes a value", "[--seed, VALUE]"),
        ("--seed --enable-lora", "missing_value", "--seed takes a value", "[--seed, VALUE]"),
        ("--seed x", "bad_value", "a whole number, and 'x' is not", "--seed"),
        ("--cpu-offload-gb x", "bad_value", "a number", "--cpu-offload-gb"),
        ("-ac {x", "bad_value", "JSON", "--attention-config"),
        ("--uvicorn-log-level loud", "bad_value", "one of critical", "--uvicorn-log-level"),
        ("--enable-lora=true", "bad_value", "is a switch", "--disable-lora"),
        ("stray", "stray_argument", "'stray'", "an item of its own"),
    ],
)
def test_what_the_parser_would_refuse_is_said_in_plain_words(
    words: str, code: str, said: str, remedy: str
) -> None:
    (found,) = refused(*words.split(" "))
    assert found.code == code
    assert said in found.message
    assert remedy in found.remedy


def test_a_flag_of_a_later_release_says_which() -> None:
    (found,) = refused("--shutdown-timeout", "3", installation=captured("0.16.0"))
    assert (found.code, found.remedy) == ("unknown_flag", "vLLM 0.20.2 has it: use that or a newer one")


def test_all_are_refused_at_once() -> None:
    found = refused("-tp", "2", "--swap-space", "4", "--seed", "x", "--nope")
    assert [v.code for v in found] == ["engine_args_owned", "removed_flag", "unknown_flag", "bad_value"]


@pytest.mark.parametrize(
    "name",
    ["VLLM_CPU_KVCACHE_SPACE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "VLLM_DP_SIZE",
     "VLLM_CPU_OMP_THREADS_BIND",
     "VLLM_ENABLE_STARTUP_PLAN", "PROMETHEUS_MULTIPROC_DIR"],
)  # fmt: skip
def test_a_variable_that_sets_what_the_plan_decides_is_refused(name: str) -> None:
    (found,) = refused(env={name: "1", "VLLM_LOGGING_LEVEL": "DEBUG"})
    assert found.code == "engine_args_owned"
    assert name in found.message


def test_keys_travel_by_environment_and_threads_are_owned_on_a_cpu_alone() -> None:
    assert refused(env={"VLLM_API_KEY": "k", "OMP_NUM_THREADS": "4"}) == []
    (found,) = refused(installation=captured("0.32.0", "cpu"), env={"OMP_NUM_THREADS": "4"})
    assert "threads=N" in found.remedy


def test_an_entrys_environment_is_looked_at_too() -> None:
    entry = replace(NEW, name="mine", env={"VLLM_CPU_KVCACHE_SPACE": "4", "CUDA_VISIBLE_DEVICES": "0"})
    (found,) = refused(installation=entry)
    assert found.message.startswith("env of mine in engines.yaml: VLLM_CPU_KVCACHE_SPACE")
