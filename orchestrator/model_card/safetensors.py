"""Headers of safetensors files: sizes and types of tensors, never weights.

Layout (https://huggingface.co/docs/safetensors): u64 header length (little-endian), that many bytes of JSON
`{name: {dtype, shape, data_offsets: [begin, end]}}`, then the data, without holes.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.model_card import stored_shapes, weight_groups
from orchestrator.model_card.reading import (
    Bytes,
    Damaged,
    LocalFile,
    parse_json,
    read_small,
    reject_placeholder,
    unreadable,
)

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_INDEX_BYTES = 100_000_000
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,6})\.")
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """`data_bytes` is what the tensors take; `elements` maps a dtype ("BF16") to how many there are of it;
    `layers` is one more than the highest layer that a tensor's name has, 0 where no name has one. `groups`
    are bytes by layer (None outside of layers) and group (`weight_groups.group_of`). `shapes` are those of
    embeddings and projections that are stored as they are used (`stored_shapes.Shapes`)."""

    data_bytes: int
    elements: Mapping[str, int]
    layers: int = 0
    groups: Mapping[tuple[int | None, str], int] = field(default_factory=dict)
    shapes: stored_shapes.Shapes = field(default_factory=dict)


def read_header(source: Bytes) -> SafetensorsHeader:
    """Read and check one header. Raises Damaged for everything that cannot be right, a cut file included."""
    reject_placeholder(source)
    head = source.read_at(0, 8)
    if len(head) < 8:
        raise Damaged(f"is cut: it has {len(head)} bytes, less than a header's length")
    (length,) = struct.unpack("<Q", head)
    if length > MAX_HEADER_BYTES:
        raise Damaged(f"says its header has {length:,} bytes; {MAX_HEADER_BYTES:,} is the format's most")
    if 8 + length > source.size:
        raise Damaged(f"is cut: {source.size:,} bytes are there, its header alone has {length:,}")
    text = source.read_at(8, length)
    if len(text) < length:
        raise Damaged("ended while its header was read")
    try:
        data = parse_json(text)
    except Damaged as e:
        raise Damaged(f"has a header that {e}") from None
    data.pop("__metadata__", None)
    elements: Counter[str] = Counter()
    groups: Counter[tuple[int | None, str]] = Counter()
    shapes: dict[tuple[int | None, str], tuple[int, ...]] = {}
    total = end = layers = 0
    for name, entry in data.items():
        dtype, count, begin, stop = _entry(name, entry)
        elements[dtype] += count
        judged = stored_shapes.judged(name, dtype, entry["shape"])
        if judged is not None:
            shapes[judged] = tuple(entry["shape"])
        total += stop - begin
        groups[weight_groups.group_of(name)] += stop - begin
        end = max(end, stop)
        for number in _LAYER.findall(name[:1024]):
            layers = max(layers, int(number) + 1)
    if end != total:
        raise Damaged(f"has tensors that overlap or leave holes: {total:,} bytes in {end:,}")
    if 8 + length + end > source.size:
        raise Damaged(f"is cut: {source.size:,} bytes of {8 + length + end:,} are there")
    return SafetensorsHeader(
        data_bytes=total, elements=dict(elements), layers=layers, groups=dict(groups), shapes=shapes
    )


def _entry(name: str, entry: Any) -> tuple[str, int, int, int]:
    """dtype, elements, first byte, byte after the last."""
    try:
        dtype, shape, (begin, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = all(type(n) is int and 0 <= n < 1 << 62 for n in (*shape, begin, stop))
        if type(dtype) is not str or not whole or stop < begin:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise Damaged(f"describes the tensor {name[:80]!r} in a way that cannot be right") from None
    count = 1
    for n in shape:
        count *= n
        if count >= 1 << 62:
            raise Damaged(f"gives the tensor {name[:80]!r} an absurd shape")
    return dtype[:16], count, begin, stop


def read_index(text: bytes, name: str) -> list[str]:
    """The shards that an index names, sorted. Raises LlmserveError where it is no index or names a path."""
    try:
        shards = sorted(set(parse_json(text)["weight_map"].values()))
    except (Damaged, KeyError, TypeError, AttributeError):
        raise unreadable(name, "is no index of shards") from None
    for shard in shards:
        if (
            not isinstance(shard, str)
            or PurePosixPath(shard).name != shard
            or not shard.endswith(".safetensors")
        ):
            raise unreadable(name, f"names a shard that is no file beside it: {str(shard)[:80]!r}")
    return shards


def weight_files(names: list[str], index: list[str] | None) -> list[str]:
    """Which of a folder's files hold the model's weights: the index's shards, the single file, or else every
    safetensors file that is not another format's copy or an adapter."""
    if index is not None:
        return index
    if SINGLE in names:
        return [SINGLE]
    copies = ("consolidated", "adapter_")
    return sorted(n for n in names if n.endswith(".safetensors") and not n.startswith(copies))


def read_folder(folder: Path, names: list[str]) -> tuple[list[str], SafetensorsHeader | None]:
    """All shards of a folder with these entries, and their headers as one. Where it holds no safetensors
    weights there is no header, and the shards are those that an index names in vain.

    Raises LlmserveError where some shards are missing, or one is cut or damaged; it is named.
    """
    index = None
    if INDEX in names:
        index = read_index(read_small(folder / INDEX, MAX_INDEX_BYTES), str(folder / INDEX))
    files = weight_files(names, index)
    missing = [f for f in files if f not in names]
    if len(missing) == len(files):
        # configuration files alone, as `--include *.json` leaves them, or a download that has just begun
        return files, None
    if missing:
        raise unreadable(
            str(folder),
            f"is an incomplete download: {INDEX} names {len(files)} shards, and {_listed(missing)} missing",
            "fetch it again: what is there already is kept",
        )
    headers = []
    for file in files:
        with LocalFile(folder / file) as f:
            headers.append(checked(f))
    whole = together(headers)
    # one part a rank, as vLLM's sharded_state leaves them: every tensor has a rank's rows alone
    return files, replace(whole, shapes={}) if any("-rank-" in f for f in files) else whole


def _listed(files: list[str]) -> str:
    """`a and b are`, `a is`; of many the first three and how many more."""
    if len(files) == 1:
        return f"{files[0]} is"
    shown = files[:3] + ([f"{len(files) - 3} more"] if len(files) > 3 else [])
    return f"{', '.join(shown[:-1])} and {shown[-1]} are"


def checked(source: Bytes) -> SafetensorsHeader:
    """`read_header`, with the file named in the error."""
    try:
        return read_header(source)
    except Damaged as e:
        raise unreadable(source.name, str(e)) from None


def together(headers: list[SafetensorsHeader]) -> SafetensorsHeader:
    """The headers of all shards as one."""
    elements: Counter[str] = Counter()
    groups: Counter[tuple[int | None, str]] = Counter()
    for header in headers:
        elements.update(header.elements)
        groups.update(header.groups)
    layers = max((h.layers for h in headers), default=0)
    shapes = {key: shape for h in headers for key, shape in h.shapes.items()}
    return SafetensorsHeader(sum(h.data_bytes for h in headers), dict(elements), layers, dict(groups), shapes)
