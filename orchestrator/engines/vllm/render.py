"""Levers to `vllm serve`: only flags the installation lists, each in that version's own spelling."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.engines.base import Flag, Installation, Rendered, RenderRequest
from orchestrator.engines.command_line import index
from orchestrator.engines.vllm import speculation
from orchestrator.engines.vllm.owned import owned_violations
from orchestrator.plan import Decision, ProcessPlan, Violation
from orchestrator.problems import nearest

DTYPES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}
"""Neutral names of types in vLLM's words; any other name is passed on as it is."""

_GIB = 1 << 30
_UNSET: tuple[Any, ...] = (None, False, "off", "auto", "none", "", (), [])

_NUMBERS: dict[str, tuple[str, Any]] = {
    "max_model_len": ("--max-model-len", None),
    "max_num_seqs": ("--max-num-seqs", None),
    "max_num_batched_tokens": ("--max-num-batched-tokens", None),
    "long_prefill_token_threshold": ("--long-prefill-token-threshold", 0),
    "tensor_parallel_size": ("--tensor-parallel-size", 1),
    "pipeline_parallel_size": ("--pipeline-parallel-size", 1),
    "gpu_memory_utilization": ("--gpu-memory-utilization", None),
    "block_size": ("--block-size", None),
    "stream_interval": ("--stream-interval", 1),
    "shutdown_timeout_s": ("--shutdown-timeout", 0),
    "max_queued_requests": ("--max-num-queued-reqs", 0),
}
"""Lever to its flag and the value that asks for nothing: vLLM's default in every release, or "no limit"."""

_NAMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "quantization": ("--quantization", ()),
    "dtype": ("--dtype", ()),
    "performance_mode": ("--performance-mode", ("balanced",)),
    "distributed_executor_backend": ("--distributed-executor-backend", ()),
    "reasoning_parser": ("--reasoning-parser", ()),
    "chat_template": ("--chat-template", ()),
}
"""Lever to its flag and the names that ask for nothing."""

_SWITCHES: dict[str, tuple[str, ...]] = {
    "chunked_prefill": ("--enable-chunked-prefill", "--no-enable-chunked-prefill"),
    "prefix_caching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
    "async_scheduling": ("--async-scheduling", "--no-async-scheduling"),
}
"""Lever to its flags of yes and of no. vLLM computes what it does without either, so both are said."""

_WORDLESS: dict[str, tuple[Any, ...]] = {
    "gpu_layers": (),
    "ubatch_tokens": (),
    "cache_reuse_tokens": (0,),
    "kv_unified": (True,),
    "flash_attention": ("on", True),
    "kv_cache_tokens": (),
    "mem_fraction_static": (),
    "disaggregation": (),
}
"""Levers that vLLM has no word for, with the values that ask for nothing."""


class Line:
    """A command line that grows only by flags the installation lists, with values it offers."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.listed = index(installation)
        self.argv: list[str] = list(installation.argv)
        self.missing: list[str] = []
        self.violations: list[Violation] = []

    def lists(self, flag: str) -> bool:
        return flag in self.listed

    def add(self, flag: str, value: Any = None, *, lever: str = "") -> bool:
        """Append a flag; where the installation does not list it, remember the lever as not expressible."""
        known = self.listed.get(flag)
        if known is None:
            if lever:
                self.missing.append(lever)
            return False
        if value is not None and not self._offers(known, flag, str(value), lever):
            return False
        self.argv += [flag] if value is None else [flag, str(value)]
        return True

    def _offers(self, known: Flag, flag: str, value: str, lever: str) -> bool:
        offered = known.choices or tuple(self.installation.extras.get(_OFFERED.get(flag, ""), ()))
        if not offered or value in offered:
            return True
        near = nearest(value, offered)
        typed = f"--set {lever}={near}, or --set {lever}=auto" if near else f"--set {lever}=auto"
        self.violations.append(
            Violation(
                f"{lever or flag.strip('-').replace('-', '_')}_not_offered",
                f"{lever or flag} {value!r}: vLLM {self.installation.version} does not offer it; "
                f"it offers {', '.join(offered)}",
                f"use {typed}" if lever else f"choose one of those, or take {flag} out",
            )
        )
        return False


_OFFERED = {
    "--kv-cache-dtype": "kv_cache_dtypes",
    "--tool-call-parser": "tool_call_parsers",
    "--reasoning-parser": "reasoning_parsers",
}
"""Flags whose choices are not in the parser of every release, and the extra that has them."""


_IN_A_FILE = "GPU-file-"
"""Beginning of the UUIDs that machine files give their GPUs (machine/files.py)."""


def render(request: RenderRequest) -> Rendered:
    """One process of role "server" on port "http"; see the contract's lever table for the mapping. What an
    installation that is there and cannot be used would be asked to do is one violation.

    A lever whose value asks for what vLLM does anyway, in every release alike, has no flag. What the plan
    owns is refused in `engine_args` and `env`, in every spelling.
    """
    if request.installation.extras.get("broken"):
        return _broken(request)
    levers = {name: d.value for name, d in request.levers.items()}
    line = Line(_with_plugins(request))
    line.argv.append(request.model_path)
    line.add("--served-model-name", request.served_model)
    line.add("--host", request.host)
    line.add("--port", "{port:http}")
    _layout(line, levers, request.nodes)
    for lever, (flag, neutral) in _NUMBERS.items():
        if levers.get(lever) not in (None, "auto", neutral):
            line.add(flag, levers[lever], lever=lever)
    _memory(line, levers)
    for lever, flags in _SWITCHES.items():
        if levers.get(lever) not in (None, "auto"):
            line.add(flags[0 if levers[lever] else 1], lever=lever)
    _graphs(line, levers.get("cuda_graph"))
    _names(line, levers)
    json_text, missing, refused = speculation.config(levers.get("speculative"), request.installation)
    line.missing += missing
    line.violations += refused
    if json_text is not None:
        line.add("--speculative-config", json_text, lever="speculative")
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if _is_offline(request.model_path, levers.get("speculative")):
        env["HF_HUB_OFFLINE"] = "1"
    if request.api_key_file is not None:
        line.violations.append(_NO_KEY_FILE)
    process = ProcessPlan(
        role="server",
        argv=(*line.argv, *request.engine_args),
        env={**env, **request.installation.env, **_devices(line, request), **request.env},
        ports={"http": request.port},
        bound=request.host,
    )
    absent = dict.fromkeys([*line.missing, *_wordless(request.levers)])
    return Rendered((process,), tuple(absent), (*line.violations, *owned_violations(request)))


_NO_KEY_FILE = Violation(
    "api_key_file_unknown",
    "vLLM reads no key from a file, and keys are not put on a command line",
    "set VLLM_API_KEY in the environment instead, or serve on loopback without a key",
)


def _broken(request: RenderRequest) -> Rendered:
    problem = request.installation.extras
    process = ProcessPlan(
        "server", request.installation.argv, ports={"http": request.port}, bound=request.host
    )
    return Rendered((process,), (), (Violation("engine_broken", problem["broken"], problem["remedy"]),))


def _with_plugins(request: RenderRequest) -> Installation:
    """The installation; without its lists of parsers where a plugin may bring more."""
    plugins = {
        "--tool-parser-plugin": "tool_call_parsers", "--reasoning-parser-plugin": "reasoning_parsers",
    }  # fmt: skip
    words = {a.partition("=")[0].replace("_", "-") for a in request.engine_args}
    dropped = [extra for flag, extra in plugins.items() if flag in words]
    i = request.installation
    if not dropped:
        return i
    kept = {k: v for k, v in i.extras.items() if k not in dropped}
    return Installation(i.name, i.kind, i.version, i.argv, i.flags, i.env, kept, i.captured)


def _layout(line: Line, levers: Mapping[str, Any], nodes: int) -> None:
    """Whole copies, or attention copies beside spread experts: vLLM has one size for both. Over nodes, Ray
    places the copies, and must be told how many are the first node's (vLLM 0.32.0 v1/engine/utils.py:771)."""
    copies = levers.get("data_parallel_size") or 1
    attention = levers.get("attention_data_parallel_size") or 1
    if copies > 1 and attention > 1:
        line.violations.append(
            Violation(
                "two_data_parallel_sizes",
                f"data_parallel_size is {copies} and attention_data_parallel_size {attention}: "
                "vLLM has one --data-parallel-size for both",
                "set one of them to 1",
            )
        )
    ranks = max(copies, attention)
    if ranks > 1:
        lever = "data_parallel_size" if copies > 1 else "attention_data_parallel_size"
        line.add("--data-parallel-size", ranks, lever=lever)
        if nodes > 1 and levers.get("distributed_executor_backend") == "ray":
            line.add("--data-parallel-backend", "ray", lever=lever)
            line.add("--data-parallel-size-local", max(1, ranks // nodes), lever=lever)
    if attention > 1 or levers.get("expert_parallel") is True:
        line.add("--enable-expert-parallel", lever="expert_parallel")


def _memory(line: Line, levers: Mapping[str, Any]) -> None:
    size = levers.get("kv_cache_bytes")
    # a CPU's size is _devices' matter where it can only be told by a variable
    if size is not None and not _needs_variable(line.installation):
        line.add("--kv-cache-memory-bytes", size, lever="kv_cache_bytes")
    kind = levers.get("kv_cache_dtype")
    if kind not in (None, "auto"):
        line.add("--kv-cache-dtype", DTYPES.get(str(kind), str(kind)), lever="kv_cache_dtype")
    # each data-parallel rank sets aside as much as the flag says
    copies = (levers.get("data_parallel_size") or 1) * (levers.get("attention_data_parallel_size") or 1)
    offload = (levers.get("kv_offload_bytes") or 0) / copies
    gib = int(offload // _GIB) if offload % _GIB == 0 else offload / _GIB
    if gib and line.add("--kv-offloading-size", gib, lever="kv_offload_bytes"):
        backend = line.listed.get("--kv-offloading-backend")
        if backend is not None and backend.default is None:
            # 0.12 refuses a size without one
            line.add("--kv-offloading-backend", "native")


def _graphs(line: Line, value: Any) -> None:
    if value in (None, True, "auto"):
        return
    if value in (False, "off"):
        line.add("--enforce-eager", lever="cuda_graph")
    elif line.lists("--max-cudagraph-capture-size"):
        line.add("--max-cudagraph-capture-size", value, lever="cuda_graph")
    else:
        line.add("--cuda-graph-sizes", value, lever="cuda_graph")


def _names(line: Line, levers: Mapping[str, Any]) -> None:
    for lever, (flag, neutral) in _NAMES.items():
        value = levers.get(lever)
        if value not in (*_UNSET, *neutral):
            name = str(value)
            line.add(flag, DTYPES.get(name, name) if lever == "dtype" else name, lever=lever)
    policy = levers.get("scheduling_policy")
    if policy == "shortest":
        # nearest is `priority`, with the prompt's length in the field of that name of each request
        line.missing.append("scheduling_policy")
    elif policy not in (*_UNSET, "fcfs"):
        line.add("--scheduling-policy", policy, lever="scheduling_policy")
    parser = levers.get("tool_call_parser")
    if parser not in _UNSET and line.add("--tool-call-parser", parser, lever="tool_call_parser"):
        line.add("--enable-auto-tool-choice", lever="tool_call_parser")
    if levers.get("trust_remote_code") is True:
        line.add("--trust-remote-code", lever="trust_remote_code")


def _devices(line: Line, request: RenderRequest) -> dict[str, str]:
    """The environment that makes only the planned devices visible, or gives a CPU its cores and KV size. The
    devices of one node say nothing on another."""
    decided = request.levers
    levers = {name: d.value for name, d in decided.items()}
    if line.installation.extras.get("device") == "cpu":
        return _cpu(line, levers)
    if "threads" in decided and levers["threads"] is not None and not decided["threads"].stock:
        # a GPU's worker sets its own
        line.missing.append("threads")
    devices = levers.get("device_ids")
    if not devices or devices == "auto" or request.nodes > 1:
        return {}
    if line.installation.extras.get("device") == "rocm":
        return {"ROCR_VISIBLE_DEVICES": ",".join(_told(request, devices))}
    return {"CUDA_VISIBLE_DEVICES": ",".join(_told(request, devices)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _told(request: RenderRequest, devices: Sequence[str]) -> list[str]:
    """Devices by UUID; those of a machine file, whose UUIDs no host has, by their numbers."""
    indexes = request.device_indexes
    return [str(indexes[d]) if d.startswith(_IN_A_FILE) and d in indexes else d for d in devices]


def _needs_variable(installation: Installation) -> bool:
    cpu = installation.extras.get("device") == "cpu"
    return cpu and not installation.extras.get("cpu_kv_in_bytes")


def _cpu(line: Line, levers: Mapping[str, Any]) -> dict[str, str]:
    """vLLM's CPU variables. The thread binding is not left to vLLM: two servers would take the same cores."""
    made: dict[str, str] = {}
    size = levers.get("kv_cache_bytes")
    if size is not None and _needs_variable(line.installation):
        whole, rest = divmod(size, _GIB)
        if rest or not whole:
            line.violations.append(
                Violation(
                    "kv_cache_bytes",
                    f"kv_cache_bytes is {size}: vLLM {line.installation.version} takes whole GiB on a CPU",
                    f"use --set kv_cache_bytes={max(whole, 1)}GiB",
                )
            )
        made["VLLM_CPU_KVCACHE_SPACE"] = str(max(whole, 1))
    elif size is None and levers.get("gpu_memory_utilization") is None:
        line.violations.append(
            Violation(
                "cpu_kv_cache_unset",
                "nothing says how much memory the KV cache gets, and left alone vLLM takes nearly all of it",
                "use --set kv_cache_bytes=1GiB",
            )
        )
    if levers.get("threads") is not None:
        ranks = (levers.get("tensor_parallel_size") or 1) * (levers.get("pipeline_parallel_size") or 1)
        made["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        made["OMP_NUM_THREADS"] = str(max(1, levers["threads"] // ranks))
    return made


def _is_offline(model_path: str, asked: Any) -> bool:
    """Whether nothing has to be fetched: model and draft model are folders here."""
    draft = asked.get("model") if isinstance(asked, Mapping) else None
    return os.path.isabs(model_path) and (draft is None or os.path.isabs(str(draft)))


def _wordless(levers: Mapping[str, Decision]) -> list[str]:
    wordless = dict(_WORDLESS)
    if "kv_cache_bytes" in levers and levers["kv_cache_bytes"].value is not None:
        # the same pool in another unit
        del wordless["kv_cache_tokens"]
    return [
        name
        for name, neutral in wordless.items()
        if name in levers and not levers[name].stock and levers[name].value not in (*_UNSET, *neutral)
    ]
