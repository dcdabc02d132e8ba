"""What vLLM and SGLang make of a checkpoint's files and of the values in its config.json."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from planned import KINDS, card, configs, installation, plan

from orchestrator.model_card.card import Flaw, ModelCard
from orchestrator.planning import checkpoint

PLAIN: dict[str, Any] = {"source": "m", "name": "m", "path": "/models/m", "format": "safetensors"}


def of(**changes: Any) -> ModelCard:
    return replace(card("Qwen/Qwen3-8B"), **(PLAIN | changes))


def codes(model: ModelCard, **how: Any) -> set[str]:
    return {v.code for v in plan(model, "1xl4", **how).violations}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"quantization_config": {"quant_method": "nonsense"}}, "unknown_quantization"),
        ({"activation": "bogus"}, "unknown_activation"),
        ({"rope_scaling": {"rope_type": "nonsense", "factor": 2}}, "unknown_rope"),
        ({"rope_scaling": {"full_attention": {"type": "nonsense"}}}, "unknown_rope"),
        ({"flaws": (Flaw("no_tokenizer", "holds no tokenizer", True),)}, "no_tokenizer"),
        ({"flaws": (Flaw("weights_not_quantized", "is plain", True),)}, "weights_not_quantized"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_ends_the_engine_at_start_is_refused(kind: str, changes: dict[str, Any], code: str) -> None:
    assert codes(of(**changes), kind=kind) == {code}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"quantization_config": {"quant_method": "FP8"}},
        {"quantization_config": {"quant_method": "compressed_tensors"}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2}},
        # classes with functions of their own
        {"activation": "bogus", "architectures": ("Gemma2ForCausalLM",)},
        {"rope_scaling": {"rope_type": "nonsense"}, "architectures": ("DeepseekV3ForCausalLM",)},
    ],
)
def test_what_an_engine_takes_is_not_refused(kind: str, changes: dict[str, Any]) -> None:
    found = codes(of(**changes), kind=kind)
    assert not found & {"unknown_quantization", "unknown_activation", "unknown_rope"}


def test_a_newer_engine_may_know_more() -> None:
    newer = replace(installation("vllm"), version="9.0.0")
    assert codes(of(activation="bogus"), installed=newer) == set()


@pytest.mark.parametrize(
    ("kind", "flag"),
    [("vllm", "--tokenizer"), ("vllm", "--skip-tokenizer-init"), ("sglang", "--tokenizer-path")],
)
def test_a_tokenizer_from_elsewhere_is_enough(kind: str, flag: str) -> None:
    words = [flag] if flag.endswith("init") else [flag, "/models/other"]
    sets = [f"engine_args.{kind}={words}"]
    bare = of(flaws=(Flaw("no_tokenizer", "holds no tokenizer", True),))
    assert "no_tokenizer" not in codes(bare, kind=kind, sets=sets)


@pytest.mark.parametrize("kind", KINDS)
def test_what_makes_an_engine_serve_worse_is_said(kind: str) -> None:
    made = plan(of(flaws=(Flaw("generation_config", "has no good file", False),)), "1xl4", kind=kind)
    assert "m has no good file" in made.warnings
    assert not made.violations


def test_shards_that_an_index_names_in_vain_are_named() -> None:
    shards = tuple(f"model-{i}-of-5.safetensors" for i in range(1, 6))
    bare = of(format="config", missing_shards=shards)
    said = "model.safetensors.index.json names 5 shards and none is here (model-1-of-5.safetensors,"
    made = plan(bare, "1xl4")
    assert any(said in w and "2 more" in w for w in made.warnings)
    assert not made.violations
    refused = plan(bare, "1xl4", launching=True).violations
    assert [v.code for v in refused if said in v.message and "fetch it again" in v.remedy] == ["no_weights"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_published_model_is_refused_by_a_closed_list(kind: str) -> None:
    lists = {"unknown_quantization", "unknown_activation", "unknown_rope"}
    for model in configs():
        found = {v.code for v in plan(model, "8xb200", kind=kind, sets=["trust_remote_code=true"]).violations}
        assert not found & lists, model


_LISTS = {
    "vllm": (
        "import vllm.model_executor.layers.quantization as q\n"
        "import vllm.model_executor.layers.rotary_embedding as r\nnames = q.QUANTIZATION_METHODS\n"
    ),
    "sglang": (
        "import sglang.srt.layers.quantization as q\n"
        "import sglang.srt.layers.rotary_embedding.factory as r\nnames = list(q.QUANTIZATION_METHODS)\n"
    ),
}
_ASK = """
import inspect, json, re
text = inspect.getsource(r.get_rope)
types = re.findall(r'scaling_type == "([^"]+)"', text)
for many in re.findall(r'scaling_type in [(\\[]([^)\\]]+)', text):
    types += re.findall(r'"([^"]+)"', many)
print("ANSWER" + json.dumps([list(names), types]))
"""


@pytest.mark.real_engine
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_the_closed_lists_leave_out_nothing_that_the_engine_takes(kind: str) -> None:
    python = os.environ.get(f"LLMSERVE_TEST_{kind.upper()}_PYTHON")
    if not python:
        pytest.skip(f"no {kind} to ask")
    ran = subprocess.run(
        [python, "-c", _LISTS[kind] + _ASK],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "SGLANG_USE_CPU_ENGINE": "1"},
    )
    answer = ran.stdout.partition("ANSWER")[2]
    assert answer, ran.stderr[-2000:]
    methods, types = json.loads(answer)
    table = yaml.safe_load(Path(checkpoint.__file__).with_name("checkpoint_values.yaml").read_text())
    assert len(methods) > 20
    assert len(types) > 5
    assert not set(methods) - set(table["quantization"][kind])
    assert not set(types) - set(table["rope"]["types"])
