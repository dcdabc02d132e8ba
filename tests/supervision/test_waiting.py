"""A wait that is cancelled in the moment in which it ends is cancelled: it does not go on."""

import asyncio
from types import SimpleNamespace

import pytest

from orchestrator.supervisor.deployment import Deployment


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancelled_wait_for_a_change_never_goes_on(turns: int) -> None:
    waited_on = SimpleNamespace(revision=0, _changed=asyncio.Condition())
    task = asyncio.create_task(Deployment.wait_change(waited_on, 0, 60))  # type: ignore[arg-type]
    for _ in range(4):
        await asyncio.sleep(0)
    async with waited_on._changed:
        waited_on.revision = 1
        waited_on._changed.notify_all()
    for _ in range(turns):
        await asyncio.sleep(0)
    over = task.done()
    task.cancel()
    await asyncio.wait({task})
    assert over or task.cancelled()


async def test_a_wait_ends_by_its_time_or_by_a_change() -> None:
    waited_on = SimpleNamespace(revision=3, _changed=asyncio.Condition())
    async with asyncio.timeout(5):
        await Deployment.wait_change(waited_on, 3, 0.01)  # type: ignore[arg-type]
        await Deployment.wait_change(waited_on, 2, 60)  # type: ignore[arg-type]
