import json

import pytest

from orchestrator.errors import Exit, LlmserveError
from orchestrator.supervisor import store
from orchestrator.supervisor.environment import allowed, authorization, redacted


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path))
    return tmp_path


def test_an_unknown_deployment_is_exit_5_and_names_those_there_are():
    folder = store.DeploymentFolder("edge-a")
    folder.path.mkdir(parents=True)
    folder.write_state({"state": "stopped"})
    with pytest.raises(LlmserveError) as e:
        store.find("edge-b")
    assert e.value.exit_code == Exit.NOT_FOUND
    assert "edge-a" in e.value.remedy


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", ".hidden", "x" * 64, "a\nb"])
def test_a_name_that_is_no_folder_name_is_refused(name):
    with pytest.raises(LlmserveError) as e:
        store.check_name(name)
    assert e.value.exit_code == Exit.USAGE


def test_events_are_a_line_each_and_a_cut_line_is_passed_over():
    folder = store.DeploymentFolder("a")
    folder.path.mkdir(parents=True)
    folder.append_event("one", "server", x=1)
    with folder.events_file.open("a") as f:
        f.write('{"time": 1, "kind": "cu\n')
    folder.append_event("two")
    assert [e["kind"] for e in folder.events()] == ["one", "two"]
    assert {"time", "deployment", "process", "kind"} <= set(next(folder.events()))


def test_a_damaged_state_is_no_state_and_no_traceback():
    folder = store.DeploymentFolder("a")
    folder.path.mkdir(parents=True)
    (folder.path / "state.json").write_bytes(b"\xff\xfe{{{")
    assert folder.state() is None


def test_state_files_are_the_users_alone():
    folder = store.DeploymentFolder("a")
    folder.path.mkdir(parents=True, mode=0o700)
    folder.write_env({"HF_TOKEN": "hf_x"})
    assert (folder.path / "env.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((folder.path / "env.json").read_text()) == {"HF_TOKEN": "hf_x"}


def test_a_server_with_a_key_is_asked_with_it():
    assert authorization("vllm", {"VLLM_API_KEY": "one", "LLAMA_API_KEY": "two"}) == {
        "Authorization": "Bearer one"
    }
    assert authorization("llamacpp", {"LLAMA_API_KEY": "two, three"}) == {"Authorization": "Bearer two"}
    assert authorization("sglang", {"VLLM_API_KEY": "one", "": "x"}) == {}
    assert authorization("vllm", {"VLLM_API_KEY": ""}) == {}


def test_the_engine_inherits_the_allowed_names_and_nothing_else():
    env = {"PATH": "/bin", "HF_HOME": "/h", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "s", "SSH_AUTH_SOCK": "x"}
    env["LLAMA_ARG_CTX_SIZE"] = "1"
    assert allowed(env) == {"PATH": "/bin", "HF_HOME": "/h", "LC_ALL": "C"}


def test_a_vllm_port_that_is_a_uri_is_left_behind():
    assert allowed({"VLLM_PORT": "tcp://10.0.0.1:8000"}) == {}
    assert allowed({"VLLM_PORT": "8000"}) == {"VLLM_PORT": "8000"}


def test_secrets_are_shown_as_stars_also_inside_addresses():
    shown = redacted({"HF_TOKEN": "hf_x", "HTTPS_PROXY": "http://u:pw@proxy:1", "PATH": "/bin"})
    assert shown == {"HF_TOKEN": "***", "HTTPS_PROXY": "http://u:***@proxy:1", "PATH": "/bin"}
