"""Progress of a model that is fetched at first use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from orchestrator.cli import output


@contextlib.contextmanager
def fetching() -> Iterator[Callable[[int, int | None], None]]:
    """A line on stderr while a model is fetched, and nothing where none is."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    con = output.notes()
    columns = (TextColumn("fetching the model"), BarColumn(), DownloadColumn())
    bar = Progress(*columns, console=con, transient=True, disable=not con.is_terminal)
    task: Any = None
    said = False

    def progress(done: int, total: int | None) -> None:
        nonlocal task, said
        if task is None:
            bar.start()
            task = bar.add_task("", total=total)
        if not said and not con.is_terminal:
            con.print("fetching the model, once")
            said = True
        bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if task is not None:
            bar.stop()
