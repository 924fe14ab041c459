"""A pass key somewhere in a long text that has nothing to do with it: what needle tests ask for. Knows no model."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FILLER = (
    "The river runs past the old mill and turns north.",
    "A clerk writes the date on each page before she closes the book.",
    "Rain fell on the roof all night, and in the morning the road was wet.",
    "The train to the coast leaves at noon and comes back after dark.",
    "Two men carry a long table through a narrow door.",
    "Bread is cheap here, but fruit has to come from far away.",
)
_HEAD = "There is an important pass key hidden in a long text. Find it and remember it."
_NEEDLE = " The pass key is {key}. Remember it. {key} is the pass key."
_QUESTION = " What is the pass key? The pass key is"
_BEHIND = 4  # sentences after the deepest needle, so that it is not what the question follows on

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Needle:
    """``context`` and ``question`` are token ids; a right answer contains ``key``. ``depth``: 0 first, 1 last."""

    depth: float
    context: list[int]
    question: list[int]
    key: str
    at: range  # positions of the needle in the context


def needles(encode: Encode, length: int, depths: int, seed: int) -> Iterator[Needle]:
    """One a depth, evenly spaced and the deepest first, each with a key of its own in the same text of at most
    ``length`` tokens: contexts agree up to the needle."""
    chance = random.Random(seed)
    keys = [str(chance.randrange(10_000, 100_000)) for _ in range(depths)]
    head, question = encode(_HEAD), encode(_QUESTION)
    longest = max(len(encode(_NEEDLE.format(key=key))) for key in keys)
    text: list[list[int]] = []
    room = length - len(head) - longest
    while (room := room - len(sentence := encode(" " + chance.choice(_FILLER)))) >= 0:
        text.append(sentence)
    for each in reversed(range(depths)):
        depth = each / max(1, depths - 1)
        place = round(depth * (len(text) - _BEHIND))
        before = [*head, *(token for sentence in text[:place] for token in sentence)]
        needle = encode(_NEEDLE.format(key=keys[each]))
        after = [token for sentence in text[place:] for token in sentence]
        at = range(len(before), len(before) + len(needle))
        yield Needle(depth, [*before, *needle, *after], question, keys[each], at)
