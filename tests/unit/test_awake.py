"""When the instrumentation is awake."""

from __future__ import annotations

import pytest

from nvprobe.instrumentation import awake


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> None:
    initial = {
        "now": True,
        "woken": False,
        "_window": True,
        "_never": False,
        "_held": 0,
    }
    for name, value in initial.items():
        monkeypatch.setattr(awake, name, value)
    monkeypatch.setattr(awake, "_followers", [])


def test_followers_hear_of_changes_alone():
    heard: list[str] = []
    awake.follow(lambda: heard.append("wake"), lambda: heard.append("sleep"))
    for change in (awake.wake, awake.sleep, awake.sleep, awake.wake):
        change()
    assert heard == ["wake", "sleep", "wake"]
    assert awake.now


def test_a_follower_that_fails_stops_nobody():
    def fail() -> None:
        raise RuntimeError

    heard: list[str] = []
    awake.follow(fail, fail)
    awake.follow(lambda: None, lambda: heard.append("sleep"))
    awake.sleep()
    assert heard == ["sleep"]


def test_a_capture_holds_awake_without_waking_followers():
    heard: list[str] = []
    awake.sleep()
    awake.follow(lambda: heard.append("wake"), lambda: heard.append("sleep"))
    awake.hold()
    assert awake.now
    awake.release()
    assert not awake.now
    assert heard == []


def test_what_sleeps_for_good_never_wakes():
    awake.for_good()
    awake.wake()
    awake.hold()
    assert not awake.now
    awake.release()
    assert not awake.now
