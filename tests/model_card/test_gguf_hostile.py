from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import LLAMA, TENSORS, gguf, text, value
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import LlmserveError
from orchestrator.model_card import read_card
from orchestrator.model_card.gguf import read_header
from orchestrator.model_card.gguf_card import card_of
from orchestrator.model_card.reading import Damaged


class InMemory:
    """`Bytes` without a disk, for tests that read thousands of headers."""

    def __init__(self, data: bytes) -> None:
        self.name, self.data, self.size = "memory", data, len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


WHOLE = gguf()


def refused_for(tmp_path: Path, data: bytes) -> LlmserveError:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(LlmserveError) as e:
        read_card(str(path))
    assert e.value.code == "model_unreadable"
    assert e.value.exit_code == 3
    assert e.value.remedy
    return e.value


def test_cut_at_any_byte_it_is_refused() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(Damaged):
            read_header(InMemory(WHOLE[:length]))
    assert card_of([read_header(InMemory(WHOLE))], "s", "n", None, ["f"]).layers == 2


def test_a_cut_file_is_told_how_much_is_there(tmp_path: Path) -> None:
    message = refused_for(tmp_path, WHOLE[:-100]).message
    assert f"{len(WHOLE) - 100:,} bytes of {len(WHOLE):,}" in message


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 3000), st.integers(0, 255)), min_size=1, max_size=8))
def test_flipped_bytes_give_a_card_or_one_clear_error(flips: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for at, byte in flips:
        data[at] = byte
    try:
        c = card_of([read_header(InMemory(bytes(data)))], "s", "n", None, ["f"])
    except Damaged as e:
        assert str(e)  # noqa: PT017
    else:
        assert c.layers >= 1
        assert c.weights_bytes >= 0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=300))
def test_noise_after_the_magic_is_a_clear_error(noise: bytes) -> None:
    with pytest.raises(Damaged):
        read_header(InMemory(b"GGUF\x03\0\0\0" + noise + b"\xff" * 16))


@pytest.mark.parametrize(
    ("what", "data", "said"),
    [
        ("empty", b"", "is empty"),
        ("another format", b"PK\x03\x04" * 20, "no GGUF file"),
        ("version 1", gguf(version=1), "version 1"),
        ("version 4", gguf(version=4), "version 4"),
        ("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "big-endian"),
        ("2^60 pairs", gguf(counts=(2, 1 << 60)), "metadata pairs"),
        ("2^60 tensors", gguf(counts=(1 << 60, 9)), "tensors"),
        (
            "a key longer than the file",
            gguf([], [], counts=(0, 1)) + struct.pack("<QQ", 1 << 15, 0),
            "32,768 bytes",
        ),
        ("a key twice", gguf([("a.b", ("I", 1)), ("a.b", ("I", 2))], []), "twice"),
        ("a key that is not UTF-8", gguf([(b"\xff\xfe", ("I", 1))], []), "not UTF-8"),
        (
            "a value that is not UTF-8",
            gguf([("k", struct.pack("<I", 8) + text(b"\xff"))], []),
            "not UTF-8 in the value of k",
        ),
        ("a key without a name", gguf([("", ("I", 1))], []), "no length"),
        ("an unknown value type", gguf([("k", struct.pack("<II", 99, 0))], []), "type 99"),
        ("nested arrays", gguf([("k", struct.pack("<IIQ", 9, 9, 1))], []), "array of arrays"),
        ("an array of unknown type", gguf([("k", struct.pack("<IIQ", 9, 50, 1))], []), "elements of type 50"),
        ("2^61 strings", gguf([("k", struct.pack("<IIQ", 9, 8, 1 << 61))], []), "strings in k"),
        ("2^61 numbers", gguf([("k", struct.pack("<IIQ", 9, 4, 1 << 61))], []), "elements in k"),
        (
            "a string longer than the file",
            gguf([("k", struct.pack("<IQ", 8, 1 << 40))], []),
            "1,099,511,627,776",
        ),
        ("five dimensions", gguf(LLAMA, [("x", (1, 1, 1, 1, 1), 0, 4)]), "5 dimensions"),
        ("an absurd tensor", gguf(LLAMA, [("x", (1 << 40, 1 << 40), 0, 0)]), "absurd size"),
        ("rows no block fits", gguf(LLAMA, [("x", (33,), 8, 34)]), "cannot store"),
        ("alignment 0", gguf(LLAMA | {"general.alignment": ("I", 0)}), "alignment 0"),
        ("no architecture", gguf({}, []), "architecture"),
        ("2^31 layers", gguf(LLAMA | {"llama.block_count": ("I", 1 << 31)}), "block_count is 2147483648"),
        (
            "no context",
            gguf({k: v for k, v in LLAMA.items() if "context" not in k}),
            "context_length is missing",
        ),
        ("a text where a number belongs", gguf(LLAMA | {"llama.block_count": "many"}), "block_count is many"),
        (
            "heads for too few layers",
            gguf(LLAMA | {"llama.attention.head_count_kv": ("I", [2])}),
            "1 of 2 layers",
        ),
        ("a projector", gguf(LLAMA | {"general.architecture": "clip"}), "not a language model"),
        (
            "a git-lfs pointer",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 98362432\n",
            "git-lfs pointer, not the file of 98,362,432 bytes",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) and len(v) < 40 else "",
)
def test_hostile_headers_end_in_one_clear_error(tmp_path: Path, what: str, data: bytes, said: str) -> None:
    import re

    assert re.search(said, refused_for(tmp_path, data).message)


def test_a_fifo_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(LlmserveError, match="not a regular file"):
        read_card(str(tmp_path / "m.gguf"))


def test_a_folder_with_a_gguf_name_and_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").mkdir()
    with pytest.raises(LlmserveError, match="neither a config"):
        read_card(str(tmp_path / "m.gguf"))


def test_a_missing_file_and_a_dangling_link_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(tmp_path / "gone.gguf")
    for name in ("no.gguf", "link.gguf"):
        with pytest.raises(LlmserveError) as e:
            read_card(str(tmp_path / name))
        assert (e.value.code, e.value.exit_code) == ("model_not_found", 3)
        assert "models list" in e.value.remedy


@pytest.mark.parametrize(
    "pairs",
    [
        {"k": struct.pack("<IIQ", 9, 8, 1 << 20)},
        {"k": struct.pack("<IIQ", 9, 4, 1 << 20)},
        {"k": struct.pack("<IQ", 8, 8 << 20)},
        {f"k{i:05d}" + "x" * 1000: value("y" * 4000) for i in range(1600)},
    ],
    ids=["strings", "numbers", "one string", "many keys"],
)
def test_memory_stays_small_whatever_the_counts(tmp_path: Path, pairs: dict[str, Any]) -> None:
    # the file is sparse: as large as the counts want, with nothing in it
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(pairs, []))
    os.truncate(path, path.stat().st_size + (9 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(LlmserveError):
            read_card(str(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20


def test_a_vocabulary_is_counted_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(LLAMA | {"tokenizer.ggml.tokens": ["token"] * 200_000}, TENSORS))
    tracemalloc.start()
    try:
        assert read_card(str(path)).vocab_size == 200_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20


def test_a_file_this_user_may_not_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may read everything, so the refusal of the system is played
    (tmp_path / "m.gguf").write_bytes(WHOLE)

    def deny(*args: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(LlmserveError, match="Permission denied") as e:
        read_card(str(tmp_path / "m.gguf"))
    assert "readable" in e.value.remedy


def test_a_device_is_refused() -> None:
    with pytest.raises(LlmserveError, match="not a regular file"):
        read_card("/dev/zero")
