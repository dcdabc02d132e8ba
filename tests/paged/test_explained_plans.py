"""The pages in docs/plans are what the planner says."""

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(
        "explained_plans", str(ROOT / "scripts" / "explained-plans")
    )
    spec = importlib.util.spec_from_loader("explained_plans", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


SCRIPT = _script()


@pytest.mark.parametrize("name", SCRIPT.PAGES)
def test_a_page_is_what_the_planner_says_now(name: str) -> None:
    written = (ROOT / "docs" / "plans" / name).read_text(encoding="utf-8")
    assert written == SCRIPT.page(name), "scripts/explained-plans --write makes it anew"


@pytest.mark.parametrize("name", SCRIPT.PAGES)
def test_a_page_fits_a_terminal_and_tells_tree_rejected_memory_and_command(name: str) -> None:
    page = SCRIPT.page(name)
    shown = [line for block in page.split("```")[1::2] for line in block.splitlines()]
    wide = [line for line in shown if len(line) > 80 and not line.startswith(("$ llmserve", "  ", "error:"))]
    assert not wide
    for what in ("levers from top to bottom", "  not ", "█ weights", "vllm serve "):
        assert what in page
