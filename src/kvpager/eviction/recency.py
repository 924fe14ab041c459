"""Some of the pages of a policy by their last use, the least recent first, where no order but that is asked for."""

from collections import OrderedDict


class Recency(OrderedDict[int, int]):
    """The number of a page -> its block. Numbers stay when blocks are renamed, so a page keeps its place then."""

    def pop_oldest(self) -> int:
        """Returns the block."""
        return self.popitem(last=False)[1]

    def rename(self, page: int, block: int) -> None:
        """The page is in another block now, if it is here."""
        if page in self:
            self[page] = block
