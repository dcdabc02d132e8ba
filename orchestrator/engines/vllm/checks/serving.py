"""Rules of the API server: parsers, templates, adapters, logs."""

from __future__ import annotations

from orchestrator.engines.vllm.checks.context import missing_file
from orchestrator.engines.vllm.checks.settings import Settings
from orchestrator.model_families import variables
from orchestrator.plan import Violation
from orchestrator.problems import nearest


def _variables(s: Settings) -> list[Violation]:
    """Variables that vLLM does not have, where they end the start (vllm/platforms/interface.py:1451)."""
    has = s.installation.extras
    if s.on("--fail-on-environ-validation") is not True or "variables" not in has:
        return []
    unsure = has.get("variables_unsure", ())
    there, _ = variables.known(s.env, s.installation.version, [*has["variables"], *unsure])
    return [
        Violation(
            "unknown_variable",
            f"env: vLLM {s.installation.version} has no {name}: by --fail-on-environ-validation it ends",
            f"take {name} out of env, or --fail-on-environ-validation out of engine_args",
        )
        for name in s.env
        if name not in there
    ]


def check(s: Settings) -> list[Violation]:
    """The server's own checks (vLLM 0.33.0 vllm/entrypoints/common/cli_args.py, validate_parsed_serve_args;
    vllm/config/lora.py:118)."""
    found = []
    if s.on("--enable-auto-tool-choice") is True and not s.text("--tool-call-parser"):
        found.append(
            Violation(
                "tool_choice_without_parser",
                "--enable-auto-tool-choice needs a tool-call parser",
                "use --set tool_call_parser=auto, or hermes for Qwen, or take the flag out",
            )
        )
    found += _variables(s)
    shares = s.text("--mm-tensor-ipc") == "torch_shm"
    if shares and s.model.get("multimodal") and s.env.get("VLLM_WORKER_MULTIPROC_METHOD") != "spawn":
        # vllm/config/vllm.py:1660 of 0.32.0
        found.append(
            Violation(
                "shared_pictures_need_spawn",
                "--mm-tensor-ipc torch_shm fails without VLLM_WORKER_MULTIPROC_METHOD=spawn",
                "add that to env, or take --mm-tensor-ipc out of engine_args",
            )
        )
    for flag, lever, key in (
        ("--tool-call-parser", "tool_call_parser", "tool_call_parsers"),
        ("--reasoning-parser", "reasoning_parser", "reasoning_parsers"),
    ):
        name, offered = s.text(flag), s.installation.extras.get(key) or ()
        plugin = s.given(f"{flag.removesuffix('-call-parser').removesuffix('-parser')}-parser-plugin")
        if flag == "--tool-call-parser" and s.on("--enable-auto-tool-choice") is not True:
            # vLLM looks at it nowhere else
            continue
        if name and offered and name not in offered and not plugin:
            near = nearest(name, offered)
            found.append(
                Violation(
                    f"{lever}_unknown",
                    f"vLLM {s.installation.version} has no {lever} {name!r}: it has {', '.join(offered)}",
                    f"use --set {lever}={near or 'auto'}, or --set {lever}=off",
                )
            )
    template = s.text("--chat-template")
    if template and "{" not in template and "\n" not in template and missing_file(template):
        found.append(
            Violation(
                "chat_template_missing",
                f"chat_template {template!r} is not a file here",
                "give the path of a jinja file, or leave it to the model with --set chat_template=auto",
            )
        )
    if s.on("--enable-log-outputs") is True and s.on("--enable-log-requests") is not True:
        found.append(
            Violation(
                "log_outputs_without_requests",
                "--enable-log-outputs needs --enable-log-requests",
                "add it, or take --enable-log-outputs out",
            )
        )
    if s.on("--disable-log-stats") is True:
        found.append(
            Violation(
                "no_metrics",
                "--disable-log-stats takes /metrics away, by which llmserve sees whether tokens move",
                "take it out of engine_args",
            )
        )
    most, kept = s.number("--max-loras"), s.number("--max-cpu-loras")
    if s.on("--enable-lora") is True and kept and kept < (most or 1):
        found.append(
            Violation(
                "adapters_kept",
                f"--max-cpu-loras {kept} is less than --max-loras {most or 1}",
                f"use --max-cpu-loras {most or 1} or more",
            )
        )
    return found
