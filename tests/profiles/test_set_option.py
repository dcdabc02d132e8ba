"""`--set` and named options over a profile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import profiles
from orchestrator.errors import Exit, LlmserveError
from orchestrator.levers import LEVERS
from orchestrator.profiles import Resolved


def setting(*sets: str) -> Resolved:
    return profiles.resolve(goal="edge", sets=sets)


def refusal(*sets: str) -> LlmserveError:
    with pytest.raises(LlmserveError) as caught:
        setting(*sets)
    assert caught.value.exit_code == Exit.USAGE
    return caught.value


@pytest.mark.parametrize(
    ("text", "lever", "value"),
    [
        ("max_num_seqs=3", "max_num_seqs", 3),
        ("levers.max_num_seqs=3", "max_num_seqs", 3),
        ("flash_attention=off", "flash_attention", "off"),
        ("speculative=off", "speculative", "off"),
        ("speculative={method: ngram, num_tokens: 3}", "speculative", {"method": "ngram", "num_tokens": 3}),
        ("chunked_prefill=true", "chunked_prefill", True),
        ("kv_offload_bytes=2GiB", "kv_offload_bytes", 2 << 30),
        ("device_ids=[GPU-1]", "device_ids", ["GPU-1"]),
        ("chat_template=/a=b", "chat_template", "/a=b"),
    ],
)
def test_a_lever_is_set_by_its_name(text: str, lever: str, value: Any) -> None:
    r = setting(text)
    assert r.profile.levers[lever] == value
    assert r.user_set(lever)
    assert r.origin[f"levers.{lever}"] == "--set"


def test_what_is_set_to_auto_is_the_planners_again() -> None:
    r = setting("prefix_caching=auto")
    assert r.profile.levers["prefix_caching"] == "auto"
    assert not r.user_set("prefix_caching")


def test_sections_are_set_by_dotted_keys() -> None:
    p = setting(
        "workload.input_tokens=99",
        "slo={ttft_ms: 5}",
        "slo.tpot_ms=7",
        "supervision.drain_s=0",
        "supervision.liveness.interval_s=0.05",
        "engine_args.llamacpp=[--mlock]",
        "env.A=1",
        "env.B=x: y",
        "lossless=true",
    ).profile
    assert (p.workload.input_tokens, p.slo.ttft_ms, p.slo.tpot_ms) == (99, 5, 7)
    assert (p.supervision.drain_s, p.supervision.liveness.interval_s) == (0, 0.05)
    assert (p.engine_args.llamacpp, p.env, p.lossless) == (["--mlock"], {"A": "1", "B": "x: y"}, True)


def test_the_last_one_wins() -> None:
    assert setting("threads=1", "levers.threads=2").profile.levers["threads"] == 2


def test_named_options_lie_below_set_and_none_means_not_given() -> None:
    r = profiles.resolve(goal="edge", options={"model": "m", "engine": None}, sets=["engine=mine"])
    assert (r.profile.model, r.profile.engine) == ("m", "mine")
    assert (r.origin["model"], r.origin["engine"]) == ("--model", "--set")
    r = profiles.resolve(goal="edge", options={"model": "m"}, sets=["model=n"])
    assert r.profile.model == "n"


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("max_num_seq=3", "there is no lever `max_num_seq`", "did you mean `max_num_seqs`?"),
        ("threads=many", "many is not a whole number of cores", "llmserve levers threads"),
        ("threads=0", "0 is below the least allowed, 1", "for example --set threads=1"),
        ("threads", "`threads` has no `=`", "LEVER=VALUE"),
        ("sloo.ttft_ms=1", "there is no section `sloo`", "did you mean `slo`?"),
        ("slo.ttf_ms=1", "there is no key `ttf_ms`", "did you mean `ttft_ms`?"),
        ("goal=agent", "`goal` is not set this way", "--goal"),
        ("speculative.method=ngram", "`speculative` is set as a whole", "speculative='{method: ...}'"),
        (
            "levers.speculative.method=ngram",
            "`levers.speculative` is set as a whole",
            "levers.speculative=VALUE",
        ),
        ("workload=5", "5 is not a mapping", "workload.KEY=VALUE"),
        ("levers=[", "this is not YAML", ""),
        ("workload.shared_prefix_tokens=600", "more than input_tokens 512", "raise input_tokens"),
        ("env.A-B=1", "letters, digits and _ only", ""),
    ],
)
def test_what_cannot_be_set_is_named_with_the_way_that_works(text: str, message: str, remedy: str) -> None:
    e = refusal(text)
    assert e.message.startswith("--set")
    assert message in e.message
    assert remedy in e.remedy


def test_all_wrong_settings_are_named_at_once() -> None:
    assert len(refusal("a=1", "b=2", "threads").violations) == 3
    assert len(refusal("threads=0", "block_size=0", "slo.x=1").violations) == 3


_KEYS = st.sampled_from([*LEVERS, "workload.turns", "slo", "env.A", "", ".", "levers.", "model"]) | st.text(
    max_size=20
)


@settings(max_examples=200, deadline=None)
@given(_KEYS, st.text(max_size=20) | st.sampled_from(["1", "auto", "off", "{a: 1}", "[x]", "1GiB", "true"]))
def test_any_setting_is_taken_or_refused(key: str, value: str) -> None:
    try:
        resolved = setting(f"{key}={value}")
    except LlmserveError as refused:
        refusal = refused
    else:
        assert "--set" in resolved.origin.values() or resolved.user == frozenset()
        return
    assert refusal.exit_code == Exit.USAGE
    assert refusal.message.startswith("--set")
