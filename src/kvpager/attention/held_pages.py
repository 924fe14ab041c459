"""The pages that a request which gives pages back still has in one layer group, and the attention mass of each."""

import numpy as np


class HeldPages:
    """``pages`` int64, ascending; ``masses`` float64 of each. As large as what is held, however long the sequence."""

    def __init__(self) -> None:
        self.pages = np.empty(0, np.int64)
        self.masses = np.empty(0)
        self._num_seen = 0  # pages the sequence has had

    def grown(self, num_pages: int) -> np.ndarray:
        """``pages`` with those a sequence of ``num_pages`` has besides; changes nothing."""
        return np.concatenate([self.pages, np.arange(self._num_seen, num_pages)])

    def grow(self, num_pages: int) -> None:
        if num_pages > self._num_seen:
            self.pages = self.grown(num_pages)
            self.masses = np.concatenate([self.masses, np.zeros(len(self.pages) - len(self.masses))])
            self._num_seen = num_pages

    def give_back(self, at: np.ndarray) -> np.ndarray:
        """The pages at these places of ``pages`` are held no more. Returns them, ascending."""
        going = np.sort(self.pages[at])
        stays = np.ones(len(self.pages), bool)
        stays[at] = False
        self.pages, self.masses = self.pages[stays], self.masses[stays]
        return going

    def cut(self, num_pages: int) -> None:
        stays = self.pages < num_pages
        self.pages, self.masses = self.pages[stays], self.masses[stays]
        self._num_seen = min(self._num_seen, num_pages)

    def copy(self) -> "HeldPages":
        other = HeldPages()
        other.pages, other.masses, other._num_seen = self.pages, self.masses.copy(), self._num_seen
        return other
