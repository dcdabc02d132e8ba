"""strict_yaml: what a person or an attacker may write into a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import strict_yaml
from orchestrator.errors import Exit, LlmserveError


def problem(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(LlmserveError) as caught:
        strict_yaml.read(path, "bad_file")
    assert caught.value.exit_code == Exit.USAGE
    return caught.value.message.removeprefix(f"{path}:")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("010", 10),
        ("0x10", 16),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("", None),
        ("~", None),
        ("'3'", "3"),
        ("[a, {b: 1}]", ["a", {"b": 1}]),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    assert strict_yaml.value(text, "bad", "it") == value


def test_lines_are_known_for_every_key_and_item(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("# first\na:\n  b: 1\n  c:\n    - x\n    - y\n")
    document = strict_yaml.read(file, "bad")
    assert document.data == {"a": {"b": 1, "c": ["x", "y"]}}
    assert document.place(("a", "c", 1)) == f"{file}:6"
    assert document.place(("a", "b")) == f"{file}:3"
    assert document.place(("a", "missing")) == f"{file}:2"


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert strict_yaml.read(file, "bad").data == {"a": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "3: the key `a` stands here again, first in line 1"),
        ("a:\n\tb: 1\n", "2: a tab stands where YAML wants spaces"),
        ("a: 1\nb: !!python/object/apply:os.system [x]\n", "2: the tag "),
        ("a: 1\n---\nb: 2\n", "2: the file holds several documents"),
        ("a: b: c\n", "1: a second `:` stands in this line"),
        ("a: [1\nb: 2\n", "2: "),
        ("- a\n- b\n", "1: the file does not hold keys and values"),
        ("just words\n", "1: the file does not hold keys and values"),
        ("", "1: the file is empty"),
        ("a: 1\nb: .nan\n", "2: "),
        ("a: 123456789012345678901\n", "1: a number of more than 20 digits"),
        ("? [a]\n: 1\n", "1: a key must be a word"),
        (b"a: 1\nb: \xff\n", "2: byte 0xff is not UTF-8"),
        (b"a: 1\nb: \x00\n", "2: the character U+0000 may not stand in YAML"),
        ("a: *x\n", "1: this is not YAML"),
        ("a: &a [*a]\n", "1: aliases"),
        ("[" * 100_000, "1: more than 32 levels"),
        ("\n".join(f"k{i}: 1" for i in range(30_000)), "10000: more than 20000 keys and values"),
    ],
)
def test_what_is_refused_is_named_with_its_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert problem(tmp_path / "a.yaml", text).startswith(said)


def test_aliases_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "aliases" in problem(tmp_path / "a.yaml", "\n".join(lines))


def test_a_file_above_a_mebibyte_is_not_read(tmp_path: Path) -> None:
    assert "larger than 1 MiB" in problem(tmp_path / "a.yaml", "#" * (1 << 20) + "\n")


def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "a.yaml"
    os.mkfifo(pipe)
    with pytest.raises(LlmserveError, match="no regular file"):
        strict_yaml.read(pipe, "bad")


def test_an_endless_device_is_refused() -> None:
    with pytest.raises(LlmserveError, match="no regular file"):
        strict_yaml.read(Path("/dev/zero"), "bad")


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(LlmserveError) as caught:
        strict_yaml.read(tmp_path / "a.yaml", "bad")
    assert caught.value.exit_code == Exit.NOT_FOUND


_WORDS = [*"[]{}'>#%1~,\\é \t", "a", "b:", "- ", "&a ", "*a", "!!str ", "? ", ".inf", "<<: ", "---\n"]
_PIECES = st.sampled_from([*_WORDS, '"', "|", ": ", "\n", "  ", "\0", "\u2028"])


@settings(max_examples=200, deadline=None)
@given(st.lists(_PIECES, max_size=60).map("".join) | st.text(max_size=200))
def test_any_text_is_a_value_or_one_error(text: str) -> None:
    try:
        value = strict_yaml.value(text, "bad", "it")
    except LlmserveError as refused:
        refusal = refused
    else:
        assert value is None or isinstance(value, (str, int, float, list, dict))
        return
    assert refusal.exit_code == Exit.USAGE
    assert refusal.message.startswith("it: ")
