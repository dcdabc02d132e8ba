"""Histories of looks: what the judge of liveness says."""

from orchestrator.engines.base import Progress
from orchestrator.supervisor.health import Judge, LivenessSettings

SETTINGS = LivenessSettings()


def test_moving_tokens_are_life_and_ask_for_no_probe() -> None:
    judge = Judge(SETTINGS, 0)
    for i in range(100):
        assert judge.look(5.0 * i, Progress(i * 7.0, 1, 0)) == "alive"


def test_an_idle_engine_is_probed_after_ten_seconds_and_one_probe_is_in_flight_at_most() -> None:
    judge = Judge(SETTINGS, 0)
    assert judge.look(5, Progress(1, 0, 0)) == "alive"
    assert judge.look(10, Progress(1, 0, 0)) == "probe"
    assert judge.look(15, Progress(1, 0, 0)) == "waiting"
    judge.probe_returned(16, True)
    assert judge.look(20, Progress(2, 0, 0)) == "alive"


def test_a_frozen_idle_engine_is_hung_within_45_seconds() -> None:
    judge = Judge(SETTINGS, 0)
    said = []
    now = 0.0
    while "hung" not in said:
        now = min(now + SETTINGS.interval_s, judge.due())
        said.append(judge.look(now, None))
    # the new one needs a second of backoff and its start
    assert now <= 40
    assert said.count("probe") == 1
    assert said.count("strike") == 1


def test_the_probe_that_a_frozen_engine_counts_as_its_one_request_does_not_make_it_busy() -> None:
    judge = Judge(SETTINGS, 0)
    assert judge.look(10, Progress(1, 0, 0)) == "probe"
    assert judge.look(20, Progress(1, 1, 0)) == "waiting"
    assert judge.look(25, Progress(1, 1, 0)) == "strike"
    assert judge.look(40, Progress(1, 1, 0)) == "hung"


def test_requests_beside_the_probe_make_it_busy_whenever_they_came() -> None:
    for before, after in ((1, 1), (1, 2), (0, 2)):
        judge = Judge(SETTINGS, 0)
        assert judge.look(10, Progress(1, before, 0)) == "probe"
        assert judge.look(129, Progress(1, after, 0)) == "waiting"
        assert judge.look(130, Progress(1, after, 0)) == "strike"


def test_a_busy_engine_whose_probe_takes_40_seconds_is_never_hung() -> None:
    judge = Judge(SETTINGS, 0)
    probe_sent = None
    for i in range(1, 120):
        now = 5.0 * i
        verdict = judge.look(now, Progress(1, 4, 2))
        assert verdict != "hung"
        if verdict == "probe":
            probe_sent = now
        if probe_sent is not None and now - probe_sent >= 40:
            judge.probe_returned(now, True)
            probe_sent = None


def test_two_probes_answered_with_errors_are_two_strikes() -> None:
    judge = Judge(SETTINGS, 0)
    assert judge.look(10, Progress(1, 0, 0)) == "probe"
    judge.probe_returned(10.1, False)
    assert judge.look(15, Progress(1, 0, 0)) == "probe"
    judge.probe_returned(15.1, False)
    assert judge.look(20, Progress(1, 0, 0)) == "hung"


def test_progress_wipes_strikes_away() -> None:
    judge = Judge(SETTINGS, 0)
    judge.look(10, Progress(1, 0, 0))
    judge.probe_returned(10.1, False)
    assert judge.look(15, Progress(50, 1, 0)) == "alive"
    assert judge.strikes == 0
