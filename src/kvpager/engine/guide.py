"""What restricts the text of a choice, token by token: a grammar, as the engine sees it. Knows no grammar and no text.

    allowed, may_end -> the token is chosen among these -> accept -> is_complete? the choice ends : once more

A guide says nothing of end tokens: the engine allows them exactly when ``may_end``.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt


class Guide(Protocol):
    """Belongs to one choice: the engine asks and tells it of each token, from its thread alone. It outlives a
    preemption. If it raises, its own choice ends with an error.
    """

    def allowed(self) -> npt.NDArray[np.bool_]:
        """[tokens] which may come next, by id; those beyond its length may not. Changes nothing."""
        ...

    def accept(self, token: int) -> None:
        """The token was chosen. Raises if it is not one that was allowed."""
        ...

    def fork(self) -> "Guide":
        """Another one in the same state, for another choice."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether the text so far is a whole one, though it may go on."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether it is a whole one, and nothing can follow."""
        ...
