"""Which flags belong to the plan, and the refusal of raw arguments that would set them behind its back."""

from __future__ import annotations

from orchestrator.engines.base import Flag, Installation, RenderRequest, flag_names
from orchestrator.plan import Violation

OWNED: dict[str, str] = {
    "--model": "--model MODEL",
    "--model-url": "--model MODEL",
    "--hf-repo": "--model MODEL",
    "--hf-file": "--model MODEL",
    "--docker-repo": "--model MODEL",
    "--alias": "--model MODEL",
    "--host": "--host ADDRESS",
    "--port": "--port PORT",
    "--reuse-port": "--port PORT",
    "--api-prefix": "",
    "--metrics": "",
    "--slots": "",
    "--offline": "",
    "--log-disable": "",
    "--log-colors": "",
    "--log-file": "",
    "--log-jsonl": "",
    "--verbose": "",
    "--models-dir": "",
    "--models-preset": "",
    "--api-key-file": "the environment variable LLAMA_API_KEY",
    "--ctx-size": "--set max_model_len=TOKENS",
    "--parallel": "--set max_num_seqs=N",
    "--kv-unified": "--set kv_unified=true|false",
    "--kv-unified-per-slot": "--set max_model_len=TOKENS",
    "--cont-batching": "",
    "--batch-size": "--set max_num_batched_tokens=N",
    "--ubatch-size": "--set ubatch_tokens=N",
    "--cache-type-k": "--set kv_cache_dtype=TYPE",
    "--cache-type-v": "--set kv_cache_dtype=TYPE",
    "--flash-attn": "--set flash_attention=on|off|auto",
    "--cache-prompt": "--set prefix_caching=true|false",
    "--cache-reuse": "--set cache_reuse_tokens=N",
    "--cache-ram": "--set kv_offload_bytes=BYTES",
    "--threads": "--set threads=N",
    "--threads-batch": "--set threads=N",
    "--poll": "--set threads=N",
    "--spec-type": "--set speculative='{method: ...}'",
    "--spec-default": "--set speculative='{method: ...}'",
    "--spec-draft-model": "--set speculative='{method: draft, model: FILE}'",
    "--model-draft": "--set speculative='{method: draft, model: FILE}'",
    "--spec-draft-hf": "--set speculative='{method: draft, model: FILE}'",
    "--spec-draft-n-max": "--set speculative='{method: ..., num_tokens: N}'",
    "--spec-draft-n-min": "--set speculative='{method: ..., min_tokens: N}'",
    "--draft-max": "--set speculative='{method: ..., num_tokens: N}'",
    "--draft-min": "--set speculative='{method: ..., min_tokens: N}'",
    "--spec-ngram-mod-n-max": "--set speculative='{method: ngram-mod, num_tokens: N}'",
    "--spec-ngram-simple-size-m": "--set speculative='{method: ngram-simple, num_tokens: N}'",
    "--spec-ngram-simple-size-n": "--set speculative='{method: ngram-simple, size_n: N}'",
    "--gpu-layers": "--set gpu_layers=N",
    "--device": "--set device_ids=[UUID, ...]",
    "--split-mode": "--set tensor_parallel_size=N",
    "--main-gpu": "--set device_ids=[UUID, ...]",
    "--fit": "--set gpu_layers=N",
    "--jinja": "--set tool_call_parser=jinja",
    "--reasoning-format": "--set reasoning_parser=NAME",
    "--chat-template": "--set chat_template=FILE",
    "--chat-template-file": "--set chat_template=FILE",
}
"""Owned flag to how it is set instead; "" where llmserve needs it as it is."""

SECRETS = {"--api-key": "LLAMA_API_KEY", "--hf-token": "HF_TOKEN"}
"""Flags that hold a secret to the variable that holds it instead: a command line is seen by everyone here."""

_SHORT = {
    "-m": "--model", "-c": "--ctx-size", "-np": "--parallel", "-b": "--batch-size", "-ub": "--ubatch-size",
    "-t": "--threads", "-tb": "--threads-batch", "-fa": "--flash-attn", "-ngl": "--gpu-layers",
    "-ctk": "--cache-type-k", "-ctv": "--cache-type-v", "-a": "--alias", "-md": "--model-draft",
    "--n-gpu-layers": "--gpu-layers", "-hft": "--hf-token",
}  # fmt: skip

VARIABLES: dict[str, str] = {
    "CUDA_VISIBLE_DEVICES": "--set device_ids=[UUID, ...]",
    "CUDA_DEVICE_ORDER": "",
    "HIP_VISIBLE_DEVICES": "--set device_ids=[UUID, ...]",
    "ROCR_VISIBLE_DEVICES": "--set device_ids=[UUID, ...]",
}
"""Variables that choose the devices, which the plan does, and how it is set instead."""

# keys travel by environment, so this one variable of an owned flag is the user's
_ALLOWED_VARIABLES = tuple(SECRETS.values())


def owned_violations(request: RenderRequest) -> list[Violation]:
    """Refusals for `engine_args` and `env`: owned flags, removed ones, unknown ones, stray words, and flags
    without their value."""
    installation = request.installation
    found: list[Violation] = []
    words = list(request.engine_args)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if not name.startswith("-"):
            found.append(
                Violation(
                    "stray_argument",
                    f"engine_args: {word!r} is neither a flag nor a flag's value",
                    "give each flag and each value as an item of its own",
                )
            )
            continue
        spelling = name.replace("_", "-") if name.startswith("--") else name
        flag = installation.flag(spelling)
        owned = owner(spelling, installation)
        if owned is not None:
            found.append(_owned(f"engine_args: {name}", owned))
        elif spelling in installation.extras.get("removed", {}):
            advice = installation.extras["removed"][spelling]
            found.append(Violation("removed_flag", f"engine_args: {name} was removed from llama.cpp", advice))
        elif flag is None:
            nearest = installation.nearest(spelling)
            hint = f"the nearest one it lists is {nearest}" if nearest else "see its --help"
            found.append(
                Violation(
                    "unknown_flag",
                    f"engine_args: {name} is no flag of {installation.name} {installation.version}",
                    hint,
                )
            )
        elif equals:
            found.append(
                Violation(
                    "flag_with_equals",
                    f"engine_args: {word!r}: llama.cpp takes a value as the next item, not after '='",
                    f"write it as two items: {name}, {word.partition('=')[2]}",
                )
            )
        if equals:
            continue
        follows = bool(words) and installation.flag(words[0].replace("_", "-")) is None
        if flag is None:
            # what follows a flag that is refused is taken for its value
            if follows and not flag_names(words[:1]):
                words.pop(0)
        elif flag.takes_value and follows:
            words.pop(0)
        elif flag.takes_value and owned is None:
            found.append(
                Violation(
                    "missing_value",
                    f"engine_args: {name} takes a value, and "
                    + (f"the flag {words[0]} follows" if words else "nothing follows"),
                    f"give the value as the next item: [{name}, VALUE], or take {name} out",
                )
            )
    variables = installation.extras.get("variables", {})
    for variable in request.env:
        owned = None
        if variable not in _ALLOWED_VARIABLES:
            base = variable.replace("LLAMA_ARG_NO_", "LLAMA_ARG_")
            spelling = variables.get(variable) or variables.get(base)
            owned = owner(spelling, installation) if spelling else None
        if owned is not None:
            found.append(_owned(f"env: {variable}", owned))
        elif variable in VARIABLES:
            instead = VARIABLES[variable]
            found.append(
                Violation(
                    "engine_args_owned",
                    f"env: {variable} sets what the plan decides",
                    f"use {instead}" if instead else "leave it out",
                )
            )
    return found


def owner(spelling: str, installation: Installation) -> str | None:
    """The owned flag that a spelling means on this installation (negations and short forms too), or None."""
    flag: Flag | None = installation.flag(spelling)
    for name in (spelling, *(flag.spellings if flag else ())):
        name = _SHORT.get(name, name)
        positive = "--" + name.removeprefix("--no-") if name.startswith("--no-") else name
        if positive in OWNED or positive in SECRETS:
            return positive
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
        f"{what} sets {owned}, which the plan decides",
        f"use {instead}" if instead else "leave it out: llmserve needs it as it sets it",
    )
