"""vLLM behind the engine contract: each method's work is in the module of its name.

Modules are imported where they are used: a plan needs no log signatures, a supervisor no flag tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.engines.base import (
    Exit,
    FactCheck,
    Failure,
    Health,
    Installation,
    Progress,
    Rendered,
    RenderRequest,
    StopRecipe,
)
from orchestrator.plan import Plan, Violation

if TYPE_CHECKING:
    import httpx

    from orchestrator.machine.machine import Gpu


class Vllm:
    """Stateless; see `engines.base.Engine` for what each method promises."""

    kind = "vllm"
    formats: tuple[str, ...] = ("safetensors",)
    shared_memory: tuple[str, ...] = (
        "psm_*", "sem.mp-*", "vllm_offload_*.mmap", "vllm_ec_*.mmap", "*-cpushm*", "nccl-*",
    )  # fmt: skip

    def stock(self, lever: str, installation: Installation, gpu: Gpu | None = None) -> Any:
        from orchestrator.engines.vllm.stock import stock

        return stock(lever, installation, gpu=gpu)

    def captured_versions(self) -> tuple[str, ...]:
        from orchestrator.engines.vllm import captured

        return captured.versions()

    def captured(self, version: str | None, device: str) -> Installation:
        from orchestrator.engines.vllm import captured

        return captured.captured(version, device)

    def render(self, request: RenderRequest) -> Rendered:
        from orchestrator.engines.vllm import render

        return render.render(request)

    def check(self, plan: Plan, installation: Installation) -> list[Violation]:
        from orchestrator.engines.vllm import checks

        return checks.check(plan, installation)

    def warnings(self, plan: Plan, installation: Installation) -> list[str]:
        from orchestrator.engines.vllm import checks

        return checks.warnings(plan, installation)

    def phase(self, log: str) -> str:
        from orchestrator.engines.vllm import failures

        return failures.phase(log)

    def fatal_line(self, log: str) -> str | None:
        from orchestrator.engines.vllm import failures

        return failures.fatal_line(log)

    def log_facts(self, log: str) -> dict[str, Any]:
        from orchestrator.engines.vllm import start_log

        return start_log.log_facts(log)

    def compare(self, plan: Plan, facts: Mapping[str, Any]) -> list[FactCheck]:
        from orchestrator.engines.vllm.compare import compare

        return compare(plan, facts)

    def classify(self, log: str, exit: Exit) -> Failure:
        from orchestrator.engines.vllm import failures

        return failures.classify(log, exit)

    def stop_recipe(self) -> StopRecipe:
        from orchestrator.engines.vllm import stop

        return stop.RECIPE

    def installations(
        self, configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]
    ) -> list[Installation]:
        from orchestrator.engines.vllm import probe

        return probe.installations(configured, env)

    def survey(
        self, configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]
    ) -> list[Installation]:
        from orchestrator.engines.vllm import probe

        return probe.survey(configured, env)

    async def health(self, client: httpx.AsyncClient, base_url: str) -> Health:
        from orchestrator.engines.vllm import health

        return await health.health(client, base_url)

    async def prove(self, client: httpx.AsyncClient, base_url: str, served_model: str) -> str:
        from orchestrator.engines.vllm import health

        return await health.prove(client, base_url, served_model)

    async def progress(self, client: httpx.AsyncClient, base_url: str) -> Progress | None:
        from orchestrator.engines.vllm import health

        return await health.progress(client, base_url)

    async def facts(self, client: httpx.AsyncClient, base_url: str) -> dict[str, Any]:
        from orchestrator.engines.vllm import facts

        return await facts.facts(client, base_url)
