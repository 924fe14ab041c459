"""How soon pages of each kind are used again, learned from what is seen; csrc/adaptive_hazards.h does the same sums.

The *hazard* of a kind of page at an age (seconds since its last use) is its rate of reuse there, given that it was not
used before. Age is divided into bins, two an octave, and the hazard is constant within one. From pages that were
watched for ``time`` seconds in a bin and used again ``events`` times, the estimate is events / time: the maximum of
the likelihood whatever pages were lost from sight unused (censored), because they count for as long as they were seen
(the piecewise exponential form of Nelson 1972 and Aalen 1978; Kaplan and Meier 1958 is the same without bins).

A kind has few events of its own, so it borrows from what it is a special case of. Features are ordered; the parent of
a kind is the kind without its last feature, up to all pages. With the parent's hazard h:

    scale     = (sum events + PRIOR_SCALE) / (sum time * h + PRIOR_SCALE)       how much sooner than its parent, overall
    hazard[b] = (events[b] + PRIOR_SHAPE) / (time[b] + PRIOR_SHAPE / (scale * h[b]))

that is, the mean of a gamma distribution around the parent's, worth that many events. The root's prior is
ROOT_HAZARD / age: with nothing seen, what was used last is worth most, which is LRU.

The rank of a page is the Gittins index (Gittins 1979) of keeping it, in the form of Aalto, Ayesta and Righter 2009:

    index(age) = max over horizons of  P(used again within the horizon) / E[time it is kept until then]

given its age: expected reuse per second of a block, for the best moment to give up. It *rises* with age where reuse is
still to come, as between two turns of a conversation. It is the steepest slope from the point of the present age to a
later one on the curve (time kept, probability of reuse), so one pass from the right over the upper hull gives all.

Knows no blocks and no keys.
"""

import itertools
from dataclasses import dataclass, field
from math import frexp

NUM_BINS = 56  # [0, 2^-10 s), two an octave up to 2^17 s, and what is older
MAX_NODES = 1024  # kinds and their generalisations with a hazard of their own
RADIX = (2, 3, 5, 6, 6, 4)  # values of each feature; adaptive.py says which
NUM_KINDS = 2 * 3 * 5 * 6 * 6 * 4
PRIOR_SCALE = 5.0
PRIOR_SHAPE = 3.0
ROOT_HAZARD = 0.1
MEMORY = 20000.0  # events after which older ones count a third


def bin_of(age: float) -> int:
    if not age >= 2.0**-10:
        return 0
    fraction, octave = frexp(age)
    return min(2 * (octave + 9) + 1 + (fraction >= 0.75), NUM_BINS - 1)


def _bin_start(number: int) -> float:
    return float(2.0 ** ((number - 1) // 2 - 10) * (1.5 if (number - 1) % 2 else 1.0)) if number else 0.0


_START = [_bin_start(number) for number in range(NUM_BINS + 1)]
_STRIDE = [NUM_KINDS]
for _radix in RADIX:
    _STRIDE.append(_STRIDE[-1] // _radix)


def _zeros() -> list[float]:
    return [0.0] * NUM_BINS


@dataclass(slots=True)
class _Node:
    parent: "_Node | None"
    fresh_at: int  # events seen when it was last refreshed
    events: list[float] = field(default_factory=_zeros)
    time: list[float] = field(default_factory=_zeros)
    hazard: list[float] = field(default_factory=_zeros)
    index: list[float] = field(default_factory=_zeros)


class Hazards:
    """Kinds are numbers of mixed radix RADIX, the first feature leading; nodes are named by the order they came in."""

    def __init__(self) -> None:
        self.num_events = 0
        self._nodes: list[_Node] = []
        self._node_at: dict[tuple[int, int], int] = {}  # by level and leading digits
        self._turn = 0
        self._add(None)

    def node_of(self, kind: int) -> int:
        """The most special node there is for a kind, made where there is room."""
        found = 0
        for level in range(1, len(_STRIDE)):
            key = level, kind // _STRIDE[level]
            node = self._node_at.get(key)
            if node is None:
                if len(self._nodes) == MAX_NODES:
                    break
                node = self._node_at[key] = self._add(self._nodes[found])
            found = node
        return found

    def watched(self, node: int, start: float, end: float) -> None:
        """Pages of this kind were watched from one age to another."""
        if not end > start:
            return
        first, last = bin_of(start), bin_of(end)
        each: _Node | None = self._nodes[node]
        while each is not None:
            time = each.time
            if first == last:
                time[first] += end - start
            else:
                time[first] += _START[first + 1] - start
                for between in range(first + 1, last):
                    time[between] += _START[between + 1] - _START[between]
                time[last] += end - _START[last]
            each = each.parent

    def used_again(self, node: int, age: float) -> None:
        number = bin_of(age)
        each: _Node | None = self._nodes[node]
        while each is not None:
            each.events[number] += 1.0
            each = each.parent
        self.num_events += 1

    def index(self, node: int, age: float) -> float:
        """Expected reuse per second of keeping a page of this kind, at this age."""
        return self._nodes[node].index[bin_of(age)]

    def refresh_next(self) -> None:
        """Brings one node up to date, each in its turn: no call pays for all."""
        self._turn = (self._turn + 1) % len(self._nodes)
        self._refresh(self._nodes[self._turn])

    def _add(self, parent: _Node | None) -> int:
        self._nodes.append(_Node(parent, self.num_events))
        self._refresh(self._nodes[-1])
        return len(self._nodes) - 1

    def _refresh(self, node: _Node) -> None:
        kept = MEMORY / (MEMORY + float(self.num_events - node.fresh_at))
        node.fresh_at = self.num_events
        node.events = [count * kept for count in node.events]
        node.time = [seconds * kept for seconds in node.time]
        _estimate(node)
        _rank(node)


def _estimate(node: _Node) -> None:
    if node.parent is None:
        middles = [(start + end) * 0.5 for start, end in itertools.pairwise(_START)]
        priors = [ROOT_HAZARD / max(middle, _START[1]) for middle in middles]
    else:
        events = expected = 0.0  # added one by one, as the native code does: sum() would round otherwise
        for count, seconds, hazard in zip(node.events, node.time, node.parent.hazard, strict=True):
            events += count
            expected += seconds * hazard
        scale = (events + PRIOR_SCALE) / (expected + PRIOR_SCALE)
        priors = [scale * hazard for hazard in node.parent.hazard]
    node.hazard = [
        (count + PRIOR_SHAPE) / (seconds + PRIOR_SHAPE / prior)
        for count, seconds, prior in zip(node.events, node.time, priors, strict=True)
    ]


def _rank(node: _Node) -> None:
    reuse, held, alive = [0.0], [0.0], 1.0
    for number, hazard in enumerate(node.hazard):
        width = _START[number + 1] - _START[number]
        left = 1.0 / (1.0 + hazard * width)  # unused through the bin; exp(-hazard * width) would differ by libraries
        reuse.append(reuse[-1] + alive * (1.0 - left))
        held.append(held[-1] + alive * width * left)
        alive *= left

    def slope(start: int, end: int) -> float:
        time = held[end] - held[start]
        return (reuse[end] - reuse[start]) / time if time > 0.0 else 0.0  # 0: rounded away, nothing is left by then

    hull = [NUM_BINS]
    for number in reversed(range(NUM_BINS)):
        while len(hull) > 1 and slope(number, hull[-1]) <= slope(number, hull[-2]):
            hull.pop()
        node.index[number] = slope(number, hull[-1])
        hull.append(number)
