"""Levers to llama-server's command line. Only flags that the installation lists are emitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.engines.base import Installation, Rendered, RenderRequest
from orchestrator.engines.llamacpp.owned import owned_violations
from orchestrator.levers import LEVERS
from orchestrator.plan import Decision, ProcessPlan, Violation

CACHE_TYPES = {"fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "half": "f16", "auto": "f16"}
"""vLLM's names of cache types in llama.cpp's words; any other name is passed on as it is."""

INT32_MOST = 2**31 - 1
"""llama-server reads its whole numbers with C++'s stoi."""

NGRAM_METHODS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
_METHODS = {
    "ngram": "ngram-simple",
    "draft": "draft-simple",
    "draft_model": "draft-simple",
    "eagle3": "draft-eagle3",
    "mtp": "draft-mtp",
}

_MIB = 1 << 20
_UNSET: tuple[Any, ...] = (None, False, "off", "auto", "none", (), [])
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "data_parallel_size": (1,),
    "attention_data_parallel_size": (1,),
    "scheduling_policy": ("fcfs",),
    "stream_interval": (1,),
    "long_prefill_token_threshold": (0,),
    "max_queued_requests": (0,),
    "expert_parallel": (),
    "quantization": (),
    "dtype": (),
    "block_size": (),
    "cuda_graph": (),
    "performance_mode": (),
    "async_scheduling": (),
    "distributed_executor_backend": (),
}
"""Levers that llama.cpp has no word for, with the values that ask for nothing."""


class Line:
    """A command line that grows only by flags the installation lists."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.argv: list[str] = list(installation.argv)
        self.missing: list[str] = []
        self.violations: list[Violation] = []

    def lists(self, flag: str) -> bool:
        return self.installation.flag(flag) is not None

    def add(self, flag: str, value: Any = None, *, lever: str = "") -> bool:
        """Append a flag; where the installation does not list it, remember the lever as not expressible."""
        known = self.installation.flag(flag)
        if known is None:
            if lever:
                self.missing.append(lever)
            return False
        if isinstance(value, int) and value > INT32_MOST:
            self.violations.append(
                Violation(
                    "above_int32",
                    f"{lever or flag} is {value}: {flag} takes {INT32_MOST} at most",
                    f"lower it with --set {lever}=N" if lever in LEVERS else f"lower {lever or flag}",
                )
            )
        self.argv += [flag] if value is None else [flag, str(value)]
        return True


def render(request: RenderRequest) -> Rendered:
    """One process of role "server" on port "http"; see the contract's lever table for the mapping. What an
    installation that is there and cannot be used would be asked to do is one violation.

    Context is per request: without a unified pool the line multiplies it by the slots. What the plan owns
    is refused in `engine_args` and `env`, in every spelling the installation has for it.
    """
    if request.installation.extras.get("broken"):
        return _broken(request)
    levers = {name: d.value for name, d in request.levers.items()}
    line = Line(request.installation)
    line.add("--model", request.model_path)
    line.add("--alias", request.served_model)
    line.add("--host", request.host)
    line.add("--port", "{port:http}")
    for flag in ("--metrics", "--slots", "--offline"):
        line.add(flag)
    if line.lists("--log-colors"):
        line.add("--log-colors", "off")
    _context(line, levers)
    _batch(line, levers)
    _cache(line, levers)
    _compute(line, levers)
    env = _devices(line, levers)
    _chat(line, levers)
    _speculation(line, levers.get("speculative"))
    violations = line.violations
    if request.api_key_file is not None and not line.add("--api-key-file", request.api_key_file):
        violations.append(
            Violation(
                "api_key_file_unknown",
                f"this llama.cpp ({request.installation.version}) lists no --api-key-file, "
                "and keys are not put on a command line",
                "use a newer llama-server, or serve on loopback without a key",
            )
        )
    violations += owned_violations(request)
    process = ProcessPlan(
        role="server",
        argv=(*line.argv, *request.engine_args),
        # a crash would otherwise start a debugger on itself where one is installed
        env={**request.installation.env, "GGML_NO_BACKTRACE": "1", **env, **request.env},
        ports={"http": request.port},
        bound=request.host,
    )
    missing = dict.fromkeys([*line.missing, *_wordless(request.levers)])
    return Rendered((process,), tuple(missing), tuple(violations))


def _broken(request: RenderRequest) -> Rendered:
    problem = request.installation.extras
    process = ProcessPlan(
        "server", request.installation.argv, ports={"http": request.port}, bound=request.host
    )
    violation = Violation("engine_broken", problem["broken"], problem["remedy"])
    return Rendered((process,), (), (violation,))


def _context(line: Line, levers: Mapping[str, Any]) -> None:
    slots = levers.get("max_num_seqs") or 1
    length = levers.get("max_model_len") or 0
    line.add("--parallel", slots, lever="max_num_seqs")
    if levers.get("kv_unified"):
        if not line.add("--kv-unified", lever="kv_unified"):
            line.add("--ctx-size", str(length * slots))
            return
        pool = levers.get("kv_cache_tokens")
        line.add("--ctx-size", pool or str(length * slots), lever="kv_cache_tokens")
        if length:
            line.add("--kv-unified-per-slot", str(length))
        return
    # builds that know only --kv-unified leave it off once --parallel is given
    line.add("--no-kv-unified")
    # as text: `checks` says which of the two factors makes the product too large
    line.add("--ctx-size", str(length * slots))


def _batch(line: Line, levers: Mapping[str, Any]) -> None:
    for lever, flag in (("max_num_batched_tokens", "--batch-size"), ("ubatch_tokens", "--ubatch-size")):
        if levers.get(lever) is not None:
            line.add(flag, levers[lever], lever=lever)
    if levers.get("chunked_prefill") is False:
        # llama-server always cuts prompts into batches
        line.missing.append("chunked_prefill")


def _cache(line: Line, levers: Mapping[str, Any]) -> None:
    name = cache_type(levers.get("kv_cache_dtype"))
    if name is not None:
        allowed = cache_types(line.installation)
        if allowed and name not in allowed:
            line.missing.append("kv_cache_dtype")
        elif line.add("--cache-type-k", name, lever="kv_cache_dtype"):
            line.add("--cache-type-v", name, lever="kv_cache_dtype")
    if levers.get("prefix_caching") is not None:
        flag = "--cache-prompt" if levers["prefix_caching"] else "--no-cache-prompt"
        line.add(flag, lever="prefix_caching")
    if levers.get("cache_reuse_tokens") is not None:
        lever = "cache_reuse_tokens" if levers["cache_reuse_tokens"] else ""
        line.add("--cache-reuse", levers["cache_reuse_tokens"], lever=lever)
    if levers.get("kv_offload_bytes") is not None:
        _prompt_cache(line, levers["kv_offload_bytes"])


def _prompt_cache(line: Line, size_bytes: int) -> None:
    """The host's prompt cache, which llama-server counts in MiB alone."""
    below, rest = divmod(size_bytes, _MIB)
    if not rest:
        line.add("--cache-ram", below, lever="kv_offload_bytes" if size_bytes else "")
        return
    line.violations.append(
        Violation(
            "kv_offload_bytes",
            f"kv_offload_bytes is {size_bytes}, and llama.cpp keeps its prompt cache in whole MiB",
            f"use --set kv_offload_bytes={f'{below}MiB' if below else '0'}, "
            f"or --set kv_offload_bytes={below + 1}MiB",
        )
    )


def _compute(line: Line, levers: Mapping[str, Any]) -> None:
    attention = levers.get("flash_attention")
    known = line.installation.flag("--flash-attn")
    if isinstance(attention, bool):
        attention = "on" if attention else "off"
    if attention is not None and (known is None or known.takes_value):
        line.add("--flash-attn", attention, lever="flash_attention" if attention != "auto" else "")
    elif attention == "on":
        # older builds: a bare switch, off unless given
        line.add("--flash-attn")
    if levers.get("threads") is not None:
        line.add("--threads", levers["threads"], lever="threads")
        line.add("--threads-batch", levers["threads"])
        # spinning threads starve each other where cores are shared
        line.add("--poll", 0)


def _devices(line: Line, levers: Mapping[str, Any]) -> dict[str, str]:
    """Placement flags, and the environment that makes only the planned devices visible."""
    devices, layers = levers.get("device_ids"), levers.get("gpu_layers")
    if layers is not None:
        line.add("--gpu-layers", layers, lever="gpu_layers" if layers else "")
    if (layers is not None or devices == []) and line.lists("--fit"):
        # what the plan decided is not adjusted behind its back
        line.add("--fit", "off")
    tensor, stages = levers.get("tensor_parallel_size") or 1, levers.get("pipeline_parallel_size") or 1
    if tensor > 1 and stages > 1:
        line.missing.append("pipeline_parallel_size")
    if tensor > 1:
        line.add("--split-mode", "row", lever="tensor_parallel_size")
    elif stages > 1:
        line.add("--split-mode", "layer", lever="pipeline_parallel_size")
    elif devices and len(devices) == 1:
        line.add("--split-mode", "none")
        line.add("--main-gpu", 0)
    if devices is None or devices == "auto":
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _chat(line: Line, levers: Mapping[str, Any]) -> None:
    parser = levers.get("tool_call_parser")
    if parser not in _UNSET:
        # tool calls are read by the model's own template: there is no parser to name
        line.add("--jinja", lever="tool_call_parser")
        if parser != "jinja":
            line.missing.append("tool_call_parser")
    if levers.get("reasoning_parser") is not None:
        name = "none" if levers["reasoning_parser"] in (False, "off") else levers["reasoning_parser"]
        known = line.installation.flag("--reasoning-format")
        if known is not None and known.choices and name not in (*known.choices, known.default):
            line.missing.append("reasoning_parser")
        else:
            line.add("--reasoning-format", name, lever="reasoning_parser")
    if levers.get("chat_template") not in _UNSET:
        line.add("--chat-template-file", levers["chat_template"], lever="chat_template")


def _speculation(line: Line, asked: Any) -> None:
    """The method and its figures; a figure that the method does not have is `speculative.FIGURE` among what
    is not expressible."""
    if asked in _UNSET:
        return
    value = asked if isinstance(asked, Mapping) else {"method": asked}
    method = spec_method(value)
    known = line.installation.flag("--spec-type")
    offered = known.choices if known else ("draft-simple",) if line.lists("--model-draft") else ()
    if method not in offered:
        offers = ", ".join(o for o in offered if o != "none") or "none"
        line.violations.append(
            Violation(
                "speculative_method",
                f"speculative.method {value.get('method')!r}: this llama.cpp ({line.installation.version}) "
                f"does not offer it; it offers {offers}",
                "choose one of those with --set speculative='{method: ...}', or --set speculative=off",
            )
        )
        return
    if known is not None:
        line.add("--spec-type", method)
    flags = _speculation_flags(line, method)
    figures = {k: v for k, v in value.items() if k != "method" and v is not None}
    if "size_n" in flags:
        figures = _looked_up(figures)
    for key, flag in flags.items():
        if key in figures:
            line.add(flag, figures[key], lever=f"speculative.{key}")
    line.missing += [f"speculative.{key}" for key in figures if key not in flags]


def _looked_up(figures: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's two lengths of the run that is looked up as the one that llama.cpp has, where they are one."""
    lengths = {figures[k] for k in ("size_n", "prompt_lookup_min", "prompt_lookup_max") if k in figures}
    if len(lengths) != 1:
        chosen = figures.get("size_n", figures.get("prompt_lookup_max"))
        kept = {k: v for k, v in figures.items() if not k.startswith("prompt_lookup_") or v != chosen}
        return kept if chosen is None else kept | {"size_n": chosen}
    rest = {k: v for k, v in figures.items() if not k.startswith("prompt_lookup_")}
    return rest | {"size_n": lengths.pop()}


def _speculation_flags(line: Line, method: str) -> dict[str, str]:
    """The flags of a method by the figure that each takes."""
    drafted = "--spec-draft-n-max" if line.lists("--spec-draft-n-max") else "--draft-max"
    if method not in NGRAM_METHODS:
        least = "--spec-draft-n-min" if line.lists("--spec-draft-n-min") else "--draft-min"
        draft = "--model-draft"
        return {"model": draft, "num_tokens": drafted, "min_tokens": least, "p_min": "--spec-draft-p-min"}
    if method == "ngram-mod":
        parts = {"num_tokens": "max", "min_tokens": "min", "size_n": "match"}
        return {key: f"--spec-ngram-mod-n-{part}" for key, part in parts.items()}
    if method == "ngram-cache":
        return {"num_tokens": drafted}
    parts = {"size_n": "size-n", "num_tokens": "size-m", "min_hits": "min-hits"}
    return {key: f"--spec-{method}-{part}" for key, part in parts.items()}


def _wordless(levers: Mapping[str, Decision]) -> list[str]:
    return [
        name
        for name, neutral in _NEUTRAL.items()
        if name in levers and not levers[name].stock and levers[name].value not in (*_UNSET, *neutral)
    ]


def cache_type(value: Any) -> str | None:
    """llama.cpp's name of a KV cache type; None where none is asked for."""
    return None if value is None else CACHE_TYPES.get(str(value), str(value))


def cache_types(installation: Installation) -> tuple[str, ...]:
    """The KV cache types an installation allows, () where it does not say."""
    flag = installation.flag("--cache-type-k")
    return flag.choices if flag is not None else ()


def spec_method(value: Any) -> str:
    """llama.cpp's name of a speculation method (`ngram` and `draft` are the neutral names)."""
    method = str(value.get("method", "")) if isinstance(value, Mapping) else str(value)
    return _METHODS.get(method, method)
