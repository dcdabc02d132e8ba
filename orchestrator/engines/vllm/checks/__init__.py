"""What vLLM would refuse at its start, or start with and silently do otherwise, found in a Plan.

vLLM finds these after 20 to 30 s of imports, one at a time, some only after the weights are loaded. Here they
are found all at once, on the plan's own argument list, so levers and raw engine_args are judged alike.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.engines.base import Installation
from orchestrator.engines.vllm.checks.all2all import check as all2all
from orchestrator.engines.vllm.checks.architecture import check as architecture
from orchestrator.engines.vllm.checks.architecture import warnings as architecture_warnings
from orchestrator.engines.vllm.checks.command import check as command
from orchestrator.engines.vllm.checks.config_json import check as config_json
from orchestrator.engines.vllm.checks.connectors import check as connectors
from orchestrator.engines.vllm.checks.context import check as context
from orchestrator.engines.vllm.checks.cpu import check as cpu
from orchestrator.engines.vllm.checks.host import check as host
from orchestrator.engines.vllm.checks.kv_types import check as kv_types
from orchestrator.engines.vllm.checks.pairs import check as pairs
from orchestrator.engines.vllm.checks.parallel import check as parallel
from orchestrator.engines.vllm.checks.quantization import check as quantization
from orchestrator.engines.vllm.checks.scheduler import check as scheduler
from orchestrator.engines.vllm.checks.serving import check as serving
from orchestrator.engines.vllm.checks.settings import Settings, settings_of
from orchestrator.engines.vllm.checks.silent import warnings as silent
from orchestrator.engines.vllm.checks.speculation import check as speculation
from orchestrator.plan import Plan, Violation

_RULES: tuple[Callable[[Settings], list[Violation]], ...] = (
    command,
    config_json,
    scheduler,
    parallel,
    all2all,
    architecture,
    context,
    kv_types,
    quantization,
    cpu,
    speculation,
    connectors,
    pairs,
    serving,
    host,
)


def check(plan: Plan, installation: Installation) -> list[Violation]:
    """All at once, each once; empty where vLLM would take the plan."""
    if installation.extras.get("broken"):
        return []
    found = [v for s in settings_of(plan, installation) for rule in _RULES for v in rule(s)]
    return list(dict.fromkeys(found))


def warnings(plan: Plan, installation: Installation) -> list[str]:
    """What vLLM would do otherwise than planned without refusing."""
    if installation.extras.get("broken"):
        return []
    return list(
        dict.fromkeys(
            w for s in settings_of(plan, installation) for w in (*silent(s), *architecture_warnings(s))
        )
    )
