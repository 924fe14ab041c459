"""The linked list of recent blocks against a plain list."""

import random

import pytest

from kvpager.eviction.recency import Recency


@pytest.mark.parametrize("seed", range(3))
def test_it_is_a_list_in_the_order_of_uses(seed: int) -> None:
    generator, size = random.Random(seed), 12
    recency, model = Recency(size), list[int]()
    for _ in range(3000):
        some = generator.sample(range(size), generator.randrange(min(5, size) + 1))
        verb = generator.choice(["use", "use", "append", "take_out", "pop", "move", "resize"])
        if verb == "use":
            recency.use(some)
            model = [block for block in model if block not in some] + some
        elif verb == "append":
            fresh = [block for block in some if block not in model]
            recency.append(fresh)
            model += fresh
        elif verb == "take_out":
            recency.take_out(some)
            model = [block for block in model if block not in some]
        elif verb == "pop":
            count = generator.randrange(min(3, len(model)) + 1)
            assert recency.pop_oldest(count) == model[:count]
            del model[:count]
        elif verb == "move":
            free = [block for block in range(size) if block not in model]
            if free and size:
                source, target = generator.randrange(size), generator.choice(free)
                recency.move(source, target)
                model = [target if block == source else block for block in model]
        else:
            size = max(model, default=-1) + 1 + generator.randrange(8)
            recency.resize(size)
        assert len(recency) == len(model)
        assert [block in recency for block in range(size)] == [block in model for block in range(size)]
    assert recency.pop_oldest(len(model)) == model
