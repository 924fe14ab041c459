"""What a naive model of a policy is told, page by page. It knows pages by their number, never blocks.

A model keeps plain lists and searches them, so that it can be read against the definition of its policy. ``offered``
are the pages that may go.
"""

from collections.abc import Collection, Iterable

from kvpager.eviction.policy import Use


def first_of(queue: Iterable[int], offered: Collection[int]) -> int | None:
    return next((page for page in queue if page in offered), None)


class Model:
    def __init__(self, size: int) -> None:
        self.size = size

    def enter_all(self, pages: list[int]) -> None:
        """Of one request, the first of its prompt first."""
        for page in pages:
            self.enter(page)

    def hit_all(self, pages: list[int]) -> None:
        for page in pages:
            self.hit(page)

    def enter(self, page: int) -> None:
        raise NotImplementedError

    def hit(self, page: int) -> None:
        pass

    def release(self, pages: list[int], use: Use) -> None:
        pass

    def leave(self, page: int) -> None:
        """It was the victim."""
        raise NotImplementedError

    def victim(self, offered: Collection[int]) -> int | None:
        raise NotImplementedError
