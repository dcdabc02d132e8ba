"""Which flags belong to the plan, and the refusal of raw arguments that would set them behind its back."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.engines.base import Installation, RenderRequest
from orchestrator.engines.command_line import Given, Parsed, parse
from orchestrator.engines.sglang.captured import first_version
from orchestrator.plan import Violation

_TP = "--set tensor_parallel_size=N"
_DP = "--set data_parallel_size=N"
_ATTENTION = "--set attention_data_parallel_size=N"
_GRAPH = "--set cuda_graph=auto|off|N"
_SPEC = "--set speculative='{method: ..., num_tokens: N}'"
_DRAFT = "--set speculative='{method: ..., model: PATH}'"
_KEY = "a router in front that asks for the key"

OWNED: dict[str, str] = {
    "--model-path": "--model MODEL",
    "--served-model-name": "--model MODEL",
    "--host": "--host ADDRESS",
    "--port": "--port PORT",
    "--nccl-port": "",
    "--dist-init-addr": "",
    "--nnodes": "",
    "--node-rank": "",
    "--enable-metrics": "",
    "--config": "engine_args, one item for each flag and value of that file",
    "--api-key": _KEY,
    "--admin-api-key": _KEY,
    "--device": "",
    "--base-gpu-id": "--set device_ids=[UUID, ...]",
    "--gpu-id-step": "--set device_ids=[UUID, ...]",
    "--smg-grpc-mode": "",
    "--grpc-mode": "",
    "--grpc-port": "",
    "--skip-server-warmup": "",
    "--tp-size": _TP,
    "--pp-size": "--set pipeline_parallel_size=N",
    "--dp-size": _DP,
    "--attn-dp-size": _ATTENTION,
    "--enable-dp-attention": _ATTENTION,
    "--ep-size": "--set expert_parallel=true|false",
    "--context-length": "--set max_model_len=TOKENS",
    "--max-running-requests": "--set max_num_seqs=N",
    "--chunked-prefill-size": "--set max_num_batched_tokens=N, or --set chunked_prefill=false",
    "--mem-fraction-static": "--set gpu_memory_utilization=SHARE",
    "--max-total-tokens": "--set kv_cache_tokens=TOKENS",
    "--kv-cache-dtype": "--set kv_cache_dtype=TYPE",
    "--disable-radix-cache": "--set prefix_caching=true|false",
    "--enable-hierarchical-cache": "--set kv_offload_bytes=BYTES",
    "--hicache-size": "--set kv_offload_bytes=BYTES",
    "--hicache-ratio": "--set kv_offload_bytes=BYTES",
    "--page-size": "--set block_size=N",
    "--dtype": "--set dtype=TYPE",
    "--quantization": "--set quantization=NAME",
    "--trust-remote-code": "--set trust_remote_code=true",
    "--disable-cuda-graph": _GRAPH,
    "--cuda-graph-config": _GRAPH,
    "--cuda-graph-max-bs": _GRAPH,
    "--cuda-graph-max-bs-decode": _GRAPH,
    "--cuda-graph-bs": _GRAPH,
    "--cuda-graph-bs-decode": _GRAPH,
    "--cuda-graph-backend-decode": _GRAPH,
    "--disable-decode-cuda-graph": _GRAPH,
    "--disable-overlap-schedule": "--set async_scheduling=true|false",
    "--use-ray": "--set distributed_executor_backend=ray",
    "--schedule-policy": "--set scheduling_policy=fcfs|priority|shortest",
    "--enable-priority-scheduling": "--set scheduling_policy=priority",
    "--max-queued-requests": "--set max_queued_requests=N",
    "--stream-interval": "--set stream_interval=N",
    "--tool-call-parser": "--set tool_call_parser=NAME",
    "--reasoning-parser": "--set reasoning_parser=NAME",
    "--chat-template": "--set chat_template=FILE",
    "--speculative-algorithm": _SPEC,
    "--speculative-draft-model-path": _DRAFT,
    "--speculative-num-steps": _SPEC,
    "--speculative-eagle-topk": _SPEC,
    "--speculative-num-draft-tokens": _SPEC,
    "--speculative-ngram-max-bfs-breadth": _SPEC,
    "--speculative-ngram-min-match-window-size": _SPEC,
    "--speculative-ngram-max-match-window-size": _SPEC,
    "--disaggregation-mode": "--set disaggregation='{prefill: N, decode: N}'",
    "--disaggregation-transfer-backend": "--set disaggregation='{..., connector: NAME}'",
    "--disaggregation-bootstrap-port": "--set disaggregation='{prefill: N, decode: N}'",
}
"""Owned flag (SGLang's first spelling) to how it is set instead; "" where llmserve needs it as it is."""

SECRETS: dict[str, tuple[tuple[str, ...], str]] = {
    "--ssl-keyfile-password": ((), "a key file without a password that only this account may read"),
    "--watermark-config": (("key", "key_b"), "the path of a file that holds this JSON"),
    "--hicache-storage-backend-extra-config": (
        ("access_key", "secret_key"),
        "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or @FILE with this JSON in the file",
    ),
}
"""Flag whose value may be secret (SGLang has no variable for it) to the keys of its JSON that are, none where
the whole value is, and to what to use instead. Keys of the API are among OWNED."""

VARIABLES: dict[str, str] = {
    "CUDA_VISIBLE_DEVICES": "--set device_ids=[UUID, ...]",
    "CUDA_DEVICE_ORDER": "",
    "HIP_VISIBLE_DEVICES": "--set device_ids=[UUID, ...]",
    "ROCR_VISIBLE_DEVICES": "--set device_ids=[UUID, ...]",
    "OMP_NUM_THREADS": "--set threads=N",
    "SGLANG_USE_CPU_ENGINE": "the entry's env in engines.yaml",
    "SGLANG_GRPC_PORT": "",
    "SGLANG_RUST_SERVER": "",
    "TMPDIR": "",
}
"""Owned variable to how it is set instead."""


def read(args: Sequence[str], installation: Installation) -> Parsed:
    """Arguments as SGLang's parser reads them: unique beginnings of a flag are that flag, underscores are not
    dashes."""
    return parse(args, installation, abbreviations=True)


def owned_violations(request: RenderRequest) -> list[Violation]:
    """Refusals for `engine_args` and `env`: owned flags in every spelling and shortening, removed, unknown
    and ambiguous ones, stray words, and flags without their value or with one that is not theirs."""
    installation = request.installation
    told = read(request.engine_args, installation)
    found: list[Violation] = []
    owned = {}
    for given in told.given:
        name = owner(given.spelling, installation)
        if name is not None:
            owned[given.flag.spellings] = name
            found.append(_owned(f"{_as_written(given)} sets {name}", OWNED[name]))
        elif _is_secret(given):
            found.append(_secret(given))
    found += [_unknown(word, installation) for word in told.unknown]
    found += [_ambiguous(word, meant, installation) for word, meant in told.ambiguous.items()]
    theirs = {s for spellings in owned for s in spellings}
    found += [
        Violation(
            "missing_value",
            f"engine_args: {name} takes a value, and none follows",
            f"give the value as the next item: [{name}, VALUE], or take {name} out",
        )
        for name in told.incomplete
        if name not in theirs
    ]
    found += [_bad(name, text, installation) for name, text in told.bad if name not in theirs]
    found += [
        Violation(
            "stray_argument",
            f"engine_args: {word!r} is neither a flag nor a flag's value",
            "give each flag and each value as an item of its own",
        )
        for word in told.positionals
    ]
    found += [_owned(f"env: sets {v}", VARIABLES[v]) for v in request.env if v in VARIABLES]
    return found


def owner(spelling: str, installation: Installation) -> str | None:
    """The owned flag that a listed spelling means on this installation (by any of its names), or None."""
    flag = installation.flag(spelling)
    names = (spelling, *(flag.spellings if flag else ()))
    positive = ("--" + n.removeprefix("--no-") if n.startswith("--no-") else n for n in names)
    return next((n for n in positive if n in OWNED), None)


def _as_written(given: Given) -> str:
    word = given.word.partition("=")[0]
    return f"engine_args: {word}" + ("" if word == given.spelling else f" (short for {given.spelling})")


def _owned(what: str, instead: str) -> Violation:
    return Violation(
        "engine_args_owned",
        f"{what}, which the plan decides",
        f"use {instead}" if instead else "leave it out: llmserve needs it as it sets it",
    )


def _is_secret(given: Given) -> bool:
    named = next((s for s in given.flag.spellings if s in SECRETS), None)
    if named is None:
        return False
    keys = SECRETS[named][0]
    if not keys:
        return True
    return any(text.lstrip().startswith("{") and f'"{k}"' in text for text in given.values for k in keys)


def _secret(given: Given) -> Violation:
    instead = next(SECRETS[s][1] for s in given.flag.spellings if s in SECRETS)
    return Violation(
        "engine_args_secret",
        f"{_as_written(given)} puts a secret on the command line, which every account here can read",
        f"use {instead}",
    )


def _removed(word: str, installation: Installation) -> Violation | None:
    advice = installation.extras.get("removed", {}).get(word)
    if advice is None:
        return None
    return Violation(
        "removed_flag",
        f"engine_args: {word} was removed from SGLang before {installation.version}",
        advice,
    )


def _unknown(word: str, installation: Installation) -> Violation:
    gone = _removed(word, installation)
    if gone is not None:
        return gone
    what = f"engine_args: {word} is no flag of {installation.name} {installation.version}"
    if installation.flag(word.replace("_", "-")) is not None:
        return Violation(
            "unknown_flag", what, f"write {word.replace('_', '-')}: SGLang does not take underscores"
        )
    since = first_version(word)
    if since is not None:
        return Violation(
            "unknown_flag", f"{what}: it came with SGLang {since} or shortly before", "take it out"
        )
    nearest = installation.nearest(word)
    hint = f"the nearest one it lists is {nearest}" if nearest else "see its --help"
    return Violation("unknown_flag", what, hint)


def _ambiguous(word: str, meant: Sequence[str], installation: Installation) -> Violation:
    gone = _removed(word, installation)
    if gone is not None:
        return gone
    first = owner(meant[0], installation)
    instead = OWNED[first] if first else ""
    hint = f"write the flag out; for {first} use {instead}" if instead else "write the flag out"
    return Violation(
        "ambiguous_flag",
        f"engine_args: {word} could mean {', '.join(meant[:4])}{' and more' if len(meant) > 4 else ''}, "
        "and SGLang refuses it",
        hint,
    )


def _bad(name: str, text: str, installation: Installation) -> Violation:
    flag = installation.flag(name)
    if flag is not None and not flag.takes_value:
        return Violation(
            "bad_value",
            f"engine_args: {name} is a switch and takes no value, not {text!r}",
            f"write {name} alone",
        )
    if flag is not None and flag.choices:
        return Violation(
            "bad_value",
            f"engine_args: {text!r} is not among what {name} takes",
            f"it takes {', '.join(flag.choices)}",
        )
    kind = {"int": "a whole number", "float": "a number", "json": "JSON"}.get(
        flag.type if flag else "", "right"
    )
    return Violation("bad_value", f"engine_args: {text!r} after {name} is not {kind}", "correct the value")
