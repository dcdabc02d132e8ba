from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator import profile_files, profiles
from orchestrator.errors import Exit, LlmserveError
from orchestrator.goals import GOALS
from orchestrator.problems import from_validation
from orchestrator.profile_schema import Profile


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of profiles."""
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path))
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    return folder


def refusal(**asked: Any) -> LlmserveError:
    with pytest.raises(LlmserveError) as caught:
        profiles.resolve(**asked)
    return caught.value


def test_the_contracts_defaults_hold_where_nothing_is_said() -> None:
    p = Profile(profile="p", goal="edge")
    assert p.supervision.model_dump() == {
        "restart": {
            "backoff_s": 1,
            "factor": 2,
            "cap_s": 60,
            "budget": 5,
            "window_s": 600,
            "refill_s": 600,
        },
        "liveness": {
            "interval_s": 5,
            "idle_s": 10,
            "deadline_s": 15,
            "deadline_loaded_s": 120,
            "strikes": 2,
        },
        "drain_s": 30,
        "start_cap_s": 3600,
    }
    assert (p.engine, p.model, p.levers, p.env, p.lossless) == ("auto", None, {}, {}, False)
    assert p.engine_args["llamacpp"] == []


def test_the_users_profile_hides_the_built_in_one_and_may_extend_it(home: Path) -> None:
    (home / "edge.yaml").write_text("profile: edge\nextends: edge\nlevers: {max_num_seqs: 3}\n")
    r = profiles.resolve(profile="edge")
    assert r.profile.levers["max_num_seqs"] == 3
    assert r.profile.workload.input_tokens == 512
    assert r.origin["levers.max_num_seqs"] == f"profile edge ({home}/edge.yaml:3)"
    assert r.user_set("max_num_seqs")
    assert not r.user_set("prefix_caching")
    assert not profiles.resolve(goal="edge").user_set("prefix_caching")


def test_extends_merges_key_by_key_and_joins_arguments_base_first(home: Path) -> None:
    (home / "base.yaml").write_text(
        "profile: base\ngoal: edge\nworkload: {input_tokens: 100, turns: 3}\nslo: {ttft_ms: 5, tpot_ms: 6}\n"
        "levers: {threads: 2, speculative: {method: ngram, num_tokens: 4}}\n"
        "engine_args: {llamacpp: [-v], vllm: [--x]}\nenv: {A: a, B: b}\n"
        "supervision: {drain_s: 1, restart: {budget: 9, cap_s: 8}}\n"
    )
    (home / "top.yaml").write_text(
        "profile: top\nextends: base\nworkload: {turns: 4}\nslo: {ttft_ms: null}\n"
        "levers: {speculative: {method: suffix}, block_size: 16}\n"
        "engine_args: {llamacpp: [--mlock]}\nenv: {B: c}\nsupervision: {restart: {cap_s: 7}}\n"
    )
    p = profiles.load("top")
    assert (p.profile, p.extends, p.goal) == ("top", "base", "edge")
    assert (p.workload.input_tokens, p.workload.turns) == (100, 4)
    assert (p.slo.ttft_ms, p.slo.tpot_ms) == (None, 6)
    assert p.levers == {"threads": 2, "speculative": {"method": "suffix"}, "block_size": 16}
    assert (p.engine_args.llamacpp, p.engine_args.vllm) == (["-v", "--mlock"], ["--x"])
    assert p.env == {"A": "a", "B": "c"}
    assert (p.supervision.drain_s, p.supervision.restart.budget, p.supervision.restart.cap_s) == (1, 9, 7)


def test_a_relative_base_is_looked_up_beside_the_file(tmp_path: Path, home: Path) -> None:
    (tmp_path / "base.yaml").write_text("profile: base\ngoal: agent\n")
    (tmp_path / "top.yaml").write_text("profile: top\nextends: ./base.yaml\n")
    assert profiles.load(str(tmp_path / "top.yaml")).goal == "agent"
    assert home.is_dir()


def test_profiles_that_extend_each_other_are_named(home: Path) -> None:
    (home / "a.yaml").write_text("profile: a\nextends: b\n")
    (home / "b.yaml").write_text("profile: b\nextends: a\n")
    e = refusal(profile="a")
    assert e.exit_code == Exit.USAGE
    assert e.message == f"{home}/b.yaml:2: extends: profiles extend each other in a circle: a → b"


def test_a_missing_base_names_who_asked_for_it(home: Path) -> None:
    (home / "a.yaml").write_text("profile: a\n\nextends: edgy\n")
    e = refusal(profile="a")
    assert e.exit_code == Exit.NOT_FOUND
    assert e.message.startswith(f"{home}/a.yaml:3: there is no profile `edgy`")
    assert "did you mean `edge`?" in e.remedy
    (home / "a.yaml").write_text("profile: a\nextends: ./gone.yaml\n")
    e = refusal(profile="a")
    assert e.exit_code == Exit.NOT_FOUND
    assert f"{home}/a.yaml:2" in e.remedy


def test_an_unknown_name_lists_the_known_ones(home: Path) -> None:
    e = refusal(profile="latncy")
    assert e.exit_code == Exit.NOT_FOUND
    assert e.code == "no_such_profile"
    assert "did you mean `latency`?" in e.remedy
    assert "agent, edge, latency, throughput" in e.remedy
    assert str(home) in e.remedy
    assert refusal(profile=str(home / "x.yaml")).exit_code == Exit.NOT_FOUND


@pytest.mark.parametrize(
    "name", ["", ".", "a\0b", "x" * 5000, "../edge", "~nobody-here/x.yaml", "/dev/zero", "/"]
)
def test_odd_names_are_refused_like_any_other(name: str, home: Path) -> None:
    assert refusal(profile=name).exit_code in (Exit.NOT_FOUND, Exit.USAGE)
    assert home.is_dir()


def test_every_problem_of_a_file_is_named_with_line_key_and_nearest(home: Path) -> None:
    (home / "bad.yaml").write_text(
        "profile: bad\n"
        "gaol: edge\n"
        "workload:\n"
        "  input_token: 5\n"
        "  turns: 1.5\n"
        "levers:\n"
        "  max_num_seq: 3\n"
        "  flash_attention: onn\n"
        "supervision:\n"
        "  restart:\n"
        "    bakoff_s: 1\n"
        "engine_args: {vlm: []}\n"
        "env: {A: 1}\n"
        "lossless: yes\n"
    )
    e = refusal(profile="bad")
    assert e.exit_code == Exit.USAGE
    assert e.message == f"{home}/bad.yaml: 10 problems"
    found = {v["message"].removeprefix(f"{home}/bad.yaml:"): v["remedy"] for v in e.violations}
    assert found == {
        "2: gaol: there is no key `gaol`": "did you mean `goal`?",
        "1: goal: the key `goal` is missing": "add `goal: ...`",
        "4: workload.input_token: there is no key `input_token`": "did you mean `input_tokens`?",
        "5: workload.turns: 1.5 is not a whole number": "",
        "7: levers.max_num_seq: there is no lever `max_num_seq`": "did you mean `max_num_seqs`?",
        "8: levers.flash_attention: onn is none of auto, on, off": "did you mean `on`?",
        "11: supervision.restart.bakoff_s: there is no key `bakoff_s`": "did you mean `backoff_s`?",
        "12: engine_args.vlm: there is no key `vlm`": "did you mean `vllm`?",
        "13: env.A: 1 is not text": 'put it in quotes: "1"',
        "14: lossless: yes is not true or false": "write true",
    }


def test_thousands_of_wrong_keys_end_in_one_short_error(home: Path) -> None:
    levers = "".join(f"  max_num_seq{i}: 1\n" for i in range(4000))
    keys = "".join(f"goal{i}: 1\n" for i in range(4000))
    (home / "bad.yaml").write_text(f"profile: bad\ngoal: edge\nlevers:\n{levers}{keys}")
    e = refusal(profile="bad")
    assert e.message.endswith(": 50 or more problems")
    assert len(e.violations) == 50


def test_problems_of_a_base_are_named_with_the_bases_file(home: Path) -> None:
    (home / "base.yaml").write_text("profile: base\ngoal: edge\nlevers: {thread: 1}\n")
    (home / "top.yaml").write_text("profile: top\nextends: base\nlevers: {block: 1}\n")
    messages = [v["message"] for v in refusal(profile="top").violations]
    assert [m.split(":")[0] for m in messages] == [f"{home}/top.yaml", f"{home}/base.yaml"]


def test_a_prefix_longer_than_the_prompt_is_judged_after_merging(home: Path) -> None:
    (home / "ok.yaml").write_text("profile: ok\nextends: agent\nworkload: {shared_prefix_tokens: 5000}\n")
    assert profiles.load("ok").workload.shared_prefix_tokens == 5000
    (home / "no.yaml").write_text("profile: no\nextends: edge\nworkload:\n  shared_prefix_tokens: 5000\n")
    e = refusal(profile="no")
    assert "shared_prefix_tokens 5000 is more than input_tokens 512" in e.message


def test_a_file_in_the_users_folder_bears_its_own_name(home: Path) -> None:
    (home / "mine.yaml").write_text("profile: other\nextends: edge\n")
    assert refusal(profile="mine").remedy == "write `profile: mine`"


@pytest.mark.parametrize("goal", GOALS)
def test_a_goal_alone_means_its_built_in_profile(goal: str, home: Path) -> None:
    (home / f"{goal}.yaml").write_text("broken: [\n")
    r = profiles.resolve(goal=goal)
    assert (r.profile.profile, r.profile.goal, r.user) == (goal, goal, frozenset())


def test_neither_goal_nor_profile_lists_the_goals_and_what_to_type() -> None:
    e = refusal()
    assert e.exit_code == Exit.USAGE
    assert "throughput, latency, agent, edge" in e.message
    assert "--goal edge" in e.remedy


def test_an_unknown_goal_and_a_goal_against_its_profile_are_refused() -> None:
    assert refusal(goal="edgy").remedy == "did you mean `edge`?"
    e = refusal(goal="edge", profile="latency")
    assert (e.exit_code, e.code) == (Exit.USAGE, "goal_conflict")
    assert profiles.resolve(goal="latency", profile="latency").profile.goal == "latency"


def test_a_profile_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        profiles.load("edge").goal = "agent"


_LAYERS = st.fixed_dictionaries(
    {}, optional={layer: st.integers(1, 999) for layer in ("base", "file", "option", "set")}
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_LAYERS)
def test_set_wins_over_option_over_file_over_base(tmp_path: Path, layers: dict[str, int]) -> None:
    def levers(layer: str) -> str:
        return f"levers: {{max_model_len: {layers[layer]}}}\n" if layer in layers else ""

    (tmp_path / "base.yaml").write_text("profile: base\ngoal: edge\n" + levers("base"))
    (tmp_path / "top.yaml").write_text("profile: top\nextends: ./base.yaml\n" + levers("file"))
    r = profiles.resolve(
        profile=str(tmp_path / "top.yaml"),
        options={"levers.max_model_len": layers.get("option")},
        sets=[f"max_model_len={layers['set']}"] if "set" in layers else [],
    )
    winner = next((name for name in ("set", "option", "file", "base") if name in layers), None)
    assert r.profile.levers.get("max_model_len") == (layers[winner] if winner else None)
    assert r.user_set("max_model_len") == (winner is not None)
    origin = {
        None: None,
        "set": "--set",
        "option": "--max-model-len",
        "file": f"profile top ({tmp_path}/top.yaml:3)",
        "base": f"profile base ({tmp_path}/base.yaml:3)",
    }
    assert r.origin.get("levers.max_model_len") == origin[winner]


_LINES = st.sampled_from(
    """\
profile: p
goal: edge
goal: edg
extends: edge
extends: nobody
levers:
  threads: 2
  threads: -1
  speculative: {method: ngram}
workload:
  turns: 3
  turns: x
slo: {}
env: {A: b}
env: {'': x}
engine_args: {vllm: [a]}
lossless: true
supervision:
  restart: {budget: 0}
  restart: 5
model: null
engine: ''
- x
a: [
\t
{}
? x
&a x: *a
''""".splitlines()
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_LINES, max_size=12).map("\n".join) | st.text(max_size=120))
def test_any_text_is_a_profile_or_one_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "any.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        profile = profiles.load(str(file))
    except LlmserveError as refused:
        refusal = refused
    else:
        assert Profile.model_validate(profile.model_dump()) == profile
        return
    assert refusal.exit_code in (Exit.USAGE, Exit.NOT_FOUND)
    assert str(file) in refusal.message


def test_the_built_in_folder_is_the_checkouts_or_the_wheels() -> None:
    assert {p.stem for p in profile_files.builtin_dir().glob("*.yaml")} == {*GOALS, "gpus"}
    assert {p.stem for p in profile_files.found().values() if profile_files.is_builtin(p)} == set(GOALS)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vllm@abc", "abc after @ is no version"),
        ("vllm@", "nothing after @ is no version"),
        ("a b", "a b is no engine's name"),
    ],
)
def test_an_engine_that_has_no_name_is_said_in_words(name: str, said: str) -> None:
    with pytest.raises(ValidationError) as error:
        Profile.model_validate({"profile": "p", "goal": "latency", "engine": name})
    (problem,) = from_validation(error.value, Profile)
    assert said in problem.message
    assert problem.remedy
    assert "^" not in problem.message
