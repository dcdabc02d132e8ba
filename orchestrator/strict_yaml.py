"""YAML as a person writes it: read strictly, with the line of every key, in bounded time and memory.

Scalars follow YAML 1.2's core schema (`off` is a word, not `false`; `010` is ten). Duplicate keys, explicit
tags, several documents, and files that grow through aliases are refused.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import LlmserveError, not_found
from orchestrator.problems import Loc, Problem, error, shown

MAX_BYTES = 1 << 20
_MAX_NODES = 20_000
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Document:
    """A file's mapping, and the line (from 1) of each key and list item in it."""

    path: str
    data: dict[str, Any]
    lines: dict[Loc, int] = field(repr=False)

    def place(self, loc: Loc) -> str:
        """`path:line` of the nearest enclosing key that has a line."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return f"{self.path}:{self.lines.get(loc, 1)}"


class _Refused(Exception):
    """What ends the reading: problems, each with its line."""

    def __init__(self, *found: tuple[int, Problem]) -> None:
        self.found = found


def _refused(line: int, code: str, message: str, remedy: str = "") -> _Refused:
    return _Refused((line, Problem((), code, message, remedy)))


def read(path: Path, code: str) -> Document:
    """Read a mapping from a file.

    Raises LlmserveError: exit 5 where there is no such file, exit 2 (with `code`) where it is no regular
    readable file of at most 1 MiB, not UTF-8, or not a mapping in the YAML described above.
    """
    try:
        return Document(str(path), *_mapping(_text(path, code)))
    except _Refused as e:
        raise error(code, str(path), [(f"{path}:{line}", p) for line, p in e.found]) from None


def value(text: str, code: str, subject: str) -> Any:
    """The YAML value in a command line's text. Raises LlmserveError (exit 2, `code`), naming `subject`."""
    try:
        if len(text) > MAX_BYTES:
            raise _refused(1, "too_large", "the value is larger than 1 MiB")
        node = _compose(text)
        builder = _Builder()
        built = None if node is None else builder.build(node, (), 0)
        if builder.found:
            raise _Refused(*builder.found)
        return built
    except _Refused as e:
        raise error(code, subject, [(subject, p) for _, p in e.found]) from None


def _text(path: Path, code: str) -> str:
    def refuse(what: str, remedy: str = "") -> LlmserveError:
        return error(code, str(path), [(str(path), Problem((), "unreadable", what, remedy))])

    try:
        # a named pipe must not hold the command until somebody writes to it
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(fd, "rb") as f:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise refuse("this is no regular file", "give a YAML file")
            raw = f.read(MAX_BYTES + 1)
    except FileNotFoundError:
        message = f"{path}: there is no such file"
        raise not_found("no_such_file", message, "give the path of a file that exists") from None
    except IsADirectoryError:
        raise refuse("this is a folder", "give a YAML file in it") from None
    except (OSError, ValueError) as e:
        raise refuse(getattr(e, "strerror", None) or str(e)) from None
    if len(raw) > MAX_BYTES:
        raise refuse("the file is larger than 1 MiB", "such a file holds a few lines; is it the right one?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        message = f"byte 0x{raw[e.start]:02x} is not UTF-8"
        raise _refused(line, "not_utf8", message, "save the file as UTF-8") from None


def _mapping(text: str) -> tuple[dict[str, Any], dict[Loc, int]]:
    node = _compose(text)
    if node is None:
        raise _refused(1, "empty", "the file is empty", "write keys and values into it")
    if not isinstance(node, yaml.MappingNode):
        message = "the file does not hold keys and values"
        raise _refused(_line(node), "not_a_mapping", message, "write `key: value` lines")
    builder = _Builder()
    data = builder.build(node, (), 0)
    if builder.found:
        raise _Refused(*builder.found)
    return data, builder.lines


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Loader(yaml.SafeLoader):
    """Composes with a limit on depth and nodes, and no tags."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if getattr(event, "tag", None) not in (None, "!"):
            raise _refused(line, "tag", f"the tag {shown(event.tag)} is not read here", "delete the tag")
        self.depth += 1
        self.nodes += 1
        if self.depth > _MAX_DEPTH:
            raise _refused(line, "too_deep", f"more than {_MAX_DEPTH} levels inside each other")
        if self.nodes > _MAX_NODES:
            raise _refused(line, "too_large", f"more than {_MAX_NODES} keys and values")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {}
for _tag, _form, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_form})$"), list(_first))


def _compose(text: str) -> yaml.Node | None:
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        line = mark.line + 1 if mark else 1
        raise _refused(line, "yaml", *_plainly(e.problem or e.context or "unreadable")) from None
    except yaml.reader.ReaderError as e:
        line = text.count("\n", 0, e.position) + 1
        message = f"the character U+{ord(text[e.position]):04X} may not stand in YAML"
        raise _refused(line, "yaml", message, "delete it") from None
    except yaml.YAMLError as e:
        raise _refused(1, "yaml", shown(str(e))) from None


def _plainly(problem: str) -> tuple[str, str]:
    if "'\\t'" in problem:
        return "a tab stands where YAML wants spaces", "indent with spaces"
    if "expected a single document" in problem or "but found another document" in problem:
        return "the file holds several documents", "delete everything from the second `---` on"
    if "mapping values are not allowed" in problem:
        return "a second `:` stands in this line, or its indent does not fit the line above", (
            "put the value in quotes, or indent keys of one level alike"
        )
    return f"this is not YAML: {problem}", "check indents, quotes and brackets here and in the line above"


class _Builder:
    """Nodes to plain values. `found` collects what is wrong, `lines` where things stand."""

    def __init__(self) -> None:
        self.lines: dict[Loc, int] = {}
        self.found: list[tuple[int, Problem]] = []
        self._built = 0

    def build(self, node: yaml.Node, loc: Loc, depth: int) -> Any:
        self._built += 1
        if self._built > _MAX_NODES or depth > _MAX_DEPTH:
            message = "aliases (`*name`) make the file larger than may be read"
            raise _refused(_line(node), "too_large", message, "write the values out")
        self.lines.setdefault(loc, _line(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(n, (*loc, i), depth + 1) for i, n in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, loc: Loc, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, line, child in self._pairs(node):
            if key in out:
                first = self.lines[(*loc, key)]
                message = f"the key `{shown(key)}` stands here again, first in line {first}"
                self.found.append((line, Problem((), "duplicate_key", message, "keep one of them")))
                continue
            self.lines[(*loc, key)] = line
            out[key] = self.build(child, (*loc, key), depth + 1)
        return out

    def _pairs(self, node: yaml.MappingNode) -> Iterator[tuple[str, int, yaml.Node]]:
        for key_node, child in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                yield key_node.value, _line(key_node), child
            else:
                self.found.append((_line(key_node), Problem((), "bad_key", "a key must be a word")))

    def _scalar(self, node: yaml.Node) -> Any:
        text, kind = str(node.value), node.tag.rsplit(":", 1)[-1]
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            if len(text) > 20:
                raise _refused(_line(node), "bad_value", "a number of more than 20 digits")
            return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        if kind == "float":
            # YAML writes .inf and .nan, which Python's float() does not read
            number = math.inf if text[-1] in "fFnN" else float(text)
            if not math.isfinite(number):
                raise _refused(_line(node), "bad_value", f"{shown(text)} is no finite number")
            return number
        return text
