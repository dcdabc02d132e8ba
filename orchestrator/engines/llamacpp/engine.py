"""llama.cpp behind the engine contract: each method's work is in the module of its name."""

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
from orchestrator.engines.llamacpp import checks, facts, failures, health, probe, render, stop
from orchestrator.engines.llamacpp.stock import stock
from orchestrator.errors import not_found
from orchestrator.plan import Plan, Violation

if TYPE_CHECKING:
    import httpx

    from orchestrator.machine.machine import Gpu


class LlamaCpp:
    """Stateless; see `engines.base.Engine` for what each method promises."""

    kind = probe.KIND
    formats: tuple[str, ...] = ("gguf",)
    shared_memory: tuple[str, ...] = ()

    def stock(self, lever: str, installation: Installation, gpu: Gpu | None = None) -> Any:
        return stock(lever, installation)

    def captured_versions(self) -> tuple[str, ...]:
        return ()

    def captured(self, version: str | None, device: str) -> Installation:
        raise not_found("not_captured", "llama.cpp is planned for by its own flags alone", "install one")

    def render(self, request: RenderRequest) -> Rendered:
        return render.render(request)

    def check(self, plan: Plan, installation: Installation) -> list[Violation]:
        return checks.check(plan, installation)

    def warnings(self, plan: Plan, installation: Installation) -> list[str]:
        return []

    def phase(self, log: str) -> str:
        return failures.phase(log)

    def fatal_line(self, log: str) -> str | None:
        return None

    def log_facts(self, log: str) -> dict[str, Any]:
        return {}

    def compare(self, plan: Plan, facts: Mapping[str, Any]) -> list[FactCheck]:
        return _compare(plan, facts)

    def classify(self, log: str, exit: Exit) -> Failure:
        return failures.classify(log, exit)

    def stop_recipe(self) -> StopRecipe:
        return stop.RECIPE

    def installations(
        self, configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]
    ) -> list[Installation]:
        return probe.installations(configured, env)

    def survey(
        self, configured: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]
    ) -> list[Installation]:
        return probe.survey(configured, env)

    async def health(self, client: httpx.AsyncClient, base_url: str) -> Health:
        return await health.health(client, base_url)

    async def prove(self, client: httpx.AsyncClient, base_url: str, served_model: str) -> str:
        return await health.prove(client, base_url, served_model)

    async def progress(self, client: httpx.AsyncClient, base_url: str) -> Progress | None:
        return await health.progress(client, base_url)

    async def facts(self, client: httpx.AsyncClient, base_url: str) -> dict[str, Any]:
        return await facts.facts(client, base_url)


_compare = facts.compare
