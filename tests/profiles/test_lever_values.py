from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.lever_values import check
from orchestrator.levers import LEVERS
from orchestrator.profile_schema import json_schema

EDITOR = jsonschema.Draft202012Validator(json_schema())


def profile(levers: dict[str, Any]) -> dict[str, Any]:
    return {"profile": "p", "goal": "edge", "levers": levers}


@pytest.mark.parametrize("lever", LEVERS)
def test_auto_is_a_value_of_every_lever(lever: str) -> None:
    assert check({lever: "auto"}) == ({lever: "auto"}, [])
    assert EDITOR.is_valid(profile({lever: "auto"}))


GOOD: list[tuple[str, Any, Any]] = [
    ("max_num_seqs", 4, 4),
    ("gpu_memory_utilization", 1, 1),
    ("gpu_memory_utilization", 0.9, 0.9),
    ("chunked_prefill", False, False),
    ("kv_cache_bytes", 1024, 1024),
    ("kv_cache_bytes", "2GiB", 2 << 30),
    ("kv_cache_bytes", "1.5 GiB", 3 << 29),
    ("kv_offload_bytes", "500MB", 500_000_000),
    ("kv_offload_bytes", "0B", 0),
    ("kv_cache_dtype", "q8_0", "q8_0"),
    ("flash_attention", "off", "off"),
    ("device_ids", ["GPU-1", "MIG-2"], ["GPU-1", "MIG-2"]),
    ("cuda_graph", "off", "off"),
    ("cuda_graph", 64, 64),
    ("speculative", "off", "off"),
    ("speculative", {"method": "ngram"}, {"method": "ngram"}),
    ("speculative", {"method": "ngram-mod", "min_tokens": 0, "size_n": 3, "p_min": 0.5}, None),
    ("speculative", {"method": "draft_model", "model": "x", "num_tokens": 4}, None),
    ("disaggregation", "off", "off"),
    ("disaggregation", {"prefill": 1, "decode": 2, "connector": "nixl"}, None),
]


@pytest.mark.parametrize(("lever", "written", "read"), GOOD)
def test_right_values_are_read_here_and_in_the_editor(lever: str, written: Any, read: Any) -> None:
    good, problems = check({lever: written})
    assert problems == []
    if read is not None:
        assert good == {lever: read}
    assert list(EDITOR.iter_errors(profile({lever: written}))) == []


BAD: list[tuple[str, Any, str]] = [
    ("max_num_seq", 4, "did you mean `max_num_seqs`?"),
    ("MAX-NUM-SEQS", 4, "did you mean `max_num_seqs`?"),
    ("max_num_seqs", 0, ""),
    ("max_num_seqs", 1.0001, ""),
    ("max_num_seqs", True, ""),
    ("max_num_seqs", "4", ""),
    ("max_num_seqs", None, "delete the line, or write auto"),
    ("gpu_memory_utilization", 1.1, ""),
    ("gpu_memory_utilization", -0.1, ""),
    ("chunked_prefill", "on", "write true"),
    ("chunked_prefill", 1, ""),
    ("kv_cache_bytes", "2G", "write bytes, or a size such as 512MiB or 2GiB"),
    ("kv_cache_bytes", -1, ""),
    ("kv_cache_dtype", 8, 'put it in quotes: "8"'),
    ("kv_cache_dtype", "", ""),
    ("flash_attention", "onn", "did you mean `on`?"),
    ("device_ids", "GPU-1", "write [GPU-1]"),
    ("device_ids", [], "name at least one, or write auto"),
    ("device_ids", ["a", "a"], "keep one of them"),
    ("cuda_graph", False, "write off"),
    ("cuda_graph", 0, "write off"),
    ("speculative", False, "write off"),
    ("speculative", {"methd": "ngram"}, "did you mean `method`?"),
    ("speculative", {"method": "N gram"}, "did you mean `ngram`?"),
    ("speculative", {"method": ["ngram"]}, ""),
    ("speculative", {"method": "ngram", "p_min": 1.5}, ""),
    ("speculative", {"method": "ngram", "num_token": 2}, "did you mean `num_tokens`?"),
    ("speculative", {"method": "ngram", "num_tokens": 0}, ""),
    ("disaggregation", {"prefill": 1}, "add decode: the number of decode servers"),
    (
        "disaggregation",
        {"prefill": 1, "decode": 1, "prefill_levers": {"max_num_seq": 1}},
        "did you mean `max_num_seqs`?",
    ),
    ("disaggregation", {"prefill": 1, "decode": 1, "decode_levers": {"disaggregation": "off"}}, ""),
]


@pytest.mark.parametrize(("lever", "value", "remedy"), BAD)
def test_wrong_values_are_refused_here_and_in_the_editor(lever: str, value: Any, remedy: str) -> None:
    good, problems = check({lever: value})
    assert good == {}
    assert problems[0].loc[0] == lever
    assert remedy in {p.remedy for p in problems}
    assert not EDITOR.is_valid(profile({lever: value}))


def test_a_draft_model_needs_a_model() -> None:
    _, (problem,) = check({"speculative": {"method": "draft_model"}})
    assert problem.loc == ("speculative", "model")


def test_all_problems_are_found_at_once() -> None:
    _, problems = check({"max_num_seq": 1, "threads": 0, "speculative": {"method": 1, "n": 1}})
    assert len(problems) == 4


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(LEVERS)), _JSON)
def test_any_value_is_taken_or_refused_and_what_is_taken_is_taken_again(lever: str, value: Any) -> None:
    good, problems = check({lever: value})
    assert bool(good) != bool(problems)
    if good:
        assert check(good) == (good, [])


@pytest.mark.parametrize(("value", "said"), [([], "empty"), ([str(i) for i in range(1025)], "1025 names")])
def test_a_list_that_is_empty_or_too_long_is_told_to_be(value: list[str], said: str) -> None:
    (problem,) = check({"device_ids": value})[1]
    assert said in problem.message
