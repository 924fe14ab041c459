"""Every supported family attached to pages gives what its own attention gives, in fp32: logits and greedy tokens."""

import pytest
import torch
from transformers import PreTrainedModel

from kvpager.cache.paged_cache import PagedCache
from kvpager.integrations.transformers import attach
from tests.families import FAMILIES, VOCABULARY, WINDOW
from tests.integrations.compare import (
    assert_begins_with,
    assert_nothing_held,
    clear_tokens,
    family_model,
    generate,
    padded,
    random_rows,
)

PAGE_SIZE = 4
NEW_TOKENS = 20
PREFIX = random_rows(0, [18], VOCABULARY)[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_of_a_padded_batch_and_of_one_that_reuses_its_prefix(name: str) -> None:
    model = family_model(name)
    first = padded(random_rows(1, [13, 1, 7], VOCABULARY, PREFIX))
    second = padded(random_rows(2, [3, 9], VOCABULARY, PREFIX))
    expected = [clear_tokens(model, inputs, NEW_TOKENS) for inputs in (first, second)]
    assert sum(len(row) for rows in expected for row in rows) > NEW_TOKENS * 5 // 2, "too few clear tokens to compare"
    before = model.config._attn_implementation
    with attach(model, num_blocks=400, page_size=PAGE_SIZE, rewind=0, debug=True) as paged:
        for inputs, clear, known in zip((first, second), expected, (0, 16), strict=True):
            with paged.open(**inputs) as past:
                assert past.get_seq_length() >= known
                output = generate(model, inputs, NEW_TOKENS, past_key_values=past)
                paged.cache.check()
            assert_begins_with(output, inputs, clear)
            assert_nothing_held(paged.cache)
    assert model.config._attn_implementation == before
    assert_begins_with(generate(model, first, NEW_TOKENS), first, expected[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_direct_calls(name: str) -> None:
    model = family_model(name)
    rows = random_rows(3, [29, 22], VOCABULARY)
    expected = [logits_of(model, row) for row in rows]
    cut = 25
    inputs = padded(rows)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    with attach(model, num_blocks=200, page_size=PAGE_SIZE) as paged, paged.open(ids, mask) as past:
        head = model(ids[:, :cut], attention_mask=mask[:, :cut], past_key_values=past).logits
        tail = model(input_ids=ids[:, cut:], attention_mask=mask, past_key_values=past).logits
        paged.cache.check()
    found = torch.cat([head, tail], dim=1)
    for row, logits in enumerate(expected):
        torch.testing.assert_close(found[row, -len(logits) :], logits, atol=1e-4, rtol=1e-4)


def logits_of(model: PreTrainedModel, row: list[int]) -> torch.Tensor:
    """[tokens, vocabulary] by the model's own attention, alone in its batch."""
    with torch.no_grad():
        return model(torch.tensor([row])).logits[0]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.windowed])
def test_layers_with_a_window_give_pages_back_while_they_run(name: str) -> None:
    model = family_model(name)
    inputs = padded(random_rows(4, [40, 31], VOCABULARY))
    used = []
    with attach(model, num_blocks=400, page_size=PAGE_SIZE, rewind=0, prefix_cache=False) as paged:
        with paged.open(**inputs) as past:
            hook = model.register_forward_hook(lambda *_: used.append(paged.cache.pool.counts().used))
            generate(model, inputs, 40, past_key_values=past)
            hook.remove()
            held = windowed_pages(paged.cache)
        assert_nothing_held(paged.cache)
        layout = paged.cache.layout
    most = -(-WINDOW // PAGE_SIZE) + 1  # pages that a window can touch
    assert all(0 < pages <= most for pages in held)
    full = sum(group.window is None for group in layout.groups)
    lengths = [79, 70]  # the last token is not computed
    assert used[-1] <= sum(full * layout.num_pages(length) + (layout.num_groups - full) * most for length in lengths)
    assert used[-1] < sum(layout.num_groups * layout.num_pages(length) for length in lengths)  # the control


def windowed_pages(cache: PagedCache) -> list[int]:
    """Blocks that every table of a windowed group holds now."""
    return [
        len(table.mapped_blocks())
        for seq in cache.sequences.values()
        for group, table in zip(cache.layout.groups, seq.tables, strict=True)
        if group.window is not None
    ]
