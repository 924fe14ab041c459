"""The loop in native code finds what the product's policy finds when it is asked step by step."""

import random

import numpy as np
import pytest

from kvpager import native
from kvpager.simulator.adaptive_path import replay_adaptive
from kvpager.simulator.replay import replay_levels
from kvpager.simulator.replay_cache import LevelPlan
from kvpager.simulator.report import TraceFacts
from kvpager.simulator.trace import Trace


def chats(seed: int) -> Trace:
    generator = random.Random(seed)
    number: dict[tuple[int, ...], int] = {}
    parent: list[int] = []
    requests: list[list[int]] = []
    open_chats: list[list[int]] = []
    for turn in range(1500):
        if not open_chats or generator.random() < 0.4:
            open_chats.append([0])
        chat = generator.choice(open_chats[-15:])
        chat.append(turn)
        for end in range(1, len(chat) + 1):
            if tuple(chat[:end]) not in number:
                number[tuple(chat[:end])] = len(number)
                parent.append(number.get(tuple(chat[: end - 1]), -1))
        requests.append([number[tuple(chat[:end])] for end in range(1, len(chat) + 1)])
    count = len(requests)
    lengths = np.array([len(pages) for pages in requests])
    return Trace(
        "chats",
        16,
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate(requests).astype(np.int32),
        np.array(parent, np.int32),
        np.cumsum([generator.choice([0.0, 3.0]) for _ in requests]),
        (16 * lengths).astype(np.int32),
        np.array([generator.randrange(900) for _ in requests], np.int32),
        np.array([generator.randrange(3) for _ in requests], np.uint8),
        np.zeros(count, bool),
    )


@pytest.mark.skipif(native.module() is None, reason="no native kernels")
@pytest.mark.parametrize("capacity", [1, 7, 60])
def test_it_finds_what_the_policy_finds(capacity: int) -> None:
    trace = chats(capacity)
    path = replay_adaptive(trace, capacity)
    assert path is not None
    exact = replay_levels(TraceFacts(trace), [LevelPlan("device", capacity, "adaptive")])
    assert int(path.hit_pages.sum()) == exact.whole.blocks
    assert int(path.evictions.sum()) == exact.evictions
