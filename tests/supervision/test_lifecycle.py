"""Histories: events with times in, actions and states out."""

import json

import pytest

from orchestrator.engines.base import Failure
from orchestrator.supervisor import lifecycle as lc
from orchestrator.supervisor.restart import RestartSettings


def failure(name: str = "crash", retry: str = "backoff") -> Failure:
    return Failure(name, "it ended", "the line", "do this", retry)  # type: ignore[arg-type]


def running(**settings: float) -> lc.Lifecycle:
    life = lc.Lifecycle(RestartSettings(**settings), steps_down=frozenset({"out_of_memory"}))
    assert life.on(lc.Launched(), 0) == [lc.Spawn(1)]
    assert life.on(lc.BecameReady(), 5) == []
    assert life.state == "ready"
    return life


def test_a_launch_goes_through_its_phases_to_ready() -> None:
    life = lc.Lifecycle(RestartSettings())
    assert life.on(lc.Launched(), 0) == [lc.Spawn(1)]
    assert (life.state, life.phase) == ("starting", "load")
    life.on(lc.PhaseSeen("warm-up"), 1)
    assert life.phase == "warm-up"
    life.on(lc.BecameReady(), 2)
    assert (life.state, life.phase, life.ready_since) == ("ready", None, 2)


def test_a_lever_not_in_effect_makes_it_degraded_and_names_it() -> None:
    life = lc.Lifecycle(RestartSettings())
    life.on(lc.Launched(), 0)
    life.on(lc.BecameReady(("speculative",)), 2)
    assert (life.state, life.reason) == ("degraded", "not in effect: speculative")


def test_a_stop_ends_stopped_and_only_when_the_tree_is_empty() -> None:
    life = running()
    assert life.on(lc.StopRequested(), 10) == [lc.Stop(drain=True)]
    life.on(lc.LeaderDied(), 11)
    assert life.state == "stopping"
    assert life.on(lc.TreeEmpty(failure()), 12) == []
    assert life.state == "stopped"
    assert life.last_failure is None


def test_a_stop_during_the_start_does_not_wait_for_requests() -> None:
    life = lc.Lifecycle(RestartSettings())
    life.on(lc.Launched(), 0)
    assert life.on(lc.StopRequested(), 1) == [lc.Stop(drain=False)]


def test_exit_code_zero_unasked_is_a_failure_and_is_started_again() -> None:
    life = running()
    life.on(lc.LeaderDied(), 10)
    assert life.state == "unhealthy"
    (wake,) = life.on(lc.TreeEmpty(failure()), 11)
    assert wake == lc.Wake(12)
    assert life.state == "backoff"
    assert life.on(lc.TimerDue(), 11.5) == []
    assert life.on(lc.TimerDue(), 12) == [lc.Spawn(2)]
    assert life.restarts == 1


def test_a_cause_that_cannot_change_is_never_tried_again() -> None:
    life = running()
    assert life.on(lc.TreeEmpty(failure("bad_flag", "never")), 11) == []
    assert (life.state, life.reason) == ("failed", "bad_flag")


def test_backoff_doubles_to_its_cap_and_five_in_ten_minutes_are_a_crash_loop() -> None:
    life = running(cap_s=3)
    waits = []
    now = 10.0
    while life.state != "failed":
        actions = life.on(lc.TreeEmpty(failure()), now)
        if actions:
            waits.append(actions[0].at - now)  # type: ignore[union-attr]
            now = actions[0].at  # type: ignore[union-attr]
            life.on(lc.TimerDue(), now)
    assert waits == [1, 2, 3, 3]
    assert life.reason == "crash_loop"


def test_the_budget_refills_after_ten_stable_minutes() -> None:
    life = running()
    now = 0.0
    for _ in range(20):
        now += 700
        assert life.on(lc.TreeEmpty(failure()), now) == [lc.Wake(now + 1)]
        life.on(lc.TimerDue(), now + 1)
        life.on(lc.BecameReady(), now + 2)
    assert life.state == "ready"


def test_out_of_memory_steps_down_once_and_then_fails() -> None:
    life = running()
    oom = failure("out_of_memory", "step_down")
    assert life.on(lc.TreeEmpty(oom), 10) == [lc.Spawn(2, step_down="out_of_memory")]
    assert life.on(lc.TreeEmpty(oom), 20) == []
    assert (life.state, life.reason) == ("failed", "out_of_memory")


def test_a_taken_internal_port_is_tried_once_again() -> None:
    life = running()
    taken = failure("port_taken", "once")
    assert isinstance(life.on(lc.TreeEmpty(taken), 10)[0], lc.Wake)
    life.on(lc.TimerDue(), 11)
    life.on(lc.TreeEmpty(taken), 12)
    assert (life.state, life.reason) == ("failed", "port_taken")


def test_a_hang_is_killed_and_its_cause_is_the_hang_not_the_kill() -> None:
    life = running()
    life.on(lc.Struck(), 10)
    assert life.state == "unhealthy"
    assert life.on(lc.Condemned(failure("hang")), 20) == [lc.Kill()]
    life.on(lc.TreeEmpty(failure("killed")), 21)
    assert life.reason == "hang"


def test_progress_after_a_strike_makes_it_ready_again() -> None:
    life = running()
    life.on(lc.Struck(), 10)
    life.on(lc.Recovered(), 12)
    assert life.state == "ready"


def test_progress_seen_after_the_leaders_death_does_not_make_it_ready() -> None:
    life = running()
    life.on(lc.LeaderDied(), 10)
    life.on(lc.Recovered(), 10.1)
    assert (life.state, life.reason) == ("unhealthy", "engine exited")


def test_a_death_before_ready_is_told_while_it_is_still_starting() -> None:
    life = lc.Lifecycle(RestartSettings())
    life.on(lc.Launched(), 0)
    life.on(lc.LeaderDied(), 1)
    assert (life.state, life.reason) == ("starting", "engine exited")


@pytest.mark.parametrize(
    "damage",
    [{"state": "asleep"}, {"retry_at": "soon"}, {"failures": ["x"]}, {"state": "backoff", "retry_at": {}}],
)
def test_a_damaged_state_is_a_value_error(damage: dict) -> None:
    with pytest.raises((ValueError, TypeError)):
        lc.Lifecycle.from_json(damage, RestartSettings(), frozenset())


def test_a_restart_stops_first_and_starts_when_the_tree_is_empty() -> None:
    life = running()
    assert life.on(lc.RestartRequested(), 10) == [lc.Stop(drain=True)]
    assert life.on(lc.TreeEmpty(failure()), 11) == [lc.Spawn(2)]


def test_a_stop_takes_back_a_restart_under_way() -> None:
    life = running()
    life.on(lc.RestartRequested(), 10)
    life.on(lc.StopRequested(), 10.5)
    life.on(lc.TreeEmpty(failure()), 11)
    assert life.state == "stopped"


def test_a_stop_in_backoff_ends_at_once() -> None:
    life = running()
    life.on(lc.TreeEmpty(failure()), 10)
    assert life.on(lc.StopRequested(), 10.1) == []
    assert life.state == "stopped"
    assert life.on(lc.TimerDue(), 99) == []
    assert life.state == "stopped"


def test_a_failed_deployment_can_be_restarted_with_a_full_budget() -> None:
    life = running()
    life.on(lc.TreeEmpty(failure("bad_flag", "never")), 11)
    assert life.on(lc.RestartRequested(), 12) == [lc.Spawn(2)]
    assert (life.failures, life.last_failure) == ([], None)


def test_a_lost_shim_degrades_and_the_next_start_is_whole_again() -> None:
    life = running()
    life.on(lc.ShimLost(), 10)
    assert (life.state, life.reason) == ("degraded", "unshimmed")
    life.on(lc.RestartRequested(), 11)
    life.on(lc.TreeEmpty(failure()), 12)
    life.on(lc.BecameReady(), 13)
    assert life.state == "ready"


@pytest.mark.parametrize("state", ["starting", "ready", "backoff", "failed", "stopped", "stopping"])
def test_every_state_survives_being_written_down(state: str) -> None:
    life = running()
    life.state = state  # type: ignore[assignment]
    life.last_failure, life.used, life.failures = failure(), {"port_taken"}, [1.0, 2.0]
    again = lc.Lifecycle.from_json(json.loads(json.dumps(life.to_json())), life.restart, life.steps_down)
    assert again == life


def test_no_order_of_events_leaves_the_machine_without_an_end() -> None:
    """Random histories: after a stop and an empty tree it is always stopped or failed."""
    import random

    dice = random.Random(7)
    kinds = [
        lc.Launched(),
        lc.PhaseSeen("load"),
        lc.BecameReady(),
        lc.Struck(),
        lc.Recovered(),
        lc.Condemned(failure("hang")),
        lc.LeaderDied(),
        lc.TreeEmpty(failure()),
        lc.ShimLost(),
        lc.StopRequested(),
        lc.RestartRequested(),
        lc.TimerDue(),
    ]
    for _ in range(2000):
        life = lc.Lifecycle(RestartSettings())
        for now in range(dice.randint(1, 40)):
            life.on(dice.choice(kinds), float(now))
        life.on(lc.StopRequested(), 100.0)
        life.on(lc.TreeEmpty(failure()), 101.0)
        assert life.state in lc.ENDED
