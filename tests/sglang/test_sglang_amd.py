"""Quantizations on AMD, where SGLang has a list of its own."""

from __future__ import annotations

import shlex

import pytest
from test_sglang_checks import facts_of, installation, plan

from orchestrator.engines.sglang import checks


def codes(argv: str, quantization: str | None, method: str | None, version: str = "0.5.23") -> set[str]:
    model = facts_of("llama") | {"quantization": quantization, "quantization_method": method}
    made = plan(shlex.split(f"--model-path /models/m {argv}"), model)
    return {v.code for v in checks.check(made, installation(version, "rocm"))}


@pytest.mark.parametrize(
    ("argv", "quantization", "method"),
    [
        ("", "nvfp4", "modelopt"),
        ("", "fp8", "modelopt"),
        ("", "modelopt_fp4-nvfp4", "modelopt_fp4"),
        ("--quantization petit_nvfp4", "nvfp4", "modelopt"),
        ("", "gptq-int4", "gptq"),
        ("", "bitsandbytes-nf4", "bitsandbytes"),
        ("--quantization w8a8_int8", None, None),
        ("--quantization modelopt_fp8", None, None),
    ],
)
def test_a_quantization_that_is_not_on_the_list_is_refused(
    argv: str, quantization: str | None, method: str | None
) -> None:
    assert "quantization_not_on_amd" in codes(argv, quantization, method)


@pytest.mark.parametrize(
    ("argv", "quantization", "method"),
    [
        ("", None, None),
        ("", "fp8", "fp8"),
        ("", "mxfp4", "mxfp4"),
        ("", "awq-int4", "awq"),
        ("", "compressed-tensors-nvfp4", "compressed-tensors"),
        ("--quantization fp8", None, None),
        ("--quantization quark_mxfp4", "nvfp4", "modelopt"),
    ],
)
def test_one_that_is_on_it_passes(argv: str, quantization: str | None, method: str | None) -> None:
    assert "quantization_not_on_amd" not in codes(argv, quantization, method)


def test_the_list_is_of_the_versions_that_were_read_and_of_amd() -> None:
    assert "quantization_not_on_amd" not in codes("", "nvfp4", "modelopt", "0.5.22")
    model = facts_of("llama") | {"quantization": "nvfp4", "quantization_method": "modelopt"}
    made = plan(["--model-path", "/models/m"], model)
    assert "quantization_not_on_amd" not in {v.code for v in checks.check(made, installation())}
