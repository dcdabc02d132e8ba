"""Every illegal command line is refused here, every legal one is not; both are put to a real vLLM as well."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.engines.base import Installation
from orchestrator.engines.vllm.captured import captured
from orchestrator.engines.vllm.checks import check, warnings
from orchestrator.plan import EngineRef, Plan, ProcessPlan

HERE = Path(__file__).parent
ILLEGAL = yaml.safe_load((HERE / "illegal.yaml").read_text(encoding="utf-8"))
LEGAL = yaml.safe_load((HERE / "legal.yaml").read_text(encoding="utf-8"))
MODELS = yaml.safe_load((HERE / "models.yaml").read_text(encoding="utf-8"))
REFUSED = ILLEGAL["confirmed"] + ILLEGAL["from_source"]
CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
REAL_VERSION = "0.32.0"


def installed(version: str = REAL_VERSION, device: str = "cpu") -> Installation:
    """As the project's data knows it, with the optional packages missing."""
    known = captured(version, device)
    return dataclasses.replace(
        known, extras={**known.extras, "dependencies": {"arctic-inference": None, "ray": None}}
    )


def plan(case: dict[str, Any], engine: Installation) -> Plan:
    model = dict(MODELS[case["model"]]["facts"])
    drafts = [name for name in MODELS if any(f'MODEL:{name}"' in word for word in case["argv"])]
    if drafts:
        model["draft"] = MODELS[drafts[0]]["facts"]
    gpus = [
        {"name": name, "memory_bytes": gib << 30, "compute_capability": capability}
        for name, gib, capability in case.get("gpus", ())
    ]
    env = case.get("env", {} if gpus else CPU_ENV)
    argv = (*engine.argv, f"MODEL:{case['model']}", *case["argv"])
    return Plan(
        goal="throughput",
        profile="p",
        model=model,
        machine={"gpus": gpus, **case.get("machine", {})},
        engine=EngineRef("vllm", "vllm", engine.version),
        levers={},
        predictions={},
        processes=(ProcessPlan("server", argv, env),),
    )


def engine_for(case: dict[str, Any]) -> Installation:
    return installed(case.get("version", REAL_VERSION), "cuda" if case.get("gpus") else "cpu")


def found(case: dict[str, Any]) -> list[str]:
    engine = engine_for(case)
    return [v.code for v in check(plan(case, engine), engine)]


@pytest.mark.parametrize("case", REFUSED, ids=[c["name"] for c in REFUSED])
def test_an_illegal_command_line_is_refused_for_its_own_reason(case: dict[str, Any]) -> None:
    engine = engine_for(case)
    refusals = check(plan(case, engine), engine)
    assert case["code"] in [v.code for v in refusals]
    assert all(v.message and v.remedy for v in refusals)


@pytest.mark.parametrize("case", LEGAL, ids=[c["name"] for c in LEGAL])
def test_a_legal_command_line_is_not_refused(case: dict[str, Any]) -> None:
    assert found(case) == []


def test_there_are_enough_of_both() -> None:
    assert len(ILLEGAL["confirmed"]) >= 40
    assert len(LEGAL) >= 40
    names = [c["name"] for c in REFUSED + LEGAL]
    assert len(set(names)) == len(names)


def test_everything_wrong_is_said_at_once() -> None:
    argv = [
        "--tensor-parallel-size",
        "2",
        "--max-model-len",
        "16384",
        "--kv-cache-dtype",
        "q8_0",
        "--nope",
        "1",
    ]
    codes = found({"model": "dense", "argv": argv})
    assert {"tensor_parallel_heads", "context_above_model", "bad_value", "unknown_flag"} <= set(codes)


def test_a_placeholder_is_a_number_yet_to_come() -> None:
    assert found({"model": "dense", "argv": ["--port", "{port:http}"]}) == []


def test_a_fact_that_the_plan_does_not_know_refuses_nothing() -> None:
    engine = installed()
    case = {"model": "dense", "argv": ["--tensor-parallel-size", "2", "--enable-expert-parallel"]}
    known = plan(case, engine)
    assert check(dataclasses.replace(known, model={}), engine) == []


def test_a_broken_installation_is_not_judged() -> None:
    engine = dataclasses.replace(installed(), extras={"broken": "no python"})
    assert check(plan({"model": "dense", "argv": ["--nope"]}, engine), engine) == []
    assert warnings(plan({"model": "dense", "argv": ["--nope"]}, engine), engine) == []


def test_a_remedy_names_a_size_that_divides() -> None:
    engine = installed()
    refusal = check(plan({"model": "dense", "argv": ["--tensor-parallel-size", "2"]}, engine), engine)[0]
    assert "9 attention heads" in refusal.message
    assert "legal here: 1, 3, 9" in refusal.remedy


SILENT = [
    ("max_num_seqs from", "dense", ["--max-num-batched-tokens", "64"], {}),
    (
        "can ever fill",
        "dense",
        ["--max-num-batched-tokens", "8192", "--max-num-seqs", "2", "--max-model-len", "64"],
        {},
    ),
    ("not officially supported", "dense", ["--no-enable-chunked-prefill"], {}),
    ("vLLM uses float16", "dense", [], {"gpus": [["Tesla T4", 16, "7.5"]]}),
    (
        "it takes 40, and larger batches run without one: --set cuda_graph=48",
        "dense",
        ["--max-cudagraph-capture-size", "44"],
        {"gpus": [["NVIDIA A10", 24, "8.6"]]},
    ),
    ("no fp8 units", "dense", ["--kv-cache-dtype", "fp8"], {"gpus": [["NVIDIA A10", 24, "8.6"]]}),
    ("in 16 bits", "dense", ["--quantization", "fp8"], {"gpus": [["NVIDIA A10", 24, "8.6"]]}),
    ("async scheduling off", "dense", ["--spec-method", "ngram", "--spec-tokens", "3"], {}),
    ("they are copied", "dense", ["--tensor-parallel-size", "9"], {}),
    ("stages stay empty", "dense", ["--pipeline-parallel-size", "5"], {}),
    ("turns async scheduling off", "dense", ["--async-scheduling"], {}),
    ("overrides --kv-cache-memory-bytes", "dense", ["--kv-cache-memory-bytes", "1G"], {}),
    ("no multiple of 32", "dense", ["--block-size", "48"], {}),
    ("without chunked prefill and prefix caching", "mla", [], {}),
    (
        "hybrid KV cache manager off",
        "dense",
        ["--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'],
        {},
    ),
    ("run 3 times", "mla", ["--speculative-config", '{"method":"mtp","num_speculative_tokens":3}'], {}),
]


@pytest.mark.parametrize(("said", "model", "argv", "more"), SILENT, ids=[s[0] for s in SILENT])
def test_what_vllm_does_otherwise_without_a_word_is_said(
    said: str, model: str, argv: list[str], more: dict[str, Any]
) -> None:
    case = {"model": model, "argv": argv, **more}
    engine = engine_for(case)
    assert any(said in w for w in warnings(plan(case, engine), engine))


@pytest.mark.parametrize(
    "argv",
    [
        ["--max-cudagraph-capture-size", "48"],
        ["--max-cudagraph-capture-size", "512"],
        ["--max-cudagraph-capture-size", "12", "--performance-mode", "interactivity"],
        ["--max-cudagraph-capture-size", "100", "--max-num-batched-tokens", "100", "--max-num-seqs", "100"],
    ],
)
def test_a_size_that_is_recorded_is_not_warned_of(argv: list[str]) -> None:
    case = {"model": "dense", "argv": argv, "gpus": [["NVIDIA H100 80GB HBM3", 80, "9.0"]]}
    engine = engine_for(case)
    assert not any("cuda_graph" in w for w in warnings(plan(case, engine), engine))


def test_a_plain_start_on_a_large_gpu_has_nothing_to_warn_of() -> None:
    case = {"model": "dense", "argv": [], "gpus": [["NVIDIA H100 80GB HBM3", 80, "9.0"]]}
    engine = engine_for(case)
    assert warnings(plan(case, engine), engine) == []


def test_a_draft_that_holds_less_lowers_the_context() -> None:
    spec = '{"method":"draft_model","model":"x","num_speculative_tokens":3}'
    case = {"model": "dense", "argv": ["--speculative-config", spec]}
    engine = installed()
    made = plan(case, engine)
    shorter = dataclasses.replace(
        made, model={**made.model, "draft": {"vocab_size": 49152, "context_length": 2048}}
    )
    assert any("lowers max_model_len to 2048" in w for w in warnings(shorter, engine))


@pytest.mark.real_engine
@pytest.mark.full
def test_a_real_vllm_refuses_and_takes_the_same(tmp_path: Path) -> None:
    """One interpreter is asked for all of them; about half a minute."""
    python = os.environ["LLMSERVE_TEST_VLLM_PYTHON"]
    for name, model in MODELS.items():
        if "config" in model:
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text(json.dumps(model["config"]))

    def line(case: dict[str, Any]) -> dict[str, Any]:
        words = [word.replace("MODEL:", f"{tmp_path}/") for word in (f"MODEL:{case['model']}", *case["argv"])]
        return {"name": case["name"], "argv": words, "env": case.get("env", CPU_ENV)}

    # the legal ones again at the end: no refusal may be left over from a line before
    again = [{**c, "name": f"{c['name']}, again"} for c in LEGAL]
    asked = [line(c) for c in LEGAL + ILLEGAL["confirmed"] + again]
    done = subprocess.run(
        [python, str(HERE / "real_config.py")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
        env={
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": "1",
        },
    )
    answers = {a["name"]: a for a in map(json.loads, done.stdout.splitlines())}
    assert len(answers) == len(asked), done.stderr[-2000:]
    wrong = [c["name"] for c in ILLEGAL["confirmed"] if not answers[c["name"]]["refused"]]
    assert wrong == [], "the real vLLM takes what is refused here"
    refused = {
        c["name"]: answers[c["name"]]["message"] for c in LEGAL + again if answers[c["name"]]["refused"]
    }
    assert refused == {}, "the real vLLM refuses what is taken here"
