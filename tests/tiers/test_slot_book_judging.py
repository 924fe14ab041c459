"""Which pages a tier takes when its policy judges, what it knows of them, and that every policy can order a tier."""

import random

import pytest

from kvpager.eviction.lru import LRU
from kvpager.eviction.make import POLICIES, make_policy
from kvpager.eviction.policy import NO_USE, History, Use
from kvpager.tiers.slot_book import SlotBook
from kvpager.tiers.tier import Page
from kvpager.types import ContentKey
from tests.tiers.judging import KnownWorth

ROOT = ContentKey(bytes(32))


def key(name: str) -> ContentKey:
    """The letter says what the page is worth."""
    return ContentKey(name.encode().ljust(32))


def known(name: str, uses: int = 1) -> History:
    return History(last_used=0.0, uses=uses, kind=ord(name[0]))


def page(name: str, parent: str = "", history: History | None = None) -> Page:
    return Page(key(name), key(parent) if parent else ROOT, history=history)


def takes(book: SlotBook, offered: Page) -> bool:
    """Whether the page is stored, as a tier does it."""
    if book.declines(offered):
        return False
    slot = book.prepare_store(offered)
    assert slot is not None
    book.complete_store(slot, succeeded=True)
    book.check()
    return True


def book_of(*names: str) -> SlotBook:
    """A full tier."""
    book = SlotBook(len(names), KnownWorth(len(names)))
    assert all(takes(book, page(name, history=known(name))) for name in names)
    return book


def names(book: SlotBook) -> str:
    return "".join(sorted(each.key.decode().strip() for each in book.pages()))


def test_a_page_is_declined_if_what_would_have_to_go_is_worth_more() -> None:
    book = book_of("d", "e", "f")
    assert not takes(book, page("c", history=known("c")))
    assert names(book) == "def"
    assert takes(book, page("h", history=known("h")))
    assert names(book) == "efh"
    assert book.evicted == 1


def test_of_two_that_are_worth_the_same_the_one_that_is_there_stays() -> None:
    """The other would have to be copied for nothing."""
    book = book_of("d", "e")
    assert not takes(book, page("d1", history=known("d")))
    assert takes(book, page("d2", history=known("d", uses=2)))
    assert names(book) == "d2e"


def test_while_there_is_room_every_page_is_taken() -> None:
    book = SlotBook(2, KnownWorth(2))
    assert takes(book, page("z", history=known("z")))
    assert takes(book, page("a", history=known("a")))


def test_a_page_of_which_nothing_is_known_is_taken() -> None:
    book = book_of("d", "e")
    assert takes(book, page("a"))
    assert names(book) == "ae"


def test_a_page_under_which_others_hang_is_taken() -> None:
    book = book_of("d", "e")
    assert takes(book, page("z", parent="a", history=known("z")))
    assert not takes(book, page("b", history=known("b")))
    assert takes(book, page("a", history=known("a")))
    assert names(book) == "az"


def test_a_page_is_not_compared_with_its_parent_which_stays_for_it() -> None:
    book = book_of("a", "e")
    assert not takes(book, page("c", parent="a", history=known("c")))
    assert takes(book, page("f", parent="a", history=known("f")))
    assert names(book) == "af"


class EverythingIsPinned:
    def is_pinned(self, key: ContentKey) -> bool:
        return True

    def use_below(self, key: ContentKey) -> Use:
        return NO_USE


def test_a_pinned_page_is_taken() -> None:
    book = book_of("d", "e")
    assert book.declines(page("a", history=known("a")))
    book.retains = EverythingIsPinned()
    assert not book.declines(page("a", history=known("a")))


def test_nothing_is_declined_by_a_policy_that_does_not_judge() -> None:
    book = SlotBook(1, LRU(1))
    assert takes(book, page("z", history=known("z")))
    assert takes(book, page("a", history=known("a")))
    assert book.history(key("a")) is None
    assert book.pages()[0].history is None or book.pages()[0].history == known("a")


def test_a_page_keeps_the_history_it_came_with_and_uses_add_to_it() -> None:
    book = book_of("d", "e")
    assert takes(book, page("f", history=known("f", uses=7)))
    assert book.history(key("f")) == known("f", uses=7)
    book.touch([key("f")])
    history = book.history(key("f"))
    assert history is not None
    assert history.uses == 8
    assert {each.history for each in book.pages() if each.key == key("f")} == {history}
    assert book.history(key("d")) is None, "it has gone"


def test_what_the_device_knew_counts_when_a_page_has_left_it() -> None:
    """From then on other pages go first."""
    book = book_of("d", "e", "f")
    assert book.page(book.victims(1)[0]).key == key("d")
    book.remember([page("d", history=known("z", uses=3)), page("unknown", history=known("z")), page("e")])
    book.check()
    assert book.page(book.victims(1)[0]).key == key("e")
    assert book.history(key("d")) == known("z", uses=3)


def test_a_page_that_is_read_or_written_is_remembered_without_being_offered() -> None:
    book = book_of("d", "e")
    slot = book.prepare_load(key("d"))
    assert slot is not None
    book.remember([page("d", history=known("a"))])
    book.check()
    book.complete_load(slot)
    assert book.victims(1) == [slot]
    writing = book.prepare_store(page("f", history=known("f")))
    assert writing is not None
    book.remember([page("f", history=known("a"))])
    book.complete_store(writing, succeeded=True)
    book.check()
    assert book.history(key("f")) == known("f")


def test_pages_found_at_a_restart_begin_anew() -> None:
    book = SlotBook(3, KnownWorth(3))
    book.adopt_all([0, 2], [page("d"), page("e")])
    book.check()
    history = book.history(key("d"))
    assert history is not None
    assert history.uses == 1


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_order_a_tier(name: str) -> None:
    """Which is made without a slot and grows, as a disk tier does."""
    dice, now = random.Random(3), [0.0]
    policy = make_policy(name, 0, lambda: now[0])
    book = SlotBook(0, policy)
    book.grow(12)
    reading: list[int] = []
    for _ in range(600):
        now[0] += dice.random()
        number = dice.randrange(40)
        what = dice.choice(("store", "store", "store", "touch", "load", "end", "forget"))
        if what == "store":
            parent = f"p{number // 2}" if number else ""
            slot = book.prepare_store(page(f"p{number}", parent))
            if slot is not None:
                book.complete_store(slot, succeeded=dice.random() < 0.9)
        elif what == "touch":
            book.touch([key(f"p{number}"), key(f"p{number // 2}")])
        elif what == "load" and (slot := book.prepare_load(key(f"p{number}"))) is not None:
            reading.append(slot)
        elif what == "end" and reading:
            book.complete_load(reading.pop(dice.randrange(len(reading))))
        elif what == "forget" and number < 5:
            book.forget([key(f"p{number}")])
        book.check()
    assert book.evicted > 50
    assert policy.victim() == policy.victim() is not None
    assert len(set(book.victims(3))) == 3
    book.check()
