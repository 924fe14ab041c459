"""The real model with most of its context given back: what goes on from what is near still does."""

import pytest

from kvpager.engine import Engine, Sampling
from kvpager.models.load import load_model

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

KINDS = ["sinks-and-window:window=160,sinks=4", "heavy-hitters:budget=208,recent=96", "snapkv:budget=176,observe=32"]


def test_it_goes_on_counting_with_a_third_of_the_pages() -> None:
    loaded = load_model("smollm2", dtype="float32")
    text = ", ".join(map(str, range(1, 161))) + ","
    with Engine(loaded.model, tokenizer=loaded.tokenizer, num_blocks=200, page_size=16, max_batch_tokens=256) as engine:
        pages = engine.layout.num_pages(len(engine.encode(text)))
        for kind in KINDS:
            request = engine.submit(text, Sampling(max_tokens=15), attend=kind)
            (branch,) = request.branches
            held = pages
            while engine.has_work:
                engine.step()
                if branch.sequence is not None and branch.output:
                    held = len(branch.sequence.tables[0].mapped_blocks())
            (done,) = request.completions()
            assert done.text.startswith(" 161, 162, 163"), kind
            assert held <= pages // 3
            assert done.attention.startswith(kind)
