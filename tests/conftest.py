"""Counts what ran: `real engine: N tests` on the terminal, and every outcome in $LLMSERVE_TEST_REPORT."""

import json
import os
import platform
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked `full` too")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Counter(), "outcome-counter")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    long = [i for i in items if i.get_closest_marker("full")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [i for i in items if i not in long]


class Counter:
    """The worst outcome of each test's set-up, call and tear-down."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, object]] = {}
        self.real: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        test["seconds"] = round(float(str(test["seconds"])) + report.duration, 3)
        if report.failed or report.skipped:
            test["outcome"] = report.outcome
        if report.when == "call" and report.passed and "real_engine" in report.keywords:
            self.real.add(report.nodeid)

    def passed(self) -> int:
        return sum(t["outcome"] == "passed" for t in self.tests.values())

    def real_engine(self) -> int:
        return sum(self.tests[name]["outcome"] == "passed" for name in self.real)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"real engine: {self.real_engine()} tests")

    def pytest_sessionfinish(self) -> None:
        target = os.environ.get("LLMSERVE_TEST_REPORT")
        if target:
            report = {
                "python": platform.python_version(),
                "passed": self.passed(),
                "failed": len(self.tests) - self.passed(),
                "real_engine": self.real_engine(),
                "tests": self.tests,
            }
            Path(target).write_text(json.dumps(report, indent=1) + "\n")
