"""Rules of two flags of which one needs the other."""

from __future__ import annotations

from orchestrator.engines.vllm.checks.settings import Settings
from orchestrator.plan import Violation


def check(s: Settings) -> list[Violation]:
    """vLLM 0.32.0 vllm/config/offload.py, parallel.py, observability.py, vllm/config/vllm.py."""
    if not s.at_least("0.32"):
        return []
    found = []

    def need(flag: str, said: str, remedy: str) -> None:
        found.append(Violation("flag_needs_another", f"{flag} {said}", remedy))

    group, inside = s.number("--offload-group-size") or 0, s.number("--offload-num-in-group")
    if (group > 0 or s.text("--offload-backend") == "prefetch") and (1 if inside is None else inside) > group:
        need(
            "--offload-num-in-group",
            f"is {1 if inside is None else inside}, more than the {group} layers of --offload-group-size",
            "use a larger --offload-group-size",
        )
    for flag in ("--numa-bind-nodes", "--numa-bind-cpus"):
        if s.given(flag) and s.on("--numa-bind") is not True:
            need(flag, "needs --numa-bind", "add --numa-bind, or take it out")
    if s.given("--collect-detailed-traces") and not s.given("--otlp-traces-endpoint"):
        need("--collect-detailed-traces", "needs --otlp-traces-endpoint", "add that, or take it out")
    if s.on("--ray-workers-use-nsight") is True and s.text("--distributed-executor-backend") != "ray":
        need(
            "--ray-workers-use-nsight",
            "needs workers that Ray runs",
            "use --set distributed_executor_backend=ray, or take it out",
        )
    if s.json("--default-mm-loras") and s.model.get("multimodal") is False:
        need("--default-mm-loras", "is for models that read more than text", "take it out of engine_args")
    if s.on("--enable-elastic-ep") is True and s.on("--enable-eplb") is not True:
        need("--enable-elastic-ep", "needs --enable-eplb", "add --enable-eplb, or take it out")
    return found
