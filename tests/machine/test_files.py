import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from orchestrator.cli import output
from orchestrator.cli.main import app
from orchestrator.errors import Exit, LlmserveError
from orchestrator.machine import Gpu, Holder, Link, Machine, load
from orchestrator.machine.files import names
from orchestrator.machine.schema import size_bytes

GIB = 1 << 30

PAIR = """\
name: pair
cpus: 15.5
memory: 64GiB
gpus:
  - name: NVIDIA L4
    count: 2
    memory: 23034MiB
    compute_capability: 8.9
    links: pcie
    bandwidth_gbps: 16
  - {name: AMD MI300X, memory: 192GiB, free: 190GiB, vendor: amd}
links: cross-socket
"""

EXACT = Machine(
    name="box",
    source="measured",
    platform="linux-x86_64",
    cpus=3.5,
    logical_cpus=4,
    physical_cores=2,
    memory_total_bytes=8 * GIB,
    memory_limit_bytes=4 * GIB,
    memory_available_bytes=3 * GIB,
    shm_total_bytes=64 << 20,
    gpus=(
        Gpu(
            0,
            "GPU-a",
            "NVIDIA H100",
            80 * GIB,
            70 * GIB,
            "9.0",
            holders=(Holder(7, GIB, "x"), Holder(8, None)),
        ),
        Gpu(1, "MIG-b", "NVIDIA H100 MIG", 10 * GIB, 10 * GIB, mig=True, numa_node=1),
    ),
    links=(Link("GPU-a", "MIG-b", "nvlink", 450.0),),
    driver_version="570.1",
    notes=("a note",),
)


def written(folder: Path, text: str, name: str = "m.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def error_of(path: str) -> LlmserveError:
    with pytest.raises(LlmserveError) as caught:
        load(path)
    return caught.value


def test_a_written_file_is_expanded_to_devices_and_pairs(tmp_path: Path) -> None:
    path = written(tmp_path, PAIR)
    m = load(path)
    assert (m.name, m.source, m.cpus, m.logical_cpus, m.physical_cores) == ("pair", path, 15.5, 16, 16)
    assert m.memory_available_bytes == m.memory_limit_bytes == m.memory_total_bytes == 64 * GIB
    assert [g.uuid for g in m.gpus] == ["GPU-file-0", "GPU-file-1", "GPU-file-2"]
    assert m.gpus[0].memory_bytes == m.gpus[0].free_bytes == 23034 << 20
    assert (m.gpus[0].compute_capability, m.gpus[2].vendor, m.gpus[2].free_bytes) == ("8.9", "amd", 190 * GIB)
    assert [(link.kind, link.bandwidth_gbps) for link in m.links] == [
        ("pcie-host", 16),
        ("cross-socket", None),
        ("cross-socket", None),
    ]


def test_unified_memory_needs_no_memory_of_the_gpu(tmp_path: Path) -> None:
    m = load(
        written(
            tmp_path,
            "cpus: 20\nmemory: 128GB\nmemory_available: 119GB\nunified_memory: true\ngpus: [{name: GB10}]\n",
        )
    )
    assert (m.name, m.gpus[0].memory_bytes, m.gpus[0].free_bytes) == ("m", 128 * 10**9, 119 * 10**9)


@pytest.mark.parametrize("style", ["json", "yaml"])
def test_what_the_command_prints_is_read_back_as_it_was(tmp_path: Path, style: str) -> None:
    data = EXACT.to_json()
    text = json.dumps(data, indent=2) if style == "json" else yaml.safe_dump(data)
    path = written(tmp_path, text, f"m.{style}")
    assert load(path) == dataclasses.replace(EXACT, source=path)


def test_the_command_reads_back_what_it_printed(tmp_path: Path) -> None:
    runner = CliRunner()
    first = runner.invoke(app, ["machine", "--json"])
    path = written(tmp_path, first.stdout, "m.json")
    second = runner.invoke(app, ["machine", "--machine", path, "--json"])
    assert json.loads(second.stdout) == json.loads(first.stdout) | {"source": path}


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("cpus: 4\nmemry: 8GiB\nmemory: 8GiB\n", ":2: memry: there is no key", "did you mean `memory`?"),
        (PAIR.replace("count", "cuont"), ":6: gpus[0].cuont: there is no key", "did you mean `count`?"),
        (PAIR.replace("  compute_", "  compte_"), ":8: gpus[0]", "did you mean `compute_capability`?"),
        ("cpus: 4\n", "the key `memory` is missing", "add `memory: ...`"),
        ("cpus: 4\nmemory: 8 parsecs\n", ":2: memory: ", "write bytes, or"),
        ("cpus: 0\nmemory: 1GiB\n", ":1: cpus: 0 must be above 0", ""),
        ("cpus: .nan\nmemory: 1GiB\n", ":1: '.nan' is no finite number", ""),
        (
            "cpus: 4\nmemory: 1GiB\ngpus: [{name: a}]\n",
            ":3: gpus[0]: the key `memory`",
            "unified_memory: true",
        ),
        (
            "cpus: 4\nmemory: 1GiB\ngpus:\n- {name: a, memory: 1GiB, links: nvlnk}\n",
            ":4: gpus[0].links",
            "nvlink",
        ),
        ("cpus: 4\nmemory: 1GiB\ngpus:\n- {name: a, memory: 1GiB, free: 2GiB}\n", ":4: gpus[0].free", "free"),
        ("cpus: 4\nmemory: 1GiB\nmemory_available: 2GiB\n", ":3: memory_available", ""),
        ("- 1\n", "does not hold keys and values", ""),
        ("", "empty", ""),
        ("cpus: [\n", "not YAML", ""),
        ("[" * 30000, ":1: more than 32 levels", ""),
        ("{" * 30000, ":1: more than 32 levels", ""),
        ("cpus: 1\nmemory: " + "9" * 6000, ":2: a number of more than 20 digits", ""),
        (
            "cpus: 1\nmemory: 1\ngpus:\n" + "- {name: a, memory: 1, count: 200}\n" * 2,
            "more than 256",
            "nodes",
        ),
    ],
)
def test_what_is_wrong_is_said_with_line_and_key(
    tmp_path: Path, text: str, message: str, remedy: str
) -> None:
    path = written(tmp_path, text)
    error = error_of(path)
    assert error.exit_code == Exit.USAGE
    assert path in error.message
    assert error.code == "bad_machine_file"
    assert message in error.message
    assert remedy in error.remedy


def test_every_problem_of_a_file_is_named(tmp_path: Path) -> None:
    error = error_of(written(tmp_path, "cpu: 4\nmemory: much\n"))
    assert [v["code"] for v in error.violations] == ["missing_key", "bad_value", "unknown_key"]


def test_a_typo_in_the_exact_form_is_found_too(tmp_path: Path) -> None:
    text = json.dumps(EXACT.to_json(), indent=2)
    error = error_of(written(tmp_path, text.replace('"free_bytes"', '"fre_bytes"', 1), "m.json"))
    (typo,) = [v for v in error.violations if v["code"] == "unknown_key"]
    assert ":21: gpus[0].fre_bytes: there is no key" in typo["message"]
    assert typo["remedy"] == "did you mean `free_bytes`?"
    error = error_of(written(tmp_path, text.replace('"cpus": 3.5', '"cpus": -1'), "m.json"))
    assert "cpus: -1 must be above 0" in error.message
    error = error_of(written(tmp_path, text.replace('"schema_version": 1', '"schema_version": 99'), "m.json"))
    assert ":2: schema_version: 99" in error.message


def test_a_missing_file_and_an_unknown_name_are_refused_with_a_remedy(tmp_path: Path) -> None:
    error = error_of(str(tmp_path / "none.yaml"))
    assert (error.exit_code, error.code) == (Exit.REFUSED, "machine_file_missing")
    assert error.violations[0]["remedy"]
    assert "did you mean 1xl4?" in error_of("1xl").remedy
    assert error_of("a\0b").exit_code == Exit.REFUSED


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_bytes(b"cpus: \xff\xfe")
    assert "is not UTF-8" in error_of(str(tmp_path / "m.yaml")).message


@pytest.mark.parametrize("name", names())
def test_the_projects_own_machines_load_by_name(name: str) -> None:
    m = load(name)
    assert m.name == name
    assert m.memory_available_bytes <= m.memory_limit_bytes
    assert all(0 < g.free_bytes <= g.memory_bytes for g in m.gpus)


def test_the_projects_own_machines_are_found() -> None:
    assert {"cpu16", "1xl4", "1xrtx4090"} <= set(names())


@pytest.mark.parametrize(
    ("text", "size"),
    [(5, 5), ("5", 5), ("1.5GiB", 3 * GIB // 2), ("24 GB", 24 * 10**9), ("7mib", 7 << 20), ("1TB", 10**12)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert size_bytes(text) == size


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(
                    ["cpus", "memory", "gpus", "links", "name", "memory_total_bytes", "count", "x"]
                ),
                inner,
                max_size=5,
            ),
        ),
        max_leaves=12,
    )
)
def test_any_content_is_a_machine_or_one_clear_error(tmp_path: Path, data: object) -> None:
    path = written(tmp_path, json.dumps(data), "m.json")
    try:
        said = load(path).source
    except LlmserveError as e:
        said = f"{e.message}, exit {e.exit_code}"
    assert said == path or (said.startswith(path) and said.endswith("exit 2"))


def test_the_table_fits_eighty_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a command that ran in this process before may have asked for JSON
    monkeypatch.setattr(output, "_json_mode", False)
    path = written(tmp_path, json.dumps(EXACT.to_json()), "m.json")
    shown = CliRunner().invoke(app, ["machine", "--machine", path]).stdout
    lines = [line for line in shown.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80
    assert "x (7), unknown (8)" in " ".join(shown.split())
    assert "nvlink 450 GB/s: GPUs 0-1" in shown


def test_a_slice_is_known_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "cut.yaml"
    file.write_text(
        "cpus: 8\nmemory: 64GiB\ngpus:\n"
        "  - {name: NVIDIA A100-SXM4-80GB MIG 3g.40gb, memory: 40GiB, count: 2}\n"
        "  - {name: NVIDIA A100-SXM4-80GB, memory: 80GiB}\n"
    )
    cut, other, whole = load(str(file)).gpus
    assert (cut.mig, other.mig, whole.mig) == (True, True, False)
    assert cut.uuid.startswith("MIG-")
    assert whole.uuid.startswith("GPU-")
