"""Which page of a tier goes first: leaves before parents, the longest unused first, and at no great cost."""

from kvpager.eviction.lru import LRU
from kvpager.tiers.slot_book import SlotBook
from kvpager.tiers.tier import Page
from kvpager.types import ContentKey

ROOT = ContentKey(bytes(32))


def key(name: str) -> ContentKey:
    return ContentKey(name.encode().ljust(32))


def store(book: SlotBook, name: str, parent: str = "") -> None:
    slot = book.prepare_store(Page(key(name), key(parent) if parent else ROOT))
    assert slot is not None
    book.complete_store(slot, succeeded=True)
    book.check()


def book_with_chain(num_slots: int, length: int) -> SlotBook:
    """Pages c0 <- c1 <- c2 ..., stored in this order."""
    book = SlotBook(num_slots, CountingLRU(num_slots))
    for number in range(length):
        store(book, f"c{number}", f"c{number - 1}" if number else "")
    return book


class CountingLRU(LRU):
    asked = 0

    def victim(self) -> int | None:
        self.asked += 1
        return super().victim()


def names(book: SlotBook) -> list[str]:
    return sorted(page.key.decode().strip() for page in book.pages())


def test_a_prefix_that_nobody_uses_goes_from_its_end_up_before_anything_younger() -> None:
    book = book_with_chain(5, 3)
    store(book, "a")
    store(book, "b")
    for number, left in enumerate((["c0", "c1"], ["c0"], [])):
        store(book, f"n{number}")
        assert names(book) == sorted(["a", "b", *left, *(f"n{n}" for n in range(number + 1))])
    store(book, "n3")
    assert "a" not in names(book)


def test_a_parent_that_was_used_itself_does_not_follow_its_last_child() -> None:
    book = book_with_chain(3, 2)
    store(book, "a")
    book.touch([key("c0")])
    store(book, "b")
    assert names(book) == ["a", "b", "c0"]
    store(book, "d")
    assert names(book) == ["b", "c0", "d"], "a is older than the use of c0"


def test_a_page_that_is_to_go_next_stays_when_it_is_used_or_gets_a_child() -> None:
    for use in (lambda book: book.touch([key("c0")]), lambda book: store(book, "c9", "c0")):
        book = book_with_chain(4, 2)
        store(book, "a")
        store(book, "b")
        store(book, "d")  # c1 goes, and c0 would be next
        book.forget([key("d")])
        use(book)
        book.check()
        store(book, "e")
        store(book, "f")
        assert "c0" in names(book)
        assert "a" not in names(book)


def test_a_child_that_was_forgotten_or_never_came_leaves_its_parent_where_it_was() -> None:
    book = book_with_chain(4, 2)
    store(book, "a")
    book.forget([key("c1")])
    slot = book.prepare_store(Page(key("c1"), key("c0")))
    assert slot is not None
    book.complete_store(slot, succeeded=False)
    book.check()
    assert names(book) == ["a", "c0"]
    assert [book.page(slot).key for slot in book.victims(9)] == [key("c0"), key("a")]


def test_in_a_full_tier_of_long_prefixes_a_store_looks_at_few_pages() -> None:
    book = book_with_chain(500, 500)
    policy = book.policy
    assert isinstance(policy, CountingLRU)
    policy.asked = 0
    for number in range(400):
        store(book, f"n{number}", f"n{number - 1}" if number else "")
    assert policy.asked <= 3 * 400
