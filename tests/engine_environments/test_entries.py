"""Entries of engines.yaml come and go; what the user wrote stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator import settings
from orchestrator.engine_environments import entries
from orchestrator.errors import Exit, LlmserveError

WRITTEN = """\
# my engines

gpu:            # the big one
  kind: vllm
  # a comment inside
  path: /opt/vllm
  env:
    NOTE: |
      two
      lines

# the small one
small: {kind: llamacpp,
        path: "/opt/llama"}   # flow, two lines
last:
  kind: sglang
  path: ~/sgl
# the end
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMSERVE_HOME", str(tmp_path))
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "engines.yaml"


def test_the_first_entry_makes_the_file_for_the_user_alone(file: Path) -> None:
    file.parent.rmdir()
    entries.add("v", "vllm", Path("/a b/ü: #x"), "made here")
    assert settings.engines() == {"v": {"kind": "vllm", "path": "/a b/ü: #x", "env": {}}}
    assert file.read_text().endswith("  # made here\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(file.parent) == ["engines.yaml"]


@pytest.mark.parametrize(("name", "first", "last"), [("gpu", 3, 10), ("small", 13, 14), ("last", 15, 17)])
def test_one_entry_goes_and_every_other_line_stays(file: Path, name: str, first: int, last: int) -> None:
    file.write_text(WRITTEN)
    before = settings.engines()
    entries.take_out(name)
    assert settings.engines() == {n: e for n, e in before.items() if n != name}
    lines = WRITTEN.splitlines(keepends=True)
    assert file.read_text() == "".join(lines[: first - 1] + lines[last:])


def test_what_was_added_and_taken_out_again_leaves_the_text_as_it_was(file: Path) -> None:
    file.write_text(WRITTEN)
    file.chmod(0o640)
    entries.add("mine", "vllm", Path("/x"))
    assert file.read_text().startswith(WRITTEN)
    assert list(settings.engines()) == ["gpu", "small", "last", "mine"]
    entries.take_out("mine")
    assert file.read_text() == WRITTEN
    assert file.stat().st_mode & 0o777 == 0o640


def test_windows_line_ends_and_a_missing_last_one_are_kept(file: Path) -> None:
    file.write_bytes(b"# mine\r\na: {kind: vllm, path: /a}")
    entries.add("b", "vllm", Path("/b"))
    assert file.read_bytes().count(b"\r\n") == file.read_bytes().count(b"\n") == 3
    entries.take_out("a")
    assert file.read_bytes() == b'# mine\r\nb: {kind: vllm, path: "/b"}\r\n'


def test_a_file_of_comments_alone_gets_its_first_entry_and_loses_its_last(file: Path) -> None:
    file.write_text("# nothing yet\n")
    entries.add("b", "vllm", Path("/b"))
    assert list(settings.engines()) == ["b"]
    entries.take_out("b")
    assert file.read_text() == "# nothing yet\n"


def test_an_equal_entry_is_left_and_another_of_that_name_is_refused(file: Path) -> None:
    file.write_text("b: {path: /b, kind: vllm}\n")
    entries.add("b", "vllm", Path("/b"))
    with pytest.raises(LlmserveError) as caught:
        entries.add("b", "vllm", Path("/c"))
    assert (caught.value.code, caught.value.exit_code) == ("engine_exists", Exit.REFUSED)
    assert file.read_text() == "b: {path: /b, kind: vllm}\n"


@pytest.mark.parametrize(
    "text", ["{b: {kind: vllm, path: /b}}\n", "b: {kind: vllm, path: /b}\n...\n"], ids=["flow", "ended"]
)
def test_a_form_that_cannot_take_a_line_is_refused_and_left(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(LlmserveError) as caught:
        entries.add("c", "vllm", Path("/c"))
    assert caught.value.code == "engines_form"
    assert caught.value.remedy == 'add this line to it: c: {kind: vllm, path: "/c"}'
    assert file.read_text() == text
    assert os.listdir(file.parent) == ["engines.yaml"]


def test_an_entry_that_others_refer_to_is_not_taken_from_under_them(file: Path) -> None:
    text = "a: &a {kind: vllm, path: /a}\nb: *a\n"
    file.write_text(text)
    with pytest.raises(LlmserveError) as caught:
        entries.take_out("a")
    assert caught.value.code == "engines_form"
    assert file.read_text() == text


def test_a_file_that_cannot_be_read_is_refused_and_left(file: Path) -> None:
    file.write_text("a: {kind: vllm\n")
    for change in (lambda: entries.add("b", "vllm", Path("/b")), lambda: entries.take_out("a")):
        with pytest.raises(LlmserveError) as caught:
            change()
        assert caught.value.exit_code == Exit.USAGE
    assert file.read_text() == "a: {kind: vllm\n"


def test_a_link_to_a_file_elsewhere_stays_a_link(file: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "dotfiles.yaml"
    elsewhere.write_text("# kept in git\n")
    file.symlink_to(elsewhere)
    entries.add("b", "vllm", Path("/b"))
    assert file.is_symlink()
    assert elsewhere.read_text().startswith("# kept in git\nb: ")
