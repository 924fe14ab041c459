"""What attention keeps of one sequence from step to step, as far as the cache has to know.

The data plane makes it (attention/states.py) and reads it in every layer; the cache carries it along, asks which pages
it uses and which it needs no more, and tells it what happens to the sequence.
"""

from typing import Protocol

import numpy as np


class AttentionState(Protocol):
    """Of one sequence. ``description``: how it attends, as config/attend.py writes it. ``is_exact``: to all pages."""

    description: str
    is_exact: bool

    def page_use(self, group: int) -> np.ndarray | None:
        """float32 [pages]: how much each page of a layer group was attended to lately, 1 in all; None: not known."""
        ...

    def pages_to_give_back(self, group: int, length: int) -> np.ndarray:
        """Full pages that no later query will attend to, ascending. Asked after each step; ``length`` tokens are there.

        Never one of the last page or of those behind it.
        """
        ...

    def forked(self) -> "AttentionState":
        """The same for a second sequence of the same content."""
        ...

    def cut(self, length: int) -> None:
        """The sequence was truncated to ``length`` tokens."""
        ...
