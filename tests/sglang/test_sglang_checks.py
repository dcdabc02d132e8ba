import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.engines.base import Installation
from orchestrator.engines.sglang import captured, checks
from orchestrator.engines.sglang.checks import table
from orchestrator.engines.sglang.checks.args import Args, read
from orchestrator.plan import Decision, EngineRef, Plan, Prediction, ProcessPlan

HERE = Path(__file__).parent
H100_MIB = 81559


def load(name: str) -> Any:
    return yaml.safe_load((HERE / name).read_text(encoding="utf-8"))


CONFIGS: dict[str, dict[str, Any]] = load("combinations-models.yaml")
ILLEGAL, LEGAL = load("illegal.yaml"), load("legal.yaml")


def installation(version: str = "0.5.23", device: str = "cuda") -> Installation:
    return captured.captured(version, device)


def facts_of(name: str) -> dict[str, Any]:
    """The plan's facts about a model of combinations-models.yaml."""
    c = CONFIGS[name]
    return {
        "architectures": c["architectures"], "heads": c["num_attention_heads"],
        "kv_heads": c["num_key_value_heads"], "context_length": c["max_position_embeddings"],
        "experts": c.get("num_experts", 0), "mla": False, "mtp_layers": 0, "quantization": None,
    }  # fmt: skip


def planned(case: dict[str, Any]) -> Plan:
    """The plan of a case: with the GPUs, host memory and facts of the model that it names."""
    machine: dict[str, Any] = {}
    if "gpus" in case:
        machine["gpus"] = [{"uuid": str(i), "compute_capability": c} for i, c in enumerate(case["gpus"])]
    if "memory_gib" in case:
        machine["memory_available_bytes"] = case["memory_gib"] << 30
    facts = facts_of(case.get("model", "llama")) | case.get("facts", {})
    return plan(words(case, "/models/m"), facts, machine)


def words(case: dict[str, Any], model: str) -> list[str]:
    said = [w.replace("MODEL", model) for w in shlex.split(case["argv"])]
    device = [] if "--device" in said else ["--device", "cuda"]
    return ["--model-path", model, *device, *said]


def plan(
    argv: list[str],
    model: dict[str, Any] | None = None,
    machine: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    predicted: int | None = None,
) -> Plan:
    return Plan(
        goal="throughput",
        profile="throughput",
        model=facts_of("llama") if model is None else model,
        machine=machine or {},
        engine=EngineRef("sglang", "sglang", "0.5.23", captured=True),
        levers={"max_num_seqs": Decision(1, "", "test")},
        predictions={} if predicted is None else {"kv_cache_tokens": Prediction(predicted, "tokens", "x")},
        processes=(ProcessPlan("server", (*captured.ARGV, *argv), env or {}, {"http": None}),),
    )


def codes(argv: str, version: str = "0.5.23", **facts: Any) -> set[str]:
    return {v.code for v in checks.check(plan(shlex.split(argv), **facts), installation(version))}


def said(argv: str, version: str = "0.5.23") -> str:
    return "\n".join(checks.warnings(plan(shlex.split(argv)), installation(version)))


@pytest.mark.parametrize("case", ILLEGAL, ids=[f"{c['argv']} {c.get('gpus', '')}" for c in ILLEGAL])
def test_what_sglang_refuses_is_refused_before_the_start(case: dict[str, Any]) -> None:
    found = checks.check(planned(case), installation())
    assert case["code"] in {v.code for v in found}
    for violation in found:
        assert violation.message
        assert violation.remedy
        assert "{" not in violation.message + violation.remedy
        assert "None" not in violation.message


@pytest.mark.parametrize("case", LEGAL, ids=[f"{c['argv']} {c.get('facts', '')}" for c in LEGAL])
def test_what_sglang_takes_is_not_refused(case: dict[str, Any]) -> None:
    assert checks.check(planned(case), installation()) == []


def test_there_are_enough_of_both() -> None:
    assert sum(c.get("real", "refuses") == "refuses" for c in ILLEGAL) >= 25
    assert len(LEGAL) >= 25


@pytest.mark.real_engine
@pytest.mark.full
def test_the_real_resolver_refuses_and_takes_the_same(tmp_path: Path) -> None:
    interpreter = os.environ.get("LLMSERVE_TEST_SGLANG_PYTHON")
    assert interpreter, "LLMSERVE_TEST_SGLANG_PYTHON names the interpreter of an installed SGLang"
    for name, config in CONFIGS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    cases = [c for c in [*ILLEGAL, *LEGAL] if c.get("real") != "platform"]
    lines = [
        json.dumps({"argv": words(c, str(tmp_path / c.get("model", "llama"))), "gpu_mib": H100_MIB})
        for c in cases
    ]
    done = subprocess.run(
        [interpreter, str(HERE / "resolve_all.py")],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases), done.stderr[-2000:]
    wrong = {
        c["argv"]: said
        for c, said in zip(cases, answers, strict=True)
        if (said is not None) != (c in ILLEGAL and c.get("real", "refuses") == "refuses")
    }
    assert wrong == {}


@pytest.mark.parametrize("name", ["refused", "adjusted"])
def test_every_rule_can_be_read_and_says_where_it_is_from(name: str) -> None:
    for rule in table.rules(name):
        assert rule.source
        assert rule.say
        assert bool(rule.do) == (name == "refused")
        args = read(plan([]), plan([]).processes[0], installation())
        assert args is not None
        rule.applies(args)
        rule.said(args)


def test_every_flag_in_a_rule_is_one_that_some_version_has() -> None:
    known = {s for v in captured.versions() for f in installation(v).flags for s in f.spellings}
    used = {
        word
        for name in ("refused", "adjusted")
        for rule in table.rules(name)
        for condition in rule.when + rule.unless
        for word in condition.split()
        if word.startswith("--")
    }
    assert used - known == set()


@pytest.mark.parametrize("condition", ["tp > 1", "--tp-size >", "@nothing here", "--a ~ 2"])
def test_a_condition_that_cannot_be_read_is_an_error(condition: str) -> None:
    args = read(plan([]), plan([]).processes[0], installation())
    assert args is not None
    with pytest.raises((ValueError, AttributeError)):
        table.holds(condition, args)


@pytest.mark.parametrize("version", captured.versions())
def test_a_plain_start_is_legal_in_every_version(version: str) -> None:
    argv = "--tp-size 2 --context-length 4096 --max-running-requests 8 --chunked-prefill-size 2048"
    assert codes(argv, version) == set()


@pytest.mark.parametrize(
    ("argv", "version", "refused"),
    [
        ("--moe-dense-tp-size 4 --tp-size 4", "0.5.9", True),
        ("--moe-dense-tp-size 4 --tp-size 4", "0.5.23", False),
        ("--pp-size 2 --enable-mixed-chunk", "0.5.9", True),
        ("--pp-size 2 --enable-mixed-chunk", "0.5.23", False),
        ("--served-model-name a:b", "0.5.1", False),
        ("--served-model-name a:b", "0.5.9", True),
        ("--speculative-algorithm NGRAM --device cpu", "0.5.15", True),
        ("--speculative-algorithm NGRAM --device cpu", "0.5.23", False),
        ("--tp-size 4 --dp-size 4 --enable-dp-attention", "0.5.9", False),
        ("--tp-size 4 --dp-size 3 --enable-dp-attention", "0.5.1", True),
    ],
)
def test_a_rule_holds_for_the_versions_that_have_it(argv: str, version: str, refused: bool) -> None:
    assert bool(codes(argv, version)) is refused


def test_a_unique_beginning_of_a_flag_counts_as_the_flag() -> None:
    assert codes("--tensor 3") == {"heads_division"}
    assert codes("--attn-dp 3 --tp 4") == {"attention_dp_division"}


@pytest.mark.parametrize(
    ("text", "tokens"), [("8k", 8000), ("8Ki", 8192), ("1.5k", 1500), ("1.5Ki", None), ("8K", None), ("8", 8)]
)
def test_a_size_is_read_as_sglang_reads_it(text: str, tokens: int | None) -> None:
    made = plan(["--max-total-tokens", text])
    args = read(made, made.processes[0], installation())
    assert args is not None
    assert args.number("--max-total-tokens") == tokens


@pytest.mark.parametrize(("version", "refused"), [(None, True), ("2.6.0", False)])
def test_http2_needs_its_package_where_the_installation_was_asked(version: str | None, refused: bool) -> None:
    here = installation()
    asked = replace(here, extras={**here.extras, "dependencies": {"granian": version}})
    found = {v.code for v in checks.check(plan(["--enable-http2"]), asked)}
    assert found == ({"http2"} if refused else set())
    assert checks.check(plan(["--enable-http2"]), here) == []


def test_a_class_that_the_lists_hold_is_not_refused() -> None:
    vision = {"architectures": ["Qwen3VLForConditionalGeneration"]}
    assert codes("--encoder-only", model=vision) == codes("--language-only", model=vision) == set()
    sparse = {"architectures": ["DeepseekV32ForCausalLM"]}
    assert codes("--enable-hisparse --disable-radix-cache", model=sparse) == set()
    assert codes("--mamba-radix-cache-strategy extra_buffer", model={"architectures": ["Other"]}) == set()
    assert codes("--dllm-algorithm LowConfidence", model={"architectures": ["SDARForCausalLM"]}) == set()
    assert codes("--encoder-only --enable-hisparse --disable-radix-cache", model={}) == set()


def test_heads_need_not_divide_on_a_cpu() -> None:
    assert codes("--device cpu --tp-size 3") == set()


def test_the_port_of_the_plan_is_no_ground_for_refusal() -> None:
    assert codes("--port {port:http} --grpc-port {port:grpc}") == set()


@pytest.mark.parametrize(
    ("tensor", "heads", "kv", "code"),
    [
        (4, 32, 8, None),
        (16, 32, 8, None),
        (5, 40, 8, "kv_heads_division"),
        (3, 32, 8, "heads_division"),
        (8, 9, 3, "heads_division"),
        (3, 9, 3, None),
    ],
)
def test_heads_divide_over_the_devices(tensor: int, heads: int, kv: int, code: str | None) -> None:
    found = codes(f"--tp-size {tensor}", model={"heads": heads, "kv_heads": kv})
    assert found == ({code} if code else set())


def test_attention_ranks_share_the_heads_less_finely() -> None:
    model = {"heads": 9, "kv_heads": 3}
    assert codes("--tp-size 8 --attn-dp-size 8", model=model) == set()


def test_ranks_need_devices() -> None:
    two = {"gpus": [{"uuid": "a"}, {"uuid": "b"}]}
    assert codes("--tp-size 4", machine=two) == {"too_few_devices"}
    assert codes("--tp-size 4 --nnodes 2", machine=two) == set()
    assert codes("--tp-size 2", machine=two) == set()


def test_a_cpu_has_a_rank_for_each_numa_node() -> None:
    assert codes("--device cpu --tp-size 2", machine={"numa_nodes": 1}) == {"ranks_above_numa_nodes"}
    bound = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    assert codes("--device cpu --tp-size 2", machine={"numa_nodes": 1}, env=bound) == set()


@pytest.mark.parametrize(
    ("argv", "capability", "code"),
    [
        ("--attention-backend fa3", "10.0", "attention_backend_gpu"),
        ("--attention-backend fa3", "7.5", "attention_backend_gpu"),
        ("--attention-backend fa3", "9.0", None),
        ("--attention-backend trtllm_mha", "8.9", "attention_backend_gpu"),
        ("--attention-backend trtllm_mha", "9.0", None),
        ("--kv-cache-dtype nvfp4", "9.0", "kv_cache_type_gpu"),
        ("--kv-cache-dtype fp8_e4m3", "9.0", None),
        ("--quantization fp8", "7.5", "quantization_gpu"),
        ("--quantization fp8", "8.0", None),
        ("--quantization modelopt_fp8", "8.6", "quantization_gpu"),
        ("--quantization bitsandbytes", "7.5", None),
    ],
)
def test_a_gpu_must_be_able_to(argv: str, capability: str, code: str | None) -> None:
    machine = {
        "gpus": [{"uuid": "a", "compute_capability": "10.3"}, {"uuid": "b", "compute_capability": capability}]
    }
    assert codes(argv, machine=machine) == ({code} if code else set())
    unknown = {"gpus": [{"uuid": "a", "compute_capability": None}]}
    assert codes(argv, machine=unknown) == set()


def test_the_quantization_of_the_checkpoint_counts_too() -> None:
    machine = {"gpus": [{"uuid": "a", "compute_capability": "7.5"}]}
    assert codes("", model={"quantization": "fp8"}, machine=machine) == {"quantization_gpu"}


def test_quantized_experts_divide_in_whole_blocks() -> None:
    model = {
        "experts": 128, "moe_intermediate_size": 768,
        "quantization_config": {"weight_block_size": [128, 128]},
    }  # fmt: skip
    assert codes("--tp-size 4", model=model) == {"quantization_blocks"}
    assert codes("--tp-size 2", model=model) == set()
    assert codes("--tp-size 4 --ep-size 4", model=model) == set()


def test_a_context_above_the_model_can_be_forced() -> None:
    assert codes("--context-length 9000") == {"context_above_model"}
    forced = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert codes("--context-length 9000", env=forced) == set()


def test_a_predicted_pool_below_the_context_is_refused_too() -> None:
    assert codes("--context-length 8000", predicted=7999) == {"pool_below_context"}
    assert codes("--context-length 8000", predicted=8000) == set()
    assert codes("", predicted=7999) == set()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--speculative-algorithm NGRAM", "48 requests"),
        ("--tp-size 8 --attn-dp-size 8 --chunked-prefill-size 8192", "divides --chunked-prefill-size 8192"),
        ("--tp-size 8 --attn-dp-size 8 --max-running-requests 64", "divides --max-running-requests 64"),
        ("--enable-dp-lm-head", "drops --enable-dp-lm-head"),
        ("--pp-size 2", "overlap schedule"),
        ("--tp-size 4 --ep-size 2 --moe-a2a-backend deepep", "over all 4 ranks"),
        ("--schedule-policy lpm --disable-radix-cache", "fcfs instead of lpm"),
        ("--enable-mixed-chunk --speculative-algorithm NGRAM", "drops --enable-mixed-chunk"),
        ("--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 7", "one token more than --speculative-num-steps 3"),
        ("--attention-backend torch_native", "no CUDA graphs"),
        ("--disaggregation-mode decode", "without prefix cache"),
        ("--attention-backend flashmla --page-size 16", "pages of 64"),
        ("--attention-backend trtllm_mha --page-size 8", "pages of 64"),
        ("--max-total-tokens 1000", "smaller than the model's context"),
        ("--max-total-tokens 1000 --max-running-requests 600", "at most one request per two tokens"),
        ("--config f.yaml", "not looked at"),
        ("--device cpu --speculative-algorithm NGRAM", "off for speculation on a CPU"),
    ],
)  # fmt: skip
def test_what_sglang_changes_without_a_word_is_said(argv: str, words: str) -> None:
    assert words in said(argv)


def test_a_plain_start_is_not_warned_of() -> None:
    assert said("--tp-size 2 --context-length 4096 --max-running-requests 8 --page-size 1") == ""


def test_another_program_of_the_plan_is_not_judged() -> None:
    other = Plan(
        goal="g", profile="p", model={}, machine={}, engine=EngineRef("s", "sglang", "0.5.23"), levers={},
        predictions={}, processes=(ProcessPlan("router", ("router", "--no-such-flag")),),
    )  # fmt: skip
    assert checks.check(other, installation()) == []


def test_a_broken_installation_is_not_judged() -> None:
    broken = Installation("sglang", "sglang", "", captured.ARGV, (), extras={"broken": "no module"})
    assert checks.check(plan(["--x"]), broken) == []
    assert checks.warnings(plan(["--x"]), broken) == []


def test_the_facts_of_a_command_line() -> None:
    def args(line: str) -> Args:
        made = plan(shlex.split(line))
        found = read(made, made.processes[0], installation())
        assert found is not None
        return found

    old = args("--tp-size 8 --dp-size 4 --enable-dp-attention")
    assert (old.tensor, old.attention, old.data, old.world, old.attention_tensor) == (8, 4, 1, 8, 2)
    new = args("--tp-size 8 --attn-dp-size 8 --moe-a2a-backend deepep")
    assert (new.attention, new.data, new.expert) == (8, 1, 8)
    assert args("--speculative-algorithm nextn").speculation == "EAGLE"
    assert args("--speculative-algorithm EAGLE").topk == 4
    assert args("--disaggregation-mode decode").radix is False
    assert sys.version_info >= (3, 11)
