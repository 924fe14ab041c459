"""What the remote tier has of its own: hearsay, deadlines, the breaker, bounds."""

import numpy as np
import pytest

from kvpager.checksum import checksum
from kvpager.errors import TierError, TierFull
from kvpager.tiers.remote.object_store import Missing, TooLate, Unreachable
from kvpager.tiers.remote.store import RemoteStore
from kvpager.tiers.tier import Slot
from tests.contracts.lower_tier import PAGE_BYTES, content, key, page
from tests.tiers.remote.fakes import DictObjects, Hand, make_store


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def objects() -> DictObjects:
    return DictObjects()


@pytest.fixture
def store(objects: DictObjects, clock: Hand) -> RemoteStore:
    return make_store(objects, clock, PAGE_BYTES)


def prepared(store: RemoteStore, numbers: range) -> list[Slot]:
    return [slot for number in numbers if (slot := store.prepare_store(page(number))) is not None]


def put(store: RemoteStore, *numbers: int) -> None:
    for number in numbers:
        (slot,) = prepared(store, range(number, number + 1))
        (error,) = store.write([slot], [content(number)])
        store.complete_store(slot, error)
    store.check()


def get(store: RemoteStore, *numbers: int) -> list[int | TierError]:
    """One call of a worker for all of them."""
    slots = [slot for number in numbers if (slot := store.prepare_load(key(number))) is not None]
    found = store.read(slots, [np.zeros(PAGE_BYTES, np.uint8) for _ in slots])
    for slot, each in zip(slots, found, strict=True):
        store.complete_load(slot, each if isinstance(each, TierError) else None)
    store.check()
    return found


def ask(store: RemoteStore, *numbers: int) -> None:
    keys = [key(number) for number in numbers]
    store.learn(keys, store.probe(keys))


# -- hearsay ---------------------------------------------------------------------------------------------------------


def test_names_tell_the_key_and_nothing_else(store: RemoteStore, objects: DictObjects) -> None:
    put(store, 1)
    assert list(objects.objects) == [b"test/" + key(1).hex().encode()]


def test_bookkeeping_asks_nobody(store: RemoteStore, objects: DictObjects) -> None:
    put(store, 1)
    objects.calls.clear()
    assert [store.contains(key(number)) for number in (1, 2)] == [True, None]
    for slot in (store.prepare_store(page(2)), store.prepare_store(page(3))):
        assert slot is not None
        store.complete_store(slot, TierError("test"))
    slot = store.prepare_load(key(1))
    assert slot is not None
    store.complete_load(slot, None)
    store.forget([key(1)])
    store.learn([key(4)], [True])
    store.tick()
    store.blame("late")
    assert store.clear() == 1
    store.touch([key(4)])
    assert (store.victims(3), store.usage().moving, store.statistics().pages) == ([], 0, 0)
    assert objects.calls == []


def test_what_others_stored_is_found_by_asking(objects: DictObjects, clock: Hand, store: RemoteStore) -> None:
    put(make_store(objects, clock, PAGE_BYTES), 1, 2)
    assert [store.contains(key(number)) for number in (1, 2, 3)] == [None, None, None]
    assert store.prepare_load(key(1)) is None
    objects.calls.clear()
    ask(store, 1, 2, 3)
    assert [(method, count) for method, count, _ in objects.calls] == [("exists", 3)]  # one round trip
    assert [store.contains(key(number)) for number in (1, 2, 3)] == [True, True, False]
    assert get(store, 1, 2) == [checksum(content(1)), checksum(content(2))]


def test_a_no_is_asked_again_before_long_and_a_yes_after_a_while(store: RemoteStore, clock: Hand) -> None:
    put(store, 1)
    ask(store, 2)
    clock.now += 5
    assert (store.contains(key(1)), store.contains(key(2))) == (True, None)
    clock.now += 300
    assert store.contains(key(1)) is None


def test_what_went_missing_is_not_tried_again(store: RemoteStore, objects: DictObjects, clock: Hand) -> None:
    """O-17 (b)."""
    put(store, 1, 2)
    objects.objects.clear()
    assert [type(each) for each in get(store, 1, 2)] == [Missing, Missing]
    assert [store.prepare_load(key(number)) for number in (1, 2)] == [None, None]
    assert [store.contains(key(number)) for number in (1, 2)] == [False, False]
    assert store.statistics().failures == {"missing": 2}


def test_a_page_that_is_forgotten_while_it_is_read_well_stays_forgotten(store: RemoteStore) -> None:
    put(store, 1)
    slot = store.prepare_load(key(1))
    assert slot is not None
    store.forget([key(1)])
    store.complete_load(slot, None)
    assert store.contains(key(1)) is False


def test_forgotten_pages_are_deleted_before_the_next_question(store: RemoteStore, objects: DictObjects) -> None:
    put(store, 1, 2, 3)
    store.forget([key(1), key(99)])
    assert store.probe([key(1), key(2)]) == [False, True]
    assert [(method, count) for method, count, _ in objects.calls[-2:]] == [("delete", 1), ("exists", 2)]
    store.forget([key(2)])
    store.close()
    assert list(objects.objects) == [b"test/" + key(3).hex().encode()]
    assert objects.is_closed


def test_a_page_is_stored_again_after_it_was_forgotten(store: RemoteStore) -> None:
    put(store, 1)
    store.forget([key(1)])
    put(store, 1)
    assert get(store, 1) == [checksum(content(1))]


# -- the breaker -----------------------------------------------------------------------------------------------------


def break_it(objects: DictObjects, error: TierError) -> None:
    objects.fault = lambda method: error


def test_failures_are_counted_by_call_and_listed_by_page(store: RemoteStore, objects: DictObjects) -> None:
    put(store, *range(40))
    break_it(objects, TooLate("too late"))
    for call in range(4):
        get(store, *range(10 * call, 10 * call + 8))
    assert store.statistics().state == "ok"
    get(store, *range(8, 10))
    statistics = store.statistics()
    assert statistics.state == "failing: too late"
    assert (statistics.failures, statistics.loaded.failed) == ({"late": 34}, 34)


def test_a_failing_remote_is_not_asked(store: RemoteStore, objects: DictObjects, clock: Hand) -> None:
    put(store, *range(10))
    break_it(objects, Unreachable("gone"))
    for number in range(5):
        get(store, number)
    assert [store.contains(key(number)) for number in (7, 99)] == [False, False]
    assert store.prepare_load(key(7)) is None
    clock.now += 1
    assert [store.contains(key(number)) for number in (7, 99)] == [True, None]
    objects.fault = lambda method: None
    assert get(store, 7, 8) == [checksum(content(7))]  # one page is the trial
    assert get(store, 8) == [checksum(content(8))]
    assert store.statistics().state == "ok"


@pytest.mark.parametrize("answer", [[True], [False], None], ids=["yes", "no", "none"])
def test_a_question_may_be_the_trial(
    store: RemoteStore, clock: Hand, objects: DictObjects, answer: list[bool] | None
) -> None:
    for _ in range(5):
        store.blame("a question failed: it is down")
        store.learn([key(9)], None)
    assert store.statistics().state == "failing: a question failed: it is down"
    clock.now += 6
    assert store.contains(key(9)) is None
    store.learn([key(9)], answer)
    assert (store.statistics().state == "ok") == (answer is not None)


def test_a_store_may_be_the_trial(store: RemoteStore, objects: DictObjects, clock: Hand) -> None:
    break_it(objects, Unreachable("gone"))
    for number in range(5):
        put(store, number)
    assert store.statistics().state == "stores are failing: gone"
    assert store.prepare_store(page(9)) is None
    assert store.contains(key(9)) is None  # reading is another matter
    clock.now += 1
    objects.fault = lambda method: None
    put(store, 9)
    assert store.statistics().state == "ok"


def test_a_remote_whose_pages_do_not_come_is_not_well_because_it_answers_questions(
    store: RemoteStore, objects: DictObjects, clock: Hand
) -> None:
    put(store, *range(8))
    objects.fault = lambda method: TooLate("too slow") if method == "get" else None
    for number in range(5):
        get(store, number)
        ask(store, 50 + number)
        put(store, 20 + number)
    assert store.statistics().state == "failing: too slow"
    for wait in (1, 2, 4):  # each trial that fails doubles the wait
        clock.now += wait
        ask(store, 60)
        get(store, 7)
        assert store.contains(key(20)) is False
        put(store, 7)
    clock.now += 8
    objects.fault = lambda method: None
    get(store, 7)
    assert store.statistics().state == "ok"


def test_answers_that_nobody_waits_for_any_more_do_not_make_it_well(store: RemoteStore, clock: Hand) -> None:
    """O-21: a remote that is too slow for every load is as good as down, even though it answers in the end."""
    put(store, *range(6))
    for number in range(5):
        slot = store.prepare_load(key(number))
        assert slot is not None
        clock.now += 0.2
        store.blame("a load did not come back in time")
        store.complete_load(slot, None)
    assert store.statistics().state == "failing: a load did not come back in time"
    assert store.contains(key(5)) is False


def test_a_remote_without_room_still_serves(store: RemoteStore, objects: DictObjects, clock: Hand) -> None:
    put(store, 1)
    objects.fault = lambda method: TierFull("no room") if method == "put" else None
    for number in range(10, 20):
        slot = store.prepare_store(page(number))
        if slot is not None:
            (error,) = store.write([slot], [content(number)])
            store.complete_store(slot, error)
    statistics = store.statistics()
    assert (statistics.state, statistics.failures, statistics.refused) == ("ok", {"full": 1}, 9)
    assert get(store, 1) == [checksum(content(1))]
    objects.fault = lambda method: None
    clock.now += 5
    put(store, 10)


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_no_more_moves_than_may(objects: DictObjects, clock: Hand) -> None:
    store = make_store(objects, clock, PAGE_BYTES, max_moving=3)
    slots = prepared(store, range(10))
    assert [slot.key for slot in slots] == [key(0), key(1), key(2)]
    assert (store.statistics().refused, store.usage().moving) == (7, 3)
    for slot, error in zip(slots, store.write(slots, [content(number) for number in range(3)]), strict=True):
        store.complete_store(slot, error)
    put(store, 3)
    loads = [slot for number in (0, 0, 1, 2, 3) if (slot := store.prepare_load(key(number))) is not None]
    assert [slot.key for slot in loads] == [key(0), key(0), key(1)]
    assert len(prepared(store, range(20, 25))) == 3  # stores have a bound of their own
    store.check()


def test_a_call_has_its_deadline_and_tries_again_within_it(objects: DictObjects, clock: Hand) -> None:
    store = make_store(objects, clock, PAGE_BYTES, deadline=0.5)
    put(store, 1)
    objects.calls.clear()
    break_it(objects, Unreachable("gone"))
    get(store, 1)
    timeouts = [timeout for _, _, timeout in objects.calls]
    assert len(timeouts) == 3
    assert timeouts[0] == 0.5
    assert timeouts == sorted(timeouts, reverse=True)
    assert store.statistics().failures == {"unreachable": 1}


def test_an_error_of_one_object_harms_no_other_of_its_call(store: RemoteStore, objects: DictObjects) -> None:
    put(store, 1, 2, 3)
    del objects.objects[b"test/" + key(2).hex().encode()]
    first, second, third = get(store, 1, 2, 3)
    assert (first, third) == (checksum(content(1)), checksum(content(3)))
    assert isinstance(second, Missing)
