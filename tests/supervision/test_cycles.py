import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "cycles"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("cycles", str(SCRIPT))
    spec = importlib.util.spec_from_loader("cycles", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cycles"] = module
    loader.exec_module(module)
    return module


@pytest.mark.real_engine
@pytest.mark.parametrize("cycles", [10, pytest.param(200, marks=pytest.mark.full)])
def test_starts_and_stops_of_the_real_server_leave_nothing(cycles: int) -> None:
    model = os.environ.get("LLMSERVE_TEST_MODEL")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(cycles), *(["--model", model] if model else [])],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("nothing left")


def test_whatever_grew_is_named(script: ModuleType) -> None:
    before = script.Count(1, 0, 1, 0, 9, 0, 12, 50 << 20)
    assert script.differences(before, replace(before, daemon_rss_bytes=55 << 20, state_files=8)) == []
    assert script.differences(before, replace(before, daemon_fds=13, daemon_rss_bytes=70 << 20)) == [
        "daemon_fds grew from 12 to 13",
        f"daemon_rss_bytes grew from {50 << 20} to {70 << 20}",
    ]
