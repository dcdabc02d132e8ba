"""Progress of a model that is fetched at first use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from orchestrator.cli import output


@contextlib.contextmanager
def fetching() -> Iterator[Callable[[int, int | None], None]]:
    """A line on stderr while a model is fetched, and nothing where none is."""
    bar: Any = None
    task: Any = None

    def progress(done: int, total: int | None) -> None:
        nonlocal bar, task
        if bar is None:
            # imported when something is fetched: a plan should not wait for it
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

            con = output.notes()
            columns = (TextColumn("fetching the model"), BarColumn(), DownloadColumn())
            bar = Progress(*columns, console=con, transient=True, disable=not con.is_terminal)
            bar.start()
            task = bar.add_task("", total=total)
            if not con.is_terminal:
                con.print("fetching the model, once")
        bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if bar is not None:
            bar.stop()
