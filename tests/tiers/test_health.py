import pytest

from kvpager.tiers.health import Health


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hand:
    return Hand()


def opened(clock: Hand, retry_after: float = 1.0, longest_wait: float = 60.0) -> Health:
    health = Health(clock, failures_to_open=3, retry_after=retry_after, longest_wait=longest_wait)
    for _ in range(3):
        health.failed("it hangs")
    return health


def test_it_opens_at_the_nth_failure_in_a_row(clock: Hand) -> None:
    health = Health(clock, failures_to_open=3)
    for _ in range(2):
        health.failed("reset")
    assert (health.allows(), health.state, health.opened) == (True, "ok", 0)
    health.failed("refused")
    assert (health.allows(), health.is_open, health.state, health.opened) == (False, True, "failing: refused", 1)


def test_a_success_in_between_starts_the_count_anew(clock: Hand) -> None:
    health = Health(clock, failures_to_open=3)
    for _ in range(10):
        health.failed("reset")
        health.failed("reset")
        health.succeeded()
    assert health.allows()
    assert health.opened == 0


def test_once_its_wait_is_over_it_lets_one_call_through(clock: Hand) -> None:
    health = opened(clock)
    clock.now += 0.99
    assert not health.allows()
    clock.now += 0.01
    assert not health.is_open
    assert [health.allows() for _ in range(3)] == [True, False, False]
    assert health.state == "failing: it hangs"


def test_a_trial_that_succeeds_closes_it(clock: Hand) -> None:
    health = opened(clock)
    clock.now += 1
    assert health.allows()
    health.succeeded()
    assert [health.allows() for _ in range(3)] == [True] * 3
    assert health.state == "ok"


def test_the_wait_doubles_with_each_trial_that_fails_up_to_the_longest(clock: Hand) -> None:
    health = opened(clock, retry_after=1.0, longest_wait=5.0)
    for wait in (1, 2, 4, 5, 5):
        clock.now += wait - 0.01
        assert not health.allows()
        clock.now += 0.01
        assert health.allows()
        health.failed("still")
    assert health.opened == 1


def test_the_wait_is_short_again_after_a_success(clock: Hand) -> None:
    health = opened(clock)
    clock.now += 1
    assert health.allows()
    health.failed("still")
    clock.now += 2
    assert health.allows()
    health.succeeded()
    for _ in range(3):
        health.failed("again")
    clock.now += 1
    assert health.allows()


def test_failures_of_calls_from_before_it_opened_change_no_wait(clock: Hand) -> None:
    health = opened(clock)
    for _ in range(20):
        health.failed("late news")
    clock.now += 1
    assert health.allows()


def test_whatever_fails_once_the_wait_is_over_counts_as_the_trial(clock: Hand) -> None:
    """Somebody may have looked at ``is_open`` only."""
    health = opened(clock)
    clock.now += 1
    assert not health.is_open
    health.failed("still")
    clock.now += 1.99
    assert health.is_open
    clock.now += 0.01
    assert health.allows()


def test_a_trial_of_which_nothing_is_heard_is_given_up(clock: Hand) -> None:
    health = opened(clock)
    clock.now += 1
    assert health.allows()
    clock.now += 0.99
    assert not health.allows()
    clock.now += 0.01
    assert health.allows()
