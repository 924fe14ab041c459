"""Which pages of a running sequence should give up their blocks first, and which should have one again.

Of each page is known how much attention fell on it lately, and when selective attention last chose it. Both say how
likely the page is needed soon; the first pages of a sequence (sinks) and its last ones are needed by every step. Pure
scoring of columns by page number: knows no cache, moves nothing, keeps nothing.
"""

from dataclasses import dataclass

import numpy as np

NEVER_SELECTED = -1
HALF_LIFE = 16  # steps after which a selection counts half
MARGIN = 0.25  # a page comes back only in place of one whose score is smaller by that share: no swinging to and fro


@dataclass(frozen=True, slots=True)
class PageUse:
    """Of one sequence in one layer group. Columns by page number; a page behind the end of one is not known to it.

    ``mass`` float32: share of the attention that fell on the page lately (AttentionState.page_use), or None.
    ``last_selected`` int64: number of the step in which selective attention last chose it, NEVER_SELECTED where it
    never did; or None. ``now``: number of the present step, in the same count.
    """

    mass: np.ndarray | None = None
    last_selected: np.ndarray | None = None
    now: int = 0

    def scores(self, num_pages: int) -> np.ndarray:
        """float64 [num_pages], the higher the more likely needed soon: the mass, plus 1 for a page selected just now,
        half that HALF_LIFE steps ago, and so on. Infinite for pages that no column knows: they were written just now.
        """
        columns = [column for column in (self.mass, self.last_selected) if column is not None]
        known = min(num_pages, max(map(len, columns), default=num_pages))
        scores = np.zeros(num_pages)
        scores[known:] = np.inf
        if self.mass is not None:
            mass = self.mass[:num_pages]
            scores[: len(mass)] += mass
        if self.last_selected is not None:
            last = self.last_selected[:num_pages]
            weight = np.exp2((last - self.now) / HALF_LIFE)
            scores[: len(last)] += np.where(last == NEVER_SELECTED, 0.0, weight)
        return scores


@dataclass(frozen=True, slots=True)
class Exchange:
    """``go`` and ``come``, int64 of equal length: page ``come[i]`` takes the place of page ``go[i]``."""

    go: np.ndarray
    come: np.ndarray


def order_to_go(pages: np.ndarray, use: PageUse, num_pages: int, *, sinks: int, recent: int) -> np.ndarray:
    """Those of ``pages`` that may lose their blocks, the one that should go first in front; int64.

    ``pages``: page numbers, any order (say, all that are resident, full and clean). ``num_pages`` of the sequence;
    its first ``sinks`` and last ``recent`` pages (counts of pages) never go. The least used goes first; of equals, and
    where nothing is known (``PageUse()``), the older page, which is the one with the smaller number. Pages too new to
    be measured go last.
    """
    pages = np.sort(pages).astype(np.int64)
    may_go = pages[(pages >= sinks) & (pages < num_pages - recent)]
    return may_go[np.argsort(use.scores(num_pages)[may_go], kind="stable")]


def exchanges(
    resident: np.ndarray, others: np.ndarray, use: PageUse, num_pages: int, *, sinks: int, recent: int, at_most: int
) -> Exchange:
    """Which of ``others`` (pages without a block) are worth the block of a page that is ``resident``.

    The most used of the others take the place of the least used that may go (see ``order_to_go``), as long as they are
    used more by MARGIN, and at most ``at_most`` of them: two pages of about the same use never take turns.
    """
    scores = use.scores(num_pages)
    go = order_to_go(resident, use, num_pages, sinks=sinks, recent=recent)[:at_most]
    come = np.sort(others).astype(np.int64)
    come = come[np.isfinite(scores[come])]
    come = come[np.argsort(-scores[come], kind="stable")][: len(go)]
    go = go[: len(come)]
    is_worth_it = scores[come] > scores[go] * (1 + MARGIN)  # scores of come fall and those of go rise: true, then false
    return Exchange(go[is_worth_it], come[is_worth_it])
