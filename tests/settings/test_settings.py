from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import settings
from orchestrator.errors import Exit, LlmserveError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path))
    (tmp_path / "config").mkdir()
    return tmp_path / "config"


@pytest.mark.usefixtures("folder")
def test_without_files_there_are_defaults_and_no_engines() -> None:
    assert settings.config() == settings.Config(default_model=None)
    assert settings.engines() == {}


def test_files_of_comments_alone_count_as_absent(folder: Path) -> None:
    (folder / "config.yaml").write_text("# default_model: x\n")
    (folder / "engines.yaml").write_text("")
    assert settings.config().default_model is None
    assert settings.engines() == {}


def test_the_default_model_is_read(folder: Path) -> None:
    (folder / "config.yaml").write_text("default_model: smollm2-135m\n")
    assert settings.config().default_model == "smollm2-135m"


def test_a_typo_in_config_names_file_line_key_and_the_right_key(folder: Path) -> None:
    (folder / "config.yaml").write_text("# mine\n\ndefalt_model: x\n")
    with pytest.raises(LlmserveError) as caught:
        settings.config()
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.message == f"{folder}/config.yaml:3: defalt_model: there is no key `defalt_model`"
    assert caught.value.remedy == "did you mean `default_model`?"


def test_engines_keep_the_order_of_the_file_and_have_an_environment(folder: Path) -> None:
    (folder / "engines.yaml").write_text(
        "here:\n  kind: llamacpp\n  path: /opt/llama-server\n"
        "big:\n  kind: vllm\n  path: ~/v/bin/python\n  env: {VLLM_LOGGING_LEVEL: INFO}\n"
    )
    engines = settings.engines()
    assert list(engines) == ["here", "big"]
    assert engines["here"] == {"kind": "llamacpp", "path": "/opt/llama-server", "env": {}}
    assert engines["big"]["path"] == str(Path.home() / "v/bin/python")
    assert engines["big"]["env"] == {"VLLM_LOGGING_LEVEL": "INFO"}


def test_every_problem_of_engines_is_named_with_its_line(folder: Path) -> None:
    (folder / "engines.yaml").write_text(
        "a:\n  kind: lamacpp\n  path: bin/llama\n"
        "auto:\n  kind: vllm\n  path: /x\n  envs: {}\n"
        "b: /usr/bin/llama-server\n"
        "c:\n  kind: sglang\n"
    )
    with pytest.raises(LlmserveError) as caught:
        settings.engines()
    found = {
        v["message"].removeprefix(f"{folder}/engines.yaml:"): v["remedy"] for v in caught.value.violations
    }
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.code == "bad_engines"
    assert found["2: a.kind: lamacpp is none of llamacpp, vllm, sglang"] == "did you mean `llamacpp`?"
    assert found["3: a.path: bin/llama is not an absolute path"] == "write it from / or ~/ on"
    assert found["7: auto.envs: there is no key `envs`"] == "did you mean `env`?"
    assert "4: auto: `auto` cannot be an engine's name" in found
    remedy = next(r for m, r in found.items() if m.startswith("8: b: "))
    assert remedy == "write b: {kind: llamacpp|vllm|sglang, path: /…}"
    assert found["9: c.path: the key `path` is missing"] == "add `path: ...`"


def test_a_folder_in_place_of_the_file_is_an_error_not_a_crash(folder: Path) -> None:
    (folder / "config.yaml").mkdir()
    with pytest.raises(LlmserveError, match="folder"):
        settings.config()


def test_a_wrong_entry_leaves_the_others(folder: Path) -> None:
    (folder / "engines.yaml").write_text(
        "b: /usr/bin/x\na: {kind: vllm, path: /v}\nc: {kind: vlm, path: /v}\n"
    )
    sound, wrong = settings.sound_engines()
    assert list(sound) == ["a"]
    assert list(wrong) == ["b", "c"]
    assert all(name in str(e.message) for name, e in wrong.items())
