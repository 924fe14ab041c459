"""Prompts that come from elsewhere: their K and V are written as they start, and only the last token is computed."""

import random

import torch

from kvpager.cache.sequence import Sequence
from kvpager.engine import Engine, Request, Sampling
from tests.engine.engines import drive
from tests.tiny_model import ref, sharp_prompt, tiny_model

NEW = 6


class Handed:
    """What another engine has computed of one prompt: all but its last token."""

    def __init__(self, prompt: list[int]) -> None:
        with Engine(tiny_model(), page_size=16, num_blocks=32) as engine:
            request = engine.submit(prompt, Sampling(max_tokens=NEW))
            engine.step()
            self.k, self.v = request.branches[0].running_sequence.read(0, len(prompt) - 1)
        self.starts: list[int] = []

    def num_tokens(self, request: Request) -> int:
        return self.k.shape[1]

    def write(self, request: Request, seq: Sequence, start: int) -> None:
        self.starts.append(start)
        seq.write(start, self.k[:, start:], self.v[:, start:])


def test_the_answer_is_that_of_a_prompt_that_is_computed_here() -> None:
    prompt = sharp_prompt(random.Random(3), 50, NEW)
    source = Handed(prompt)
    with Engine(tiny_model(), page_size=16, num_blocks=32) as engine:
        engine.take_prompts_from(source)
        request = engine.submit(prompt, Sampling(max_tokens=NEW, n=2))
        drive(engine)
        assert [list(done.token_ids) for done in request.completions()] == [ref(prompt, NEW)] * 2
        assert source.starts == [0]
        first = engine.cache.statistics().computed_tokens

        again = engine.submit(prompt, Sampling(max_tokens=NEW))  # three whole pages of it are found
        drive(engine)
        assert list(again.completions()[0].token_ids) == ref(prompt, NEW)
        assert source.starts == [0, 48], "no more than what the cache has not"

        engine.take_prompts_from(None)
        other = sharp_prompt(random.Random(4), 50, NEW)
        begin = engine.cache.statistics().computed_tokens
        last = engine.submit(other, Sampling(max_tokens=NEW))
        drive(engine)
        assert list(last.completions()[0].token_ids) == ref(other, NEW)
        assert engine.cache.statistics().computed_tokens - begin == 50 + NEW - 1
    assert first == 49 + 1 + 2 * (NEW - 1)  # rows written by hand count as computed


def test_other_numbers_give_another_answer() -> None:
    """The control: what is written is what is attended to."""
    prompt = sharp_prompt(random.Random(3), 50, NEW)
    source = Handed(prompt)
    source.k, source.v = torch.zeros_like(source.k), torch.zeros_like(source.v)
    with Engine(tiny_model(), page_size=16, num_blocks=32) as engine:
        engine.take_prompts_from(source)
        request = engine.submit(prompt, Sampling(max_tokens=NEW))
        drive(engine)
    assert list(request.completions()[0].token_ids) != ref(prompt, NEW)
