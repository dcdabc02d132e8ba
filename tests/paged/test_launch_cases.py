"""Every public launch of launch_cases.jsonl: KV tokens from logged bytes, and verdicts by the flags alone."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import launches
import pytest
from launches import Case, cases, verdict

ALL = cases()
USABLE = [c for c in ALL if c["usable"]]
FAILED = [c for c in USABLE if c["outcome"] == "failed"]
STARTED = [c for c in USABLE if c["outcome"] == "started"]
LOGGED = [c for c in ALL if launches.token_ratio(c) is not None]
ROOT = Path(__file__).parents[2]

REASONS = (
    "no GPU stated",
    "no model stated",
    "the GPU is",
    "the GPUs' memory is not stated",
    "the model's configuration is not known",
    "model and GPU are inferred",
    "neither the model's nor its weights' type is stated",
    "the draft model is not stated",
    "a fork",
    "an engine outside vLLM 0.10-0.33 and SGLang 0.5",
)


def test_all_103_launches_are_here_each_with_its_source() -> None:
    assert len({c["id"] for c in ALL}) == 103
    assert all(c["source"] for c in ALL)


def test_a_launch_that_is_not_used_says_why() -> None:
    for c in ALL:
        assert c["usable"] == ("reason" not in c), c["id"]
        assert c["usable"] or c["reason"].startswith(REASONS), c["id"]
    assert len(USABLE) == 53


@pytest.mark.parametrize(
    "case", [c for c in LOGGED if c.get("ratio_basis") == "independent"], ids=lambda c: c["id"]
)
def test_tokens_from_the_logged_bytes_are_the_logs(case: Case) -> None:
    ratio = launches.token_ratio(case)
    assert ratio is not None
    if "ranks" in case:
        # one rank's bytes beside the smallest rank's tokens: the fixture says how
        assert ratio > 1.005
    else:
        assert ratio == pytest.approx(1, abs=0.005)


def test_19_logs_test_the_token_rule_and_one_of_them_is_explained() -> None:
    independent = [c for c in LOGGED if c.get("ratio_basis") == "independent"]
    assert len(independent) == 19
    assert [c["id"] for c in independent if "ranks" in c] == ["A66"]
    of_paged = [c for c in ALL if c.get("ratio_basis") == "independent" and c["engine"] != "llama.cpp"]
    assert {c["id"] for c in of_paged} == {c["id"] for c in independent}


@pytest.mark.parametrize(
    "case", [c for c in LOGGED if c.get("ratio_basis") != "independent"], ids=lambda c: c["id"]
)
def test_the_other_logs_agree_too(case: Case) -> None:
    assert launches.token_ratio(case) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("case", STARTED, ids=lambda c: c["id"])
def test_what_started_is_not_refused(case: Case) -> None:
    assert not verdict(case).startswith("refused"), verdict(case)


def test_at_most_a_tenth_of_the_starts_is_warned_of_not_fitting() -> None:
    warned = [c["id"] for c in STARTED if verdict(c).startswith("warned")]
    fits = [i for i in warned if verdict(next(c for c in STARTED if c["id"] == i)) != "warned:unknown_rule"]
    assert len(fits) <= len(STARTED) // 10, fits
    # and the two whose KV rule is not known are not many either
    assert len(warned) <= len(STARTED) // 10, warned


def test_most_failures_are_refused_or_warned_of_with_the_right_class() -> None:
    told = {c["id"]: verdict(c) for c in FAILED}
    right = [c for c in FAILED if told[c["id"]].partition(":")[2] == c["class"]]
    assert len(right) >= 0.85 * len(FAILED), told


def test_failures_are_of_every_class_that_memory_has() -> None:
    assert Counter(c["class"] for c in FAILED) == {
        "kv_cache": 7,
        "weights": 2,
        "graph_capture": 1,
        "free_memory": 1,
    }


def test_an_architecture_without_a_known_rule_is_said_and_not_guessed() -> None:
    compressed = [c for c in USABLE if "V4" in c["model"] and c["engine"] == "vllm"]
    assert compressed
    for case in compressed:
        cache = launches.cache_of(case)
        assert cache.bytes_per_token_per_gpu is None
        assert cache.tokens(1 << 34, 4096) is None
        assert cache.bytes_needed(4096) is None
        assert cache.notes


def test_the_page_on_accuracy_is_of_this_code() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "accuracy"))["page"]()
    assert (ROOT / "docs" / "plans" / "accuracy.md").read_text() == made, "run scripts/accuracy --write"
