"""The control of tests/properties/test_paging.py: each of these mistakes, made on purpose, is found by it."""

from collections.abc import Callable

import numpy as np
import pytest

from kvpager.cache.away import AwayPages
from kvpager.cache.page_copies import PageCopies, PageCopy
from kvpager.cache.paging_in import Arrivals
from kvpager.cache.paging_out import Departures
from kvpager.cache.partings import Partings
from tests.properties.paged_world import PagedWorld

Patch = pytest.MonkeyPatch


def pages_out_what_no_tier_has(patch: Patch) -> None:
    """... and takes the slot of some other page for it."""
    use = PageCopies.use

    def hopeful(self: PageCopies, copy: PageCopy) -> bool:
        if use(self, copy):
            return True
        other = next(iter(self.tiers[0].pages()), None)
        return other is not None and use(self, PageCopy(other, is_private=False))

    patch.setattr(PageCopies, "use", hopeful)
    patch.setattr(PageCopies, "is_there", lambda self, copy: True)


def never_lets_go(patch: Patch) -> None:
    patch.setattr(PageCopies, "let_go", lambda self, copy: None)


def lets_go_while_a_step_reads(patch: Patch) -> None:
    patch.setattr(Partings, "let_go", lambda self, seq, parting: self._part(parting))


def keeps_private_pages(patch: Patch) -> None:
    patch.setattr(PageCopies, "disown", lambda self, copy: setattr(copy, "owners", copy.owners - 1))


def uses_a_private_key_twice(patch: Patch) -> None:
    private = PageCopies.private

    def again(self: PageCopies, group: int) -> PageCopy:
        self._given_out = 0
        return private(self, group)

    patch.setattr(PageCopies, "private", again)


def publishes_what_was_computed_approximately(patch: Patch) -> None:
    patch.setattr(Partings, "approximate_from", lambda self, seq, position: None)
    patch.setattr("kvpager.cache.paged_cache.PagedCache._leave_index", lambda self, seq: None)


def leaves_the_block_in_the_index(patch: Patch) -> None:
    patch.setattr(Departures, "_give_back", lambda self, blocks: self._cache.pool.release(blocks))


def forgets_the_copies_of_forks(patch: Patch) -> None:
    def copy(self: AwayPages) -> AwayPages:
        return AwayPages(self.rest.copy(), dict(self.copies), self.gone.copy(), self.num_out, self.num_gone)

    patch.setattr(AwayPages, "copy", copy)


def maps_what_did_not_come(patch: Patch) -> None:
    land = Arrivals._land

    def hopeful(self: Arrivals, arrival: object) -> None:
        arrival.load.errors = [None] * len(arrival.pages)  # type: ignore[attr-defined]
        land(self, arrival)  # type: ignore[arg-type]

    patch.setattr(Arrivals, "_land", hopeful)


def pages_out_the_page_it_stands_on(patch: Patch) -> None:
    def candidates(self: Departures, seq: object, group: int) -> np.ndarray:
        full = seq.length // self._cache.layout.page_size  # type: ignore[attr-defined]
        entries = seq.tables[group].snapshot()[:full]  # type: ignore[attr-defined]
        return np.flatnonzero(entries >= 0)[::-1]

    patch.setattr(Departures, "candidates", candidates)


MISTAKES: list[Callable[[Patch], None]] = [
    forgets_the_copies_of_forks,
    keeps_private_pages,
    leaves_the_block_in_the_index,
    lets_go_while_a_step_reads,
    maps_what_did_not_come,
    never_lets_go,
    pages_out_the_page_it_stands_on,
    pages_out_what_no_tier_has,
    publishes_what_was_computed_approximately,
    uses_a_private_key_twice,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(mistake: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    for seed in range(40):
        try:
            PagedWorld(seed).run(100)
        except Exception:
            return
    pytest.fail("40 seeds have not met it")
