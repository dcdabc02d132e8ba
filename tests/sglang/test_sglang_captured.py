import json
from pathlib import Path

import pytest

import orchestrator.engines.sglang
from orchestrator.engines.sglang import captured
from orchestrator.engines.sglang.captured import release, versions
from orchestrator.errors import LlmserveError

FOLDER = Path(orchestrator.engines.sglang.__file__).parent


def test_the_newest_version_that_is_not_above_the_asked_one_stands_for_it() -> None:
    assert captured.captured("0.5.9").version == "0.5.9"
    assert captured.captured("0.5.10.post1").version == "0.5.9"
    assert captured.captured("0.5.6").version == "0.5.4"
    assert captured.captured("0.5.99").version == captured.captured().version == versions()[-1] == "0.5.23"


@pytest.mark.parametrize("version", ["0.4.9", "0.5.0", "0.6.0", "1.0", "main"])
def test_a_version_that_is_far_from_all_known_ones_is_refused(version: str) -> None:
    with pytest.raises(LlmserveError) as error:
        captured.captured(version)
    assert error.value.exit_code == 5
    assert version in error.value.message


def test_versions_sort_as_numbers() -> None:
    assert [release(v) for v in ("0.5.10", "0.5.6.post2", "0.5.3rc0", "x")] == [
        (0, 5, 10), (0, 5, 6, 2), (0, 5, 3), (),
    ]  # fmt: skip
    assert list(versions()) == sorted(versions(), key=release)


@pytest.mark.parametrize("version", versions())
def test_a_table_has_every_flag_once_with_its_type_and_source(version: str) -> None:
    told = json.loads((FOLDER / "flags" / f"{version}.json").read_text(encoding="utf-8"))
    later = [v for v in versions() if release(v) > release(version)]
    assert (told["version"], told["until"]) == (version, later[0] if later else "0.6")
    assert version in told["source"]
    spellings = [s for r in told["flags"] for s in r["spellings"]]
    assert len(spellings) == len(set(spellings)) > 200
    assert {r["type"] for r in told["flags"]} <= {"bool", "int", "float", "str", "json", "size_si"}
    assert "--model-path" in spellings


def test_the_counts_are_those_of_the_releases() -> None:
    counts = {v: sum(len(f.spellings) for f in captured.captured(v).flags) for v in versions()}
    # 0.5.4, 0.5.9: add_cli_args in server_args.py; 0.5.23: assembled from arg_groups/fields
    assert (counts["0.5.4"], counts["0.5.9"], counts["0.5.23"]) == (281, 341, 559)


def test_a_captured_one_says_what_the_planner_asks_for() -> None:
    installation = captured.captured("0.5.23")
    assert (installation.captured, installation.argv[-1]) == (True, "sglang.launch_server")
    assert installation.env == {}
    extras = installation.extras
    assert (extras["device"], extras["distribution"]) == ("cuda", "sglang")
    assert {"EAGLE3", "NGRAM", "DFLASH"} <= set(extras["spec_methods"])
    assert {"mooncake", "nixl"} <= set(extras["kv_connectors"])
    assert "fp8_e4m3" in extras["kv_cache_dtypes"]
    assert "shortest-prefill-first" in extras["schedule_policies"]
    assert captured.captured("0.5.23", "cpu").env == {"SGLANG_USE_CPU_ENGINE": "1"}


def test_a_flag_says_its_type_its_number_of_values_and_its_default() -> None:
    installation = captured.captured("0.5.23")
    policy, graphs = installation.flag("--schedule-policy"), installation.flag("--cuda-graph-bs-decode")
    assert policy is not None
    assert graphs is not None
    assert (policy.type, policy.default, "lpm" in policy.choices) == ("str", "fcfs", True)
    assert (graphs.type, graphs.nargs, graphs.takes_value) == ("int", "+", True)
    switch = installation.flag("--no-enable-tf32-matmul")
    assert switch is not None
    assert (switch.type, switch.takes_value) == ("bool", False)


def test_what_is_gone_is_complete_and_says_what_to_use_among_the_newest_flags() -> None:
    spellings = {v: {s for f in captured.captured(v).flags for s in f.spellings} for v in versions()}
    for version, listed in spellings.items():
        older = [spellings[v] for v in versions() if release(v) < release(version)]
        gone = set().union(*older) - listed
        # a flag that came back is not gone
        gone -= spellings[versions()[-1]]
        assert set(captured.captured(version).extras["removed"]) == gone
    for advice in captured.captured().extras["removed"].values():
        named = {w.rstrip(":;,") for w in advice.split() if w.startswith("--")} - {"--set"}
        assert named <= spellings[versions()[-1]], advice


def test_deprecated_flags_are_listed_in_sglangs_own_words() -> None:
    said = captured.captured("0.5.23").extras["deprecated"]
    assert "cuda-graph-backend" in said["--disable-cuda-graph"]


def test_it_is_said_when_a_flag_came() -> None:
    assert captured.first_version("--model-path") == versions()[0]
    assert captured.first_version("--attn-dp-size") == "0.5.22"
    assert captured.first_version("--nonsense") is None
