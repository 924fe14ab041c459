"""Memory that is taken lies apart, and what is given back is taken again before there is more."""

import random

from kvpager.tiers.window_memory import WindowMemory


def test_a_first_stream_has_all_and_others_have_halves() -> None:
    memory = WindowMemory(4096)
    whole = memory.take(2)
    assert len(whole) == 8192
    another = memory.take(2)
    assert (len(another), memory.num_more) == (4096, 1)
    memory.give_back(whole)
    half = memory.take(1)
    assert len(half) == len(memory.take(2)) == 4096
    memory.give_back(another)
    assert memory.take(2) is another
    assert memory.num_more == 1


def test_what_is_taken_lies_apart() -> None:
    memory, dice = WindowMemory(4096), random.Random(4)
    taken: list[tuple[int, object]] = []
    for number in range(1, 500):
        if dice.random() < 0.5 and len(taken) < 5:
            found = memory.take(dice.randint(1, 2))
            found[:] = number % 251
            taken.append((number % 251, found))
        elif taken:
            mark, found = taken.pop(dice.randrange(len(taken)))
            assert (found == mark).all()  # type: ignore[attr-defined]
            memory.give_back(found)  # type: ignore[arg-type]
    assert memory.num_more <= 5
