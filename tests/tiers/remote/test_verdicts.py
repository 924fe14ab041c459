import random

import pytest

from kvpager.tiers.remote.verdicts import Verdicts
from tests.contracts.lower_tier import key
from tests.tiers.remote.fakes import Hand


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def verdicts(clock: Hand) -> Verdicts:
    return Verdicts(clock, there_for=100.0, absent_for=5.0, most=4)


def test_verdicts_run_out(clock: Hand, verdicts: Verdicts) -> None:
    """O-17: a positive verdict is never for ever."""
    verdicts.set_there(key(1))
    verdicts.set_absent(key(2))
    assert [verdicts.get(key(at)) for at in (1, 2, 3)] == [True, False, None]
    clock.now += 5
    assert [verdicts.get(key(at)) for at in (1, 2)] == [True, None]
    clock.now += 94.9
    assert verdicts.get(key(1)) is True
    clock.now += 0.1
    assert verdicts.get(key(1)) is None
    assert verdicts.there() == []
    verdicts.tick()
    assert verdicts.num_there == 0
    verdicts.check()


def test_a_page_that_is_seen_again_is_believed_for_longer(clock: Hand, verdicts: Verdicts) -> None:
    verdicts.set_there(key(1))
    clock.now += 60
    verdicts.set_there(key(1))
    clock.now += 60
    assert verdicts.get(key(1)) is True


def test_the_oldest_is_dropped_from_a_full_book(verdicts: Verdicts) -> None:
    for number in (1, 2, 3, 4, 1, 5):
        verdicts.set_there(key(number))
        verdicts.check()
    assert [verdicts.get(key(at)) for at in range(1, 6)] == [True, None, True, True, True]
    for number in range(10, 30):
        verdicts.set_absent(key(number))
        verdicts.set_wrong(key(100 + number))
        verdicts.check()
    assert verdicts.get(key(29)) is False
    assert verdicts.get(key(10)) is None


def test_what_is_wrong_stays_so_until_it_is_stored_anew(clock: Hand, verdicts: Verdicts) -> None:
    verdicts.set_wrong(key(1))
    clock.now += 1000
    verdicts.tick()
    verdicts.learn([key(1)], [True])  # somebody has it, but is it right?
    assert verdicts.get(key(1)) is False
    verdicts.set_there(key(1))
    assert verdicts.get(key(1)) is True


def test_an_old_answer_does_not_overrule_what_was_seen_since(verdicts: Verdicts) -> None:
    verdicts.set_there(key(1))
    verdicts.learn([key(1), key(2), key(3)], [False, True, False])
    assert [verdicts.get(key(at)) for at in (1, 2, 3)] == [True, True, False]


def test_at_random(clock: Hand) -> None:
    verdicts, dice = Verdicts(clock, there_for=50.0, absent_for=5.0, most=20), random.Random(3)
    for _ in range(2000):
        change = dice.choice([verdicts.set_there, verdicts.set_absent, verdicts.set_wrong])
        change(key(dice.randrange(60)))
        clock.now += dice.choice([0, 0, 0, 1, 3])
        verdicts.tick()
        verdicts.check()
    assert len(verdicts.there()) == verdicts.num_there > 0
