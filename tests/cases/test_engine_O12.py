"""Open case O-12 through the engine: adapter or weights changed under the same name. Device tier only.

The engine knows an adapter by the scope of a request, and runs the weights the model has: here an adapter is a change
of the weights that the caller makes, as it would with PEFT.
"""

import random

import pytest
import torch

from kvpager.engine import Completion, Engine, Sampling
from kvpager.errors import ConfigError
from kvpager.prefix.hashing import Scope
from tests.engine.engines import assert_idle, checked_step, drive
from tests.tiny_model import is_sharp, random_tokens, ref, tiny_model

NEW = 8
GREEDY = Sampling(max_tokens=NEW)
PLAIN = Scope()
V1, V2 = Scope(adapter="a", adapter_version="1"), Scope(adapter="a", adapter_version="2")


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    """48 tokens, sharp for the weights of seeds 0, 1 and 2."""
    generator = random.Random(12)
    while True:
        tokens = random_tokens(generator, 48)
        if all(is_sharp(tokens, NEW, seed) for seed in range(3)):
            return tokens


def load(model: torch.nn.Module, seed: int) -> None:
    """Other weights, in place."""
    model.load_state_dict(tiny_model(seed).state_dict())


def run(engine: Engine, prompt: list[int], scope: Scope = PLAIN) -> Completion:
    request = engine.submit(prompt, GREEDY, scope=scope)
    drive(engine)
    return request.completions()[0]


def test_nothing_of_an_old_version_is_reused(prompt: list[int]) -> None:
    model = tiny_model(0)
    assert len({tuple(ref(prompt, NEW, seed)) for seed in range(3)}) == 3
    with Engine(model, page_size=16, num_blocks=64) as engine:
        assert list(run(engine, prompt, V1).token_ids) == ref(prompt, NEW, 0)
        again = run(engine, prompt, V1)
        assert again.prefix_tokens == 47  # control: the same version is reused
        load(model, 1)  # version 2 under the same name
        done = run(engine, prompt, V2)
        assert (done.prefix_tokens, list(done.token_ids)) == (0, ref(prompt, NEW, 1))
        assert run(engine, prompt, V2).prefix_tokens == 47
        load(model, 2)  # the base weights, in place
        engine.weights_changed()
        for scope in (PLAIN, V1, V2):
            done = run(engine, prompt, scope)
            assert (done.prefix_tokens, list(done.token_ids)) == (0, ref(prompt, NEW, 2))
        assert run(engine, prompt).prefix_tokens == 47
        assert_idle(engine)


def test_old_weights_that_come_back_find_nothing_either(prompt: list[int]) -> None:
    """Their pages were dropped: on the device nothing is kept of a version that is not loaded."""
    model = tiny_model(0)
    with Engine(model, page_size=16, num_blocks=64) as engine:
        run(engine, prompt)
        for seed in (1, 0):
            load(model, seed)
            engine.weights_changed()
            done = run(engine, prompt)
            assert (done.prefix_tokens, list(done.token_ids)) == (0, ref(prompt, NEW, seed))


def test_a_running_request_ends_with_one_version_of_the_weights(prompt: list[int]) -> None:
    model = tiny_model(0)
    with Engine(model, page_size=16, num_blocks=64) as engine:
        request = engine.submit(prompt, GREEDY)
        checked_step(engine)
        with pytest.raises(ConfigError, match="begun with the old weights; finish or cancel them first"):
            engine.weights_changed()
        drive(engine)
        assert list(request.completions()[0].token_ids) == ref(prompt, NEW, 0)
        load(model, 1)
        engine.weights_changed()
        assert list(run(engine, prompt).token_ids) == ref(prompt, NEW, 1)
