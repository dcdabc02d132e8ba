"""The header of a GGUF file: metadata and tensor sizes, never weights.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian: magic, u32 version,
u64 tensors, u64 pairs; each pair a string key, u32 type, value; each tensor a string name, u32 dimensions,
u64 each, u32 type, u64 offset; then padding to the alignment and the data.

The header is hostile input. Every count is held against the bytes that are left before anything is made of
it, long strings and arrays are passed over, and what is kept is bounded, so memory stays under a few
megabytes and time under a few seconds whatever the file says.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.model_card.reading import Bytes, Damaged, reject_placeholder

MAX_LAYERS = 4096
_WINDOW_BYTES = 1 << 20
_MAX_PAIRS = 1 << 16
_MAX_TENSORS = 1 << 18
_MAX_ARRAY_STRINGS = 1 << 22
_MAX_NAME_BYTES = 1 << 16
_MAX_KEPT_STRING_BYTES = 4096
_MAX_KEPT_ELEMENTS = MAX_LAYERS
_MAX_HELD_BYTES = 8 << 20
_MAX_STRING_BYTES = 64 << 20
_MAX_HEADER_BYTES = 512 << 20
_BLOCK = re.compile(r"(?:^|\.)blk\.(\d{1,6})\.")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class Passed:
    """A string (`length` bytes) or array (`length` elements) that was passed over, not kept."""

    length: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`values` holds scalars, short strings and short numeric arrays; the rest as `Passed`.

    `tensor_bytes` is the sum over the tensors as stored, `data_end` where the last of them ends.
    `blocks` is one more than the highest N of its tensors `blk.N.`, 0 where it has none.
    `bytes_by_type` maps a ggml type's name to its share; types not in the table are in `unknown_types`.
    """

    version: int
    values: Mapping[str, Any]
    tensors: int
    parameters: int
    tensor_bytes: int
    bytes_by_type: Mapping[str, int]
    unknown_types: tuple[int, ...]
    embedding_rows: int | None
    blocks: int
    data_start: int
    data_end: int


@cache
def tables() -> dict[str, Any]:
    """`gguf_types.yaml`."""
    import yaml

    text = (Path(__file__).parent / "gguf_types.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return data


def read_header(source: Bytes) -> GgufHeader:
    """Read and check a header. Raises Damaged for everything that cannot be right, a cut file included."""
    reject_placeholder(source)
    at = _Cursor(source)
    magic = at.take(4, "the magic number")
    if magic != b"GGUF":
        raise Damaged(f"is no GGUF file: it begins with {magic.decode('ascii', 'backslashreplace')!r}")
    version = at.number("I", "the version")
    if version & 0xFFFF == 0:
        raise Damaged("is a big-endian GGUF file, which no engine here reads")
    if version not in (2, 3):
        raise Damaged(f"is GGUF version {version}; versions 2 and 3 are read")
    tensors = at.count("Q", 33 - 9, _MAX_TENSORS, "tensors")
    pairs = at.count("Q", 8 + 1 + 4 + 1, _MAX_PAIRS, "metadata pairs")
    values: dict[str, Any] = {}
    for _ in range(pairs):
        key = at.string("a metadata key", _MAX_NAME_BYTES)
        if not key:
            raise Damaged("has a metadata key of no length")
        if key in values:
            raise Damaged(f"has the metadata key {key!r} twice")
        values[key] = _value(at, key)
    return _tensors(at, version, values, tensors)


def _value(at: _Cursor, key: str) -> Any:
    kind = at.number("I", f"the type of {key}")
    if kind == _STRING:
        length = at.length(f"the value of {key}", _MAX_STRING_BYTES)
        if length > _MAX_KEPT_STRING_BYTES:
            at.check_utf8(length, f"the value of {key}")
            return Passed(length)
        return at.text(length, f"the value of {key}")
    if kind in _SCALARS:
        return at.number(_SCALARS[kind], f"the value of {key}")
    if kind != _ARRAY:
        raise Damaged(f"gives {key!r} the type {kind}, which GGUF does not have")
    element = at.number("I", f"the element type of {key}")
    if element == _ARRAY:
        raise Damaged(f"gives {key!r} an array of arrays, which no engine reads")
    if element == _STRING:
        count = at.count("Q", 8, _MAX_ARRAY_STRINGS - at.strings, f"strings in {key}")
        at.skip_strings(count, key)
        return Passed(count)
    if element not in _SCALARS:
        raise Damaged(f"gives {key!r} elements of type {element}, which GGUF does not have")
    code = _SCALARS[element]
    width = struct.calcsize(code)
    count = at.count("Q", width, 1 << 62, f"elements in {key}")
    if count > _MAX_KEPT_ELEMENTS:
        at.skip(count * width, f"the array {key}")
        return Passed(count)
    at.hold(count * 32)
    return struct.unpack(f"<{count}{code}", at.take(count * width, f"the array {key}"))


def _tensors(at: _Cursor, version: int, values: dict[str, Any], tensors: int) -> GgufHeader:
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise Damaged(f"gives its data the alignment {alignment!r}, which is no sensible power of two")
    types: dict[int, tuple[str, int, int]] = tables()["tensor_types"]
    by_type: Counter[str] = Counter()
    unknown: set[int] = set()
    parameters = end = blocks = 0
    embedding_rows = None
    last = ""
    for i in range(tensors):
        name = at.string(f"the name of tensor {i}", _MAX_NAME_BYTES, hold=False)
        rank = at.number("I", f"the rank of {name}")
        if rank > 4:
            raise Damaged(f"gives the tensor {name[:80]!r} {rank} dimensions; 4 is the most")
        shape = struct.unpack(f"<{rank}Q", at.take(8 * rank, f"the shape of {name}"))
        kind = at.number("I", f"the type of {name}")
        offset = at.number("Q", f"the offset of {name}")
        elements = 1
        for n in shape:
            elements *= n
        if elements >= 1 << 63 or offset >= 1 << 63:
            raise Damaged(f"gives the tensor {name[:80]!r} an absurd size: {list(shape)} at {offset}")
        if offset % alignment:
            raise Damaged(
                f"puts the tensor {name[:80]!r} at {offset}, which its alignment {alignment} does not divide"
            )
        parameters += elements
        block = _BLOCK.search(name)
        if block is not None:
            blocks = max(blocks, int(block[1]) + 1)
        if name == "token_embd.weight" and rank == 2:
            embedding_rows = shape[1]
        if kind not in types:
            unknown.add(kind)
            continue
        type_name, block_elements, block_bytes = types[kind]
        if (shape[0] if shape else 1) % block_elements:
            raise Damaged(
                f"gives the tensor {name[:80]!r} rows of {shape[0]}, which {type_name} cannot store"
            )
        stored = elements // block_elements * block_bytes
        by_type[type_name] += stored
        if offset + stored > end:
            end, last = offset + stored, name
    start = -(-at.position // alignment) * alignment
    if start + end > at.source.size and tensors:
        raise Damaged(
            f"is cut: {at.source.size:,} bytes of {start + end:,} are there (last tensor {last[:80]!r})"
        )
    total = by_type.total() if not unknown else max(at.source.size - start, 0)
    return GgufHeader(
        version=version,
        values=values,
        tensors=tensors,
        parameters=parameters,
        tensor_bytes=total,
        bytes_by_type=dict(by_type),
        unknown_types=tuple(sorted(unknown)),
        embedding_rows=embedding_rows,
        blocks=blocks,
        data_start=start,
        data_end=start + end,
    )


class _Cursor:
    """Reads forward through a window, and never past the end."""

    def __init__(self, source: Bytes) -> None:
        self.source = source
        self.position = 0
        self.strings = 0
        self._window = b""
        self._window_at = 0
        self._held = 0

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes; `length` must have been held against a limit before."""
        self._need(length, what)
        begin = self.position - self._window_at
        if begin < 0 or begin + length > len(self._window):
            self._window = self.source.read_at(self.position, max(length, _WINDOW_BYTES))
            self._window_at, begin = self.position, 0
            if len(self._window) < length:
                raise Damaged(f"ends inside {what[:120]}")
        self.position += length
        return self._window[begin : begin + length]

    def skip(self, length: int, what: str) -> None:
        self._need(length, what)
        self.position += length

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def count(self, code: str, least_bytes: int, limit: int, what: str) -> int:
        """A count of things of at least `least_bytes` each, held against the limit and the bytes left."""
        n = int(self.number(code, f"the number of {what[:120]}"))
        left = self.source.size - self.position
        if n > limit or n * least_bytes > left:
            raise Damaged(f"says it has {n:,} {what[:120]}, and has {left:,} bytes left")
        return n

    def length(self, what: str, limit: int) -> int:
        n = int(self.number("Q", f"the length of {what}"))
        left = self.source.size - self.position
        if n > limit or n > left:
            raise Damaged(f"gives {what[:120]} {n:,} bytes, with {left:,} bytes left in the file")
        return n

    def string(self, what: str, limit: int, *, hold: bool = True) -> str:
        return self.text(self.length(what, limit), what, hold=hold)

    def text(self, length: int, what: str, *, hold: bool = True) -> str:
        if hold:
            self.hold(length + 128)
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError:
            raise Damaged(f"is not UTF-8 in {what[:120]}") from None

    def check_utf8(self, length: int, what: str) -> None:
        """Pass over a long string that must be UTF-8, a window at a time."""
        import codecs

        decoder = codecs.getincrementaldecoder("utf-8")()
        left = length
        try:
            while left:
                part = min(left, _WINDOW_BYTES)
                left -= part
                decoder.decode(self.take(part, what), final=not left)
        except UnicodeDecodeError:
            raise Damaged(f"is not UTF-8 in {what[:120]}") from None

    def skip_strings(self, count: int, key: str) -> None:
        """Pass over `count` strings. A tokenizer has hundreds of thousands: this is the hot loop."""
        self.strings += count
        unpack = struct.Struct("<Q").unpack_from
        size = self.source.size
        for _ in range(count):
            begin = self.position - self._window_at
            if begin >= 0 and begin + 8 <= len(self._window):
                (length,) = unpack(self._window, begin)
                self.position += 8
            else:
                length = self.number("Q", f"a string of {key}")
            if self.position + length > size:
                raise Damaged(f"gives a string of {key[:80]!r} {length:,} bytes, and ends before")
            self.position += length

    def hold(self, more_bytes: int) -> None:
        """Account for what is kept."""
        self._held += more_bytes
        if self._held > _MAX_HELD_BYTES:
            raise Damaged(f"has more than {_MAX_HELD_BYTES:,} bytes of metadata beside its vocabulary")

    def _need(self, length: int, what: str) -> None:
        if self.position + length > self.source.size:
            raise Damaged(f"is cut: it ends inside {what[:120]}, after {self.source.size:,} bytes")
        if self.position + length > _MAX_HEADER_BYTES:
            raise Damaged(f"has a header of more than {_MAX_HEADER_BYTES:,} bytes")
