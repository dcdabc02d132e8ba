"""Levers to SGLang's command line, in the spelling of the version at hand.

Only flags that the installation lists are emitted, each by its full name: argparse takes any unique beginning
of one, and what is unique changes with the version. Figures of SGLang that count the whole tensor-parallel
group where the lever counts one data-parallel rank are multiplied here (`_Ranks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.engines.base import Flag, Installation, Rendered, RenderRequest
from orchestrator.engines.command_line import index
from orchestrator.engines.sglang import nodes
from orchestrator.engines.sglang.captured import release
from orchestrator.engines.sglang.owned import owned_violations
from orchestrator.engines.sglang.speculation import spec_arguments, spec_method
from orchestrator.plan import Decision, ProcessPlan, Violation
from orchestrator.problems import nearest

GB = 10**9
"""What --hicache-size counts in, for each rank (sglang/srt/mem_cache/pool_host/base.py:223)."""

CACHE_TYPES = {"fp8": ("fp8_e4m3",), "bf16": ("bf16", "bfloat16"), "bfloat16": ("bfloat16", "bf16")}
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}

FAIL_FAST = {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0", "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0"}
"""Without them a dead child keeps the server, deaf, for up to a minute before it ends (sglang 0.5.23,
sglang/srt/environ.py; older versions do not read them)."""

_UNSET: tuple[Any, ...] = (None, False, "off", "auto", "none", (), [])
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "long_prefill_token_threshold": (*_UNSET, 0),
    "cache_reuse_tokens": (*_UNSET, 0),
    "ubatch_tokens": _UNSET,
    "gpu_layers": _UNSET,
    "kv_unified": (None, "auto", True),
    "flash_attention": (None, "auto", "on", True),
    "performance_mode": _UNSET,
    "shutdown_timeout_s": _UNSET,
}
"""Levers that SGLang has no word for, with the values that ask for nothing."""


class Line:
    """A command line that grows only by flags the installation lists."""

    def __init__(self, request: RenderRequest) -> None:
        self.installation: Installation = request.installation
        self.decisions: Mapping[str, Decision] = request.levers
        self.argv: list[str] = list(request.installation.argv)
        self.missing: list[str] = []
        self.violations: list[Violation] = []
        self._listed = index(request.installation)

    def value(self, lever: str) -> Any:
        decision = self.decisions.get(lever)
        return None if decision is None else decision.value

    def flag(self, *names: str) -> tuple[str, Flag] | None:
        """The first of these names that is listed."""
        return next(((n, self._listed[n]) for n in names if n in self._listed), None)

    def add(self, *names: str, value: Any = None, lever: str = "") -> bool:
        """Append the first of `names` that is listed; where none is, or the value is not offered, the lever
        is remembered as not expressible, or refused where the user set it to that value."""
        known = self.flag(*names)
        if known is None:
            self.missing += [lever] if lever else []
            return False
        name, flag = known
        if value is not None and flag.choices and str(value) not in flag.choices:
            self._not_offered(lever, name, value, flag.choices)
            return False
        self.argv += [name] if value is None else [name, str(value)]
        return True

    def _not_offered(self, lever: str, name: str, value: Any, offered: tuple[str, ...]) -> None:
        decision = self.decisions.get(lever)
        if decision is None or decision.rule != "user":
            self.missing += [lever] if lever else []
            return
        near = nearest(str(value), offered)
        other = f"--set {lever}={near}, or " if near else ""
        self.violations.append(
            Violation(
                "value_not_offered",
                f"{lever} {value!r}: {name} of SGLang {self.installation.version} "
                f"offers {', '.join(offered)}",
                f"use {other}--set {lever}=auto",
            )
        )


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The layout in SGLang's terms: `tensor` devices share the layers, `attention` ranks have their own."""

    tensor: int
    pipeline: int
    data: int
    attention: int

    @property
    def all(self) -> int:
        return self.tensor * self.pipeline * self.data

    def requests(self, per_rank: int, version: str) -> int:
        """--max-running-requests: SGLang gives each attention rank its share of it
        (kv_cache_configurator.py:3128), up to 0.5.8 each whole copy too (model_runner.py:290)."""
        shared = self.attention * (self.data if release(version) < (0, 5, 9) else 1)
        return per_rank * shared


def render(request: RenderRequest) -> Rendered:
    """A process for each node: role "server" on port "http", and on others "node-1" and so on.

    Port "nccl" is bound beside "http" where one process group is, and "dist" with those that follow it
    where ranks have attention of their own. Where there are more nodes, the first one's address is the word
    HEAD.
    `max_num_seqs`, `max_num_batched_tokens` and `kv_cache_tokens` are those of one data-parallel rank.
    What the plan owns is refused in `engine_args` and `env`, in every spelling. What an installation that is
    there and cannot be used would be asked to do is one violation.
    """
    if request.installation.extras.get("broken"):
        return _broken(request)
    line = Line(request)
    ports: dict[str, int | None] = {"http": request.port}
    line.add("--model-path", value=request.model_path)
    line.add("--served-model-name", value=request.served_model)
    line.add("--host", value=request.host)
    line.add("--port", value="{port:http}")
    ranks = _layout(line)
    if ranks.data == request.nodes == 1 and line.add("--nccl-port", value="{port:nccl}"):
        # whole copies take a port each, and a fixed one would be taken twice
        ports["nccl"] = None
    own_attention = request.nodes == 1 and ranks.attention > 1
    if own_attention and line.add("--dist-init-addr", value="127.0.0.1:{port:dist}"):
        ports |= dict.fromkeys(nodes.ports_of_attention("dist", ranks.attention))
    line.add("--enable-metrics")
    _sizes(line, ranks)
    _cache(line, ranks)
    _compute(line)
    _scheduling(line)
    _chat(line)
    _speculation(line)
    env = _devices(line, request.nodes, request.device_indexes)
    own, refused = nodes.arguments(request.nodes, request.installation)
    violations = [*refused, *line.violations, *_names(request), *owned_violations(request)]
    processes = tuple(
        ProcessPlan(
            role=f"node-{node}" if node else "server",
            argv=(*line.argv, *words, *request.engine_args),
            # sockets that SGLang leaves in the temporary folder go with the instance's own
            env={**request.installation.env, **FAIL_FAST, "TMPDIR": "{tmpdir}", **env, **request.env},
            ports=dict(ports),
            bound=request.host,
        )
        for node, words in enumerate(own)
    )
    missing = dict.fromkeys([*line.missing, *_wordless(request.levers)])
    return Rendered(processes, tuple(missing), tuple(violations))


def _broken(request: RenderRequest) -> Rendered:
    problem = request.installation.extras
    process = ProcessPlan(
        "server", request.installation.argv, ports={"http": request.port}, bound=request.host
    )
    return Rendered((process,), (), (Violation("engine_broken", problem["broken"], problem["remedy"]),))


def _names(request: RenderRequest) -> list[Violation]:
    found = []
    if ":" in request.served_model:
        found.append(
            Violation(
                "served_model_name",
                f"the served name {request.served_model!r} holds a ':', which SGLang keeps for model:adapter",
                f"serve it under another name, such as {request.served_model.replace(':', '-')}",
            )
        )
    if request.api_key_file is not None:
        found.append(
            Violation(
                "api_key_file_unknown",
                "SGLang reads its key from --api-key alone, and keys are not put on a command line",
                "serve on loopback without a key, and let a router in front ask for it",
            )
        )
    return found


def _layout(line: Line) -> _Ranks:
    tensor, pipeline, data, attention = (
        line.value(lever) or 1
        for lever in (
            "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
            "attention_data_parallel_size",
        )
    )  # fmt: skip
    whole = tensor * attention
    if whole > 1:
        lever = "tensor_parallel_size" if tensor > 1 else "attention_data_parallel_size"
        line.add("--tp-size", value=whole, lever=lever)
    if pipeline > 1:
        line.add("--pp-size", value=pipeline, lever="pipeline_parallel_size")
    if data > 1:
        line.add("--dp-size", value=data, lever="data_parallel_size")
    if attention > 1:
        if line.flag("--attn-dp-size"):
            line.add("--attn-dp-size", value=attention)
        elif line.add("--enable-dp-attention", lever="attention_data_parallel_size"):
            line.add("--dp-size", value=attention)
    expert = line.value("expert_parallel")
    if whole > 1 and (expert or (attention > 1 and expert is None)):
        line.add("--ep-size", value=whole, lever="expert_parallel")
    return _Ranks(whole, pipeline, data, attention)


def _sizes(line: Line, ranks: _Ranks) -> None:
    if (length := line.value("max_model_len")) is not None:
        line.add("--context-length", value=length, lever="max_model_len")
    if (requests := line.value("max_num_seqs")) is not None:
        whole = ranks.requests(requests, line.installation.version)
        line.add("--max-running-requests", value=whole, lever="max_num_seqs")
    step = line.value("max_num_batched_tokens")
    if line.value("chunked_prefill") is False:
        line.add("--chunked-prefill-size", value=-1, lever="chunked_prefill")
        if step is not None:
            line.add("--max-prefill-tokens", value=step, lever="max_num_batched_tokens")
    elif step is not None:
        # SGLang divides the flag's value by the attention ranks
        line.add("--chunked-prefill-size", value=step * ranks.attention, lever="max_num_batched_tokens")


def _cache(line: Line, ranks: _Ranks) -> None:
    tokens, fraction = line.value("kv_cache_tokens"), line.value("mem_fraction_static")
    if fraction is not None:
        line.add("--mem-fraction-static", value=f"{fraction:.4g}", lever="mem_fraction_static")
    if tokens is not None:
        line.add("--max-total-tokens", value=tokens, lever="kv_cache_tokens")
    elif line.installation.extras.get("device") == "cpu":
        line.violations.append(
            Violation(
                "kv_cache_tokens_unset",
                "SGLang on a CPU takes most of the host's memory for its KV pool unless the size is set",
                "use --set kv_cache_tokens=auto, or a number of tokens",
            )
        )
    # both are said through the pool's tokens or the static share, which the planner derives from them
    for lever in ("kv_cache_bytes", "gpu_memory_utilization"):
        decided = line.decisions.get(lever)
        if decided and not decided.stock and decided.value not in _UNSET and fraction is tokens is None:
            line.missing.append(lever)
    if (kind := line.value("kv_cache_dtype")) is not None:
        known = line.flag("--kv-cache-dtype")
        names = CACHE_TYPES.get(str(kind), (str(kind),))
        offered = known[1].choices if known else ()
        name = next((n for n in names if n in offered), names[0])
        line.add("--kv-cache-dtype", value=name, lever="kv_cache_dtype")
    if line.value("prefix_caching") is False:
        line.add("--disable-radix-cache", lever="prefix_caching")
    if line.value("block_size") is not None:
        line.add("--page-size", value=line.value("block_size"), lever="block_size")
    if size_bytes := line.value("kv_offload_bytes"):
        _offload(line, size_bytes, ranks)


def _offload(line: Line, size_bytes: int, ranks: _Ranks) -> None:
    """The hierarchical cache, each rank's share rounded down to the whole GB that SGLang counts in."""
    share = size_bytes // ranks.all // GB
    if share == 0:
        line.violations.append(
            Violation(
                "kv_offload_bytes",
                f"kv_offload_bytes is {size_bytes} for {ranks.all} ranks, and SGLang takes whole GB for each",
                f"use --set kv_offload_bytes={ranks.all}GB or more, or --set kv_offload_bytes=0",
            )
        )
    elif line.add("--enable-hierarchical-cache", lever="kv_offload_bytes"):
        line.add("--hicache-size", value=share, lever="kv_offload_bytes")


def _compute(line: Line) -> None:
    if line.installation.extras.get("device") == "cpu":
        line.add("--device", value="cpu")
        # the default on x86 needs a kernel package that is not published for CPUs
        line.add("--attention-backend", value="torch_native")
    if (dtype := line.value("dtype")) is not None:
        line.add("--dtype", value=DTYPES.get(str(dtype), dtype), lever="dtype")
    if line.value("quantization") not in _UNSET:
        line.add("--quantization", value=line.value("quantization"), lever="quantization")
    if line.value("trust_remote_code"):
        line.add("--trust-remote-code", lever="trust_remote_code")
    graph = line.value("cuda_graph")
    if graph in ("off", False):
        # the single flag of older versions is deprecated where these two are
        if line.flag("--cuda-graph-backend-decode"):
            line.add("--cuda-graph-backend-decode", value="disabled", lever="cuda_graph")
            line.add("--cuda-graph-backend-prefill", value="disabled", lever="cuda_graph")
        else:
            line.add("--disable-cuda-graph", lever="cuda_graph")
            line.add("--disable-piecewise-cuda-graph")
    elif graph not in _UNSET:
        line.add("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs", value=graph, lever="cuda_graph")
    if line.value("async_scheduling") is False:
        line.add("--disable-overlap-schedule", lever="async_scheduling")
    backend = line.value("distributed_executor_backend")
    if backend == "ray":
        line.add("--use-ray", lever="distributed_executor_backend")
    elif backend not in (*_UNSET, "mp"):
        line.missing.append("distributed_executor_backend")


def _scheduling(line: Line) -> None:
    policy = line.value("scheduling_policy")
    if policy == "fcfs":
        line.add("--schedule-policy", value="fcfs", lever="scheduling_policy")
    elif policy == "priority":
        # only first come first served, or longest output first, goes with priorities
        if line.add("--enable-priority-scheduling", lever="scheduling_policy"):
            line.add("--schedule-policy", value="fcfs")
    elif policy == "shortest":
        line.add("--schedule-policy", value="shortest-prefill-first", lever="scheduling_policy")
    if line.value("max_queued_requests"):
        line.add(
            "--max-queued-requests", value=line.value("max_queued_requests"), lever="max_queued_requests"
        )
    if line.value("stream_interval") is not None:
        line.add("--stream-interval", value=line.value("stream_interval"), lever="stream_interval")


def _chat(line: Line) -> None:
    for lever, flag in (
        ("tool_call_parser", "--tool-call-parser"),
        ("reasoning_parser", "--reasoning-parser"),
        ("chat_template", "--chat-template"),
    ):
        if line.value(lever) not in _UNSET:
            line.add(flag, value=line.value(lever), lever=lever)


def _speculation(line: Line) -> None:
    """The method and its figures; one that it does not have is `speculative.FIGURE` among what is not
    expressible."""
    asked = line.value("speculative")
    if asked in _UNSET:
        return
    value = asked if isinstance(asked, Mapping) else {"method": asked}
    method = spec_method(value, line.installation)
    if method is None:
        offers = ", ".join(line.installation.extras.get("spec_methods", ())) or "none"
        line.violations.append(
            Violation(
                "speculative_method",
                f"speculative.method {value.get('method')!r}: SGLang {line.installation.version} "
                f"does not offer it; it offers {offers}",
                "choose one of those with --set speculative='{method: ...}', or --set speculative=off",
            )
        )
        return
    line.add("--speculative-algorithm", value=method, lever="speculative")
    flags, left = spec_arguments(value, method, line.installation)
    for flag, figure in flags.items():
        line.add(flag, value=figure, lever="speculative")
    line.missing += [f"speculative.{key}" for key in left]


def _devices(line: Line, count: int, indexes: Mapping[str, int]) -> dict[str, str]:
    """The environment that makes only the planned devices visible, and the cores of the CPU backend. The
    devices of one node say nothing on another.

    Several devices go by their numbers: SGLang reads CUDA_VISIBLE_DEVICES as numbers when it sets up its own
    all-reduce, and falls back to NCCL's without a word where it holds UUIDs (0.5.23
    srt/distributed/device_communicators/custom_all_reduce_utils.py:475, parallel_state.py:515).
    """
    env: dict[str, str] = {}
    devices, threads = line.value("device_ids"), line.value("threads")
    if devices is not None and devices != "auto" and count == 1:
        if len(devices) > 1 and all(uuid in indexes for uuid in devices):
            devices = [str(indexes[uuid]) for uuid in devices]
        env |= {"CUDA_VISIBLE_DEVICES": ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def _wordless(levers: Mapping[str, Decision]) -> list[str]:
    return [
        name
        for name, neutral in _NEUTRAL.items()
        if name in levers and not levers[name].stock and levers[name].value not in neutral
    ]
