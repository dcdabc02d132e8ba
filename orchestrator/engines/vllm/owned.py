"""Which flags belong to the plan, and the refusal of raw arguments that would set them behind its back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.engines.base import Installation, RenderRequest
from orchestrator.engines.command_line import Given, canonical, negates
from orchestrator.engines.vllm import arguments, captured
from orchestrator.plan import Violation

_SPECULATIVE = "--set speculative='{method: ...}'"
_COPIES = "--set data_parallel_size=N"
_GRAPHS = "--set cuda_graph=off|N"

OWNED: dict[str, str] = {
    "--model": "--model MODEL",
    "--served-model-name": "--model MODEL",
    "--host": "--host ADDRESS",
    "--port": "--port PORT",
    "--uds": "",
    "--grpc": "",
    "--headless": "",
    "--ssl-keyfile": "",
    "--ssl-certfile": "",
    "--disable-log-stats": "",
    "--config": "the levers, and engine_args for the rest",
    "--tensor-parallel-size": "--set tensor_parallel_size=N",
    "--pipeline-parallel-size": "--set pipeline_parallel_size=N",
    "--data-parallel-size": _COPIES,
    "--data-parallel-size-local": _COPIES,
    "--data-parallel-rank": _COPIES,
    "--data-parallel-start-rank": _COPIES,
    "--data-parallel-address": _COPIES,
    "--data-parallel-rpc-port": _COPIES,
    "--data-parallel-hybrid-lb": _COPIES,
    "--data-parallel-external-lb": _COPIES,
    "--data-parallel-multi-port-external-lb": _COPIES,
    "--data-parallel-supervisor-port": _COPIES,
    "--nnodes": "",
    "--node-rank": "",
    "--master-addr": "",
    "--master-port": "",
    "--enable-expert-parallel": "--set expert_parallel=true|false",
    "--device-ids": "--set device_ids=[UUID, ...]",
    "--max-model-len": "--set max_model_len=TOKENS",
    "--max-num-seqs": "--set max_num_seqs=N",
    "--max-num-batched-tokens": "--set max_num_batched_tokens=N",
    "--max-num-queued-reqs": "--set max_queued_requests=N",
    "--enable-chunked-prefill": "--set chunked_prefill=true|false",
    "--long-prefill-token-threshold": "--set long_prefill_token_threshold=TOKENS",
    "--gpu-memory-utilization": "--set gpu_memory_utilization=SHARE",
    "--kv-cache-memory-bytes": "--set kv_cache_bytes=BYTES",
    "--num-gpu-blocks-override": "--set kv_cache_bytes=BYTES",
    "--kv-cache-dtype": "--set kv_cache_dtype=TYPE",
    "--enable-prefix-caching": "--set prefix_caching=true|false",
    "--kv-offloading-size": "--set kv_offload_bytes=BYTES",
    "--kv-transfer-config": "--set disaggregation='{...}', or kv_offload_bytes",
    "--speculative-config": _SPECULATIVE,
    "--spec-method": _SPECULATIVE,
    "--spec-model": _SPECULATIVE,
    "--spec-tokens": _SPECULATIVE,
    "--quantization": "--set quantization=NAME",
    "--dtype": "--set dtype=TYPE",
    "--block-size": "--set block_size=TOKENS",
    "--enforce-eager": _GRAPHS,
    "--max-cudagraph-capture-size": _GRAPHS,
    "--cudagraph-capture-sizes": _GRAPHS,
    "--cuda-graph-sizes": _GRAPHS,
    "--scheduling-policy": "--set scheduling_policy=fcfs|priority",
    "--stream-interval": "--set stream_interval=TOKENS",
    "--performance-mode": "--set performance_mode=NAME",
    "--async-scheduling": "--set async_scheduling=true|false",
    "--distributed-executor-backend": "--set distributed_executor_backend=NAME",
    "--tool-call-parser": "--set tool_call_parser=NAME",
    "--enable-auto-tool-choice": "--set tool_call_parser=NAME",
    "--reasoning-parser": "--set reasoning_parser=NAME",
    "--chat-template": "--set chat_template=FILE",
    "--trust-remote-code": "--set trust_remote_code=true",
    "--shutdown-timeout": "--set shutdown_timeout_s=SECONDS",
}
"""Owned flag to how it is set instead; "" where llmserve needs it as it is."""

SECRETS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
"""Flags that hold a secret to the variable that holds it instead: a command line is seen by everyone here."""

_GRAPH_KEYS = ("cudagraph_capture_sizes", "max_cudagraph_capture_size")

VARIABLES: dict[str, str] = {
    "CUDA_VISIBLE_DEVICES": "--set device_ids=[UUID, ...]",
    "CUDA_DEVICE_ORDER": "",
    "HIP_VISIBLE_DEVICES": "--set device_ids=[UUID, ...]",
    "ROCR_VISIBLE_DEVICES": "--set device_ids=[UUID, ...]",
    "VLLM_CPU_KVCACHE_SPACE": "--set kv_cache_bytes=BYTES",
    "VLLM_ENABLE_STARTUP_PLAN": "--set kv_cache_bytes=BYTES",
    "VLLM_CPU_OMP_THREADS_BIND": "--set threads=N",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "--set threads=N",
    "VLLM_DP_SIZE": _COPIES,
    "VLLM_DP_RANK": _COPIES,
    "VLLM_DP_RANK_LOCAL": _COPIES,
    "VLLM_DP_MASTER_IP": _COPIES,
    "VLLM_DP_MASTER_PORT": _COPIES,
    "PROMETHEUS_MULTIPROC_DIR": "",
}
"""Variables that set what the plan decides (vllm/envs.py of 0.33.0), and how it is set instead."""

_CPU_VARIABLES = {"OMP_NUM_THREADS": "--set threads=N"}
_SET_BY_RENDER = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS",
)  # fmt: skip


def owned_violations(request: RenderRequest) -> list[Violation]:
    """Refusals for `engine_args` and `env`: owned flags, removed ones, unknown ones, stray words, and flags
    whose value is missing or not theirs."""
    installation = request.installation
    parsed = arguments.parse(request.engine_args, installation)
    found: list[Violation] = []
    for given in parsed.given:
        owned = _owner(given, parsed.values)
        if owned is not None:
            found.append(_owned(f"engine_args: {given.word.partition('=')[0]}", owned))
    refused = {canonical(g.flag) for g in parsed.given if _owner(g, parsed.values) is not None}
    for word, meant in parsed.ambiguous.items():
        found.append(
            Violation(
                "ambiguous_flag",
                f"engine_args: {word} could be {' or '.join(meant[:4])}",
                "write the flag in full",
            )
        )
    found += [_unknown(word, installation) for word in parsed.unknown]
    found += [
        Violation(
            "missing_value",
            f"engine_args: {flag} takes a value, and none follows",
            f"give the value as the next item: [{flag}, VALUE], or take {flag} out",
        )
        for flag in parsed.incomplete
        if flag not in refused
    ]
    found += [_bad(flag, text, installation) for flag, text in parsed.bad if flag not in refused]
    found += [
        Violation(
            "stray_argument",
            f"engine_args: {word!r} is neither a flag nor a flag's value",
            "give each flag and each value as an item of its own",
        )
        for word in parsed.positionals
    ]
    return list(dict.fromkeys(found)) + _variables(request)


def _owner(given: Given, values: Mapping[str, Any]) -> str | None:
    name = canonical(given.flag)
    if name in OWNED:
        return name
    # `--hf-token` alone takes the token that is stored here
    if name in SECRETS and (given.values or given.flag.nargs != "?"):
        return name
    if name == "--compilation-config":
        value = values.get(name)
        keys = value if isinstance(value, Mapping) else {}
        off = str(keys.get("cudagraph_mode", "")).upper() == "NONE"
        return "--enforce-eager" if off or any(k in keys for k in _GRAPH_KEYS) else None
    if name == "--optimization-level" and given.values[:1] == ("0",):
        return "--enforce-eager"
    return None


def _owned(what: str, owned: str) -> Violation:
    if owned in SECRETS:
        return Violation(
            "engine_args_owned",
            f"{what} would show a secret to everyone who lists this machine's processes",
            f"set {SECRETS[owned]} in the environment",
        )
    instead = OWNED[owned]
    return Violation(
        "engine_args_owned",
        f"{what} is the plan's" if what.endswith(f" {owned}") else f"{what} sets {owned}, the plan's",
        f"use {instead}" if instead else "leave it out: llmserve needs it as it sets it",
    )


def _unknown(word: str, installation: Installation) -> Violation:
    name = "--" + word[2:].replace("_", "-") if word.startswith("--") else word
    positive = "--" + name.removeprefix("--no-") if name.startswith("--no-") else name
    advice = installation.extras.get("removed", {}).get(positive)
    if advice is not None:
        return Violation(
            "removed_flag", f"engine_args: vLLM {installation.version} no longer has {word}", advice
        )
    since = captured.arrived(positive, installation.version)
    what = f"engine_args: {word} is no flag of {installation.name} {installation.version}"
    if since is not None:
        return Violation("unknown_flag", what, f"vLLM {since} has it: use that or a newer one")
    nearest = installation.nearest(name)
    hint = f"the nearest one it lists is {nearest}" if nearest else "see `vllm serve --help=all`"
    return Violation("unknown_flag", what, hint)


def _bad(flag: str, text: str, installation: Installation) -> Violation:
    known = installation.flag(flag)
    if known is not None and not known.takes_value:
        return Violation(
            "bad_value", f"engine_args: {flag} is a switch and takes no value, {text!r} was given",
            f"write {flag}, or {_negation(flag, installation)}",
        )  # fmt: skip
    kinds = {"int": "a whole number", "float": "a number", "json": "JSON", "size": "a whole number"}
    kind = known.type if known is not None else ""
    offered = f"one of {', '.join(known.choices)}" if known is not None and known.choices else ""
    wanted = offered or kinds.get(kind.removesuffix("_or_auto"), "another value")
    return Violation(
        "bad_value", f"engine_args: {flag} takes {wanted}, and {text!r} is not", f"correct {flag}"
    )


def _negation(flag: str, installation: Installation) -> str:
    known = installation.flag(flag)
    spellings = known.spellings if known is not None else ()
    return next((s for s in spellings if known is not None and negates(known, s)), f"leave {flag} out")


def _variables(request: RenderRequest) -> list[Violation]:
    owned = dict(VARIABLES)
    if request.installation.extras.get("device") == "cpu":
        owned |= _CPU_VARIABLES
    # what render sets itself lies over an entry's environment, the rest would act
    entry = [n for n in request.installation.env if n in owned and n not in _SET_BY_RENDER]
    where = [(n, "env") for n in request.env if n in owned]
    where += [(n, f"env of {request.installation.name} in engines.yaml") for n in entry]
    return [
        Violation(
            "engine_args_owned",
            f"{place}: {name} sets what the plan decides",
            f"use {owned[name]}" if owned[name] else "leave it out",
        )
        for name, place in where
    ]
