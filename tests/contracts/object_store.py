"""What every store of objects has to do. A subclass gives the fixture ``store``: empty, and answering."""

from threading import Thread

import pytest

from kvpager.errors import WrongContent
from kvpager.tiers.remote.object_store import Missing, ObjectStore

TIMEOUT = 20.0  # of a store that answers
LARGE = bytes(range(256)) * 1024


def names(count: int) -> list[bytes]:
    return [b"test/%064x" % at for at in range(count)]


class ObjectStoreContract:
    @pytest.fixture
    def store(self) -> ObjectStore:
        raise NotImplementedError

    def put(self, store: ObjectStore, items: dict[bytes, bytes]) -> None:
        answers = store.put_many(list(items), list(items.values()), TIMEOUT)
        assert answers == [None] * len(items)

    def test_what_was_put_is_got_in_the_order_asked_for(self, store: ObjectStore) -> None:
        items = {name: bytes([at]) * (at + 1) for at, name in enumerate(names(40))}
        self.put(store, items)
        backwards = list(items)[::-1]
        assert store.get_many(backwards, 100, TIMEOUT) == [items[name] for name in backwards]

    def test_every_byte_comes_back(self, store: ObjectStore) -> None:
        (name,) = names(1)
        self.put(store, {name: LARGE})
        assert store.get_many([name], len(LARGE), TIMEOUT) == [LARGE]

    def test_what_is_not_there_is_missing(self, store: ObjectStore) -> None:
        here, absent = names(2)
        self.put(store, {here: b"x"})
        got = store.get_many([absent, here, absent], 10, TIMEOUT)
        assert got[1] == b"x"
        assert isinstance(got[0], Missing)
        assert isinstance(got[2], Missing)
        assert store.exists_many([absent, here, absent], TIMEOUT) == [False, True, False]

    def test_an_object_is_replaced_as_a_whole(self, store: ObjectStore) -> None:
        (name,) = names(1)
        self.put(store, {name: LARGE})
        self.put(store, {name: b"short"})
        assert store.get_many([name], len(LARGE), TIMEOUT) == [b"short"]

    def test_what_is_deleted_is_missing_and_may_be_deleted_again(self, store: ObjectStore) -> None:
        first, second, third = names(3)
        self.put(store, {first: b"1", second: b"2"})
        assert store.delete_many([first, third], TIMEOUT) == [None, None]
        assert store.exists_many([first, second, third], TIMEOUT) == [False, True, False]
        assert store.delete_many([first], TIMEOUT) == [None]

    def test_an_object_longer_than_asked_for_does_not_pass_for_one_that_fits(self, store: ObjectStore) -> None:
        long, fits = names(2)
        self.put(store, {long: LARGE, fits: b"123"})
        got = store.get_many([long, fits], 3, TIMEOUT)
        assert isinstance(got[0], WrongContent) or 3 < len(got[0]) <= 3 + 64  # type: ignore[arg-type]
        assert got[1] == b"123"

    def test_a_range_is_what_the_object_has_of_it(self, store: ObjectStore) -> None:
        here, absent = names(2)
        self.put(store, {here: LARGE})
        (found, none) = store.get_ranges([here, absent], 100, 7, TIMEOUT)
        assert found == LARGE[100:107]
        assert isinstance(none, Missing)
        assert store.get_ranges([here], len(LARGE) - 3, 7, TIMEOUT) == [LARGE[-3:]]

    def test_nothing_asked_nothing_answered(self, store: ObjectStore) -> None:
        assert (
            store.get_many([], 10, TIMEOUT)
            == store.get_ranges([], 0, 1, TIMEOUT)
            == store.put_many([], [], TIMEOUT)
            == []
        )
        assert store.exists_many([], TIMEOUT) == store.delete_many([], TIMEOUT) == []

    def test_threads_share_it(self, store: ObjectStore) -> None:
        wrong = []

        def work(at: int) -> None:
            mine = {name + b"-%d" % at: name * (at + 1) for name in names(5)}
            for _ in range(3):
                self.put(store, mine)
                if store.get_many(list(mine), 1000, TIMEOUT) != list(mine.values()):
                    wrong.append(at)

        threads = [Thread(target=work, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
