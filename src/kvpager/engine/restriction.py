"""Which tokens may not be chosen next: those that a guide forbids, and those that would end an output too early.

Writes -inf over their logits, before any other option. Knows no grammar, and not how a token is drawn.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from kvpager.engine.sampling import SamplerRow

_FAILED = "the guide of its text failed"
_NOTHING_LEFT = "the guide of its text allows no token here"


def restrict(logits: Tensor, rows: "Sequence[SamplerRow]") -> dict[int, str]:
    """Restricts each row in place, [rows, vocab]; returns why no token can be chosen for some of them, by row.

    A guide that allows end tokens alone is stronger than ``min_tokens``: its text is whole, and nothing can follow.
    """
    reasons: dict[int, str] = {}
    for i, row in enumerate(rows):
        if row.guide is not None:
            try:
                allowed = _allowed(row, logits.shape[1])
            except Exception as error:  # it is the client's: whatever goes wrong in it is its own choice's end
                reasons[i] = f"{_FAILED}: {error}"
                continue
            if not allowed.any():
                reasons[i] = _NOTHING_LEFT
            logits[i].masked_fill_(torch.from_numpy(~allowed).to(logits.device), -torch.inf)
        elif row.must_go_on:
            logits[i, list(row.ends)] = -torch.inf
    return reasons


def _allowed(row: "SamplerRow", vocab: int) -> npt.NDArray[np.bool_]:
    """[vocab]"""
    assert row.guide is not None
    found = row.guide.allowed()[:vocab]
    allowed = np.zeros(vocab, np.bool_)
    allowed[: len(found)] = found
    end_tokens, ends = list(row.end_tokens), list(row.ends)
    allowed[end_tokens] = False
    if row.guide.may_end:
        allowed[ends] = True
    if row.must_go_on and np.delete(allowed, ends).any():
        allowed[ends] = False
    return allowed
