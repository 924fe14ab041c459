"""Which tokens a request has seen, for the penalties of its sampling. Knows no logits and no options."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvpager.errors import InvariantError


class TokenCounts:
    """Which tokens a request has seen and how often its output contains each; constant amortised time a token.

    Tokens are counted when somebody asks: most requests have no penalties, and nobody does.

    Invariant: ``ids`` are distinct, ``counts[i]`` is how often the output contains ``ids[i]`` (0: only the prompt
    does), and the counts add up to ``num_output``.
    """

    __slots__ = ("_counts", "_ids", "_slots", "_uncounted", "num_output")

    def __init__(self, prompt_tokens: Sequence[int], output_tokens: Sequence[int] = ()) -> None:
        self._ids: npt.NDArray[np.int64] = np.unique(np.asarray(prompt_tokens, dtype=np.int64))
        self._counts: npt.NDArray[np.int64] = np.zeros_like(self._ids)
        self._slots: dict[int, int] = {token: slot for slot, token in enumerate(self._ids.tolist())}
        self._uncounted = list(output_tokens)
        self.num_output = len(self._uncounted)  # length of the output in tokens: the position of the next one

    def append(self, token: int) -> None:
        """Count a token of the output."""
        self._uncounted.append(token)
        self.num_output += 1

    def _count(self) -> None:
        for token in self._uncounted:
            slot = self._slots.setdefault(int(token), len(self._slots))
            if slot == len(self._ids):
                self._grow()
            self._ids[slot] = token
            self._counts[slot] += 1
        self._uncounted.clear()

    def _grow(self) -> None:
        more = np.zeros(max(16, len(self._ids)), dtype=np.int64)
        self._ids = np.concatenate([self._ids, more])
        self._counts = np.concatenate([self._counts, more])

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The distinct tokens seen, [distinct], in no order. A view, valid until the next ``append``; don't write."""
        self._count()
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How often the output contains each of ``ids``, [distinct]. A view like ``ids``."""
        self._count()
        return self._counts[: len(self._slots)]

    def check(self) -> None:
        """Raise InvariantError if the books don't agree."""
        is_indexed = all(self._slots.get(token) == slot for slot, token in enumerate(self.ids.tolist()))
        if not is_indexed or int(self.counts.sum()) != self.num_output:
            raise InvariantError(f"TokenCounts of {len(self._slots)} tokens and {self.num_output} outputs disagree.")
