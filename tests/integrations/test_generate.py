"""``generate`` over pages: every way of decoding gives what the same settings give without them."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvpager.errors import ConfigError
from kvpager.integrations.transformers import AttachedModel, attach
from kvpager.prefix.hashing import Scope
from tests.families import VOCABULARY, WINDOW
from tests.integrations.compare import assert_nothing_held, family_model, generate, padded, random_rows

PAGE_SIZE = 4
NEW_TOKENS = 24

BATCH = padded(random_rows(1, [17, 5, 11], VOCABULARY))
ONE = padded(random_rows(2, [19], VOCABULARY))
PAD = {"pad_token_id": 0}

# The name of a way to decode: its inputs, and what generate() is given.
WAYS: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {
    "greedy": (BATCH, {}),
    "sampling": (BATCH, {"do_sample": True, "temperature": 0.9, "top_k": 40, "top_p": 0.95}),
    "several answers": (BATCH, {"do_sample": True, "num_return_sequences": 3}),
    "beams": (BATCH, {"num_beams": 4}),
    "several beams each": (BATCH, {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5}),
    "sampled beams": (BATCH, {"num_beams": 3, "do_sample": True}),
    "one of two beams, early": (ONE, {"num_beams": 2, "early_stopping": True}),
    "prompt lookup": (padded([ONE["input_ids"][0].tolist() * 3]), {"prompt_lookup_num_tokens": 6}),
    "penalties": (BATCH, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}),
    "chunks": (BATCH, {"prefill_chunk_size": 5}),
    "end tokens": (BATCH, {"eos_token_id": list(range(1, 40)), **PAD}),
    "end tokens and beams": (BATCH, {"num_beams": 3, "eos_token_id": list(range(1, 40)), **PAD}),
}
MODELS = ["llama", "gemma2", "mistral"]  # full attention, windows in every other layer, in every layer


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return family_model(request.param)


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return family_model("llama")


@pytest.fixture
def paged(llama: PreTrainedModel) -> Iterator[AttachedModel]:
    with attach(llama, num_blocks=300, page_size=PAGE_SIZE, debug=True) as paged:
        yield paged


def seeded(model: PreTrainedModel, inputs: dict[str, Tensor], **options: Any) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return generate(model, inputs, NEW_TOKENS, **options)


@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_decode_gives_the_same_tokens(model: PreTrainedModel, way: str) -> None:
    inputs, options = WAYS[way]
    expected = seeded(model, inputs, **options)
    with attach(model, num_blocks=1500, page_size=PAGE_SIZE, debug=True) as paged:
        for _ in range(2):  # the second time over what the first has left
            with paged.open(**inputs) as past:
                found = seeded(model, inputs, past_key_values=past, **options)
                paged.cache.check()
            assert found.tolist() == expected.tolist()
            assert_nothing_held(paged.cache)
        assert paged.cache.statistics().prefix.hit_tokens > 0


@pytest.mark.parametrize("draft_seed", [0, 1], ids=["drafts all right", "drafts wrong"])
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_assisted_decoding(model: PreTrainedModel, draft_seed: int, sampled: bool) -> None:
    draft = family_model(model.config.model_type, draft_seed)
    options = {"assistant_model": draft, "do_sample": sampled}
    expected = seeded(model, ONE, **options)
    taken_back = []
    with attach(model, num_blocks=300, page_size=PAGE_SIZE, debug=True) as paged:
        with paged.open(**ONE) as past:
            crop = past.crop
            past.crop = lambda columns: (taken_back.append(columns), crop(columns))  # type: ignore[method-assign]
            found = seeded(model, ONE, past_key_values=past, **options)
            paged.cache.check()
        assert_nothing_held(paged.cache)
    assert found.tolist() == expected.tolist()
    assert (min(taken_back) < 0) == (draft_seed == 1)


def test_beams_share_pages_and_copy_on_write(llama: PreTrainedModel, paged: AttachedModel) -> None:
    with paged.open(**ONE) as past:
        generate(llama, ONE, 8, past_key_values=past, num_beams=4)
        counts = paged.cache.statistics()
        assert counts.sequences == 4
        assert counts.shared_blocks >= 19 // PAGE_SIZE  # the prompt's full pages, once for all beams
        assert past.num_rows == 4


# -- reuse ------------------------------------------------------------------------------------------------------


def test_a_prompt_known_from_before_needs_only_its_last_token(llama: PreTrainedModel, paged: AttachedModel) -> None:
    computed = []
    llama_hook = llama.register_forward_pre_hook(
        lambda _, __, kwargs: computed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    for _ in range(2):
        with paged.open(**ONE) as past:
            generate(llama, ONE, 4, past_key_values=past)
    llama_hook.remove()
    assert computed == [19, 1, 1, 1, 1, 1, 1, 1]


def test_different_hits_and_paddings_start_at_a_common_column(llama: PreTrainedModel, paged: AttachedModel) -> None:
    rows = random_rows(7, [24, 20, 9], VOCABULARY)
    inputs = padded(rows)
    expected = generate(llama_alone(), inputs, NEW_TOKENS)
    hits = []
    for known in ([12, 0, 9], [24, 20, 9], [16, 20, 0], [0, 0, 0]):
        paged.cache.clear_prefix()
        for row, length in zip(rows, known, strict=True):
            if length:
                warm = padded([row[:length]])
                with paged.open(**warm) as past:
                    llama(**warm, past_key_values=past)
        with paged.open(**inputs) as past:
            hits.append(past.get_seq_length())
            found = generate(llama, inputs, NEW_TOKENS, past_key_values=past)
            paged.cache.check()
        assert found.tolist() == expected.tolist()
    # Row by row padding + known: [0+12, 4+0, 15+8]; all but the last token; [0+16, 4+19, 15+0]; [0, 4, 15]
    assert hits == [4, 23, 15, 0]


def llama_alone() -> PreTrainedModel:
    return family_model("llama")


def test_random_batches_over_one_pool_under_pressure(llama: PreTrainedModel) -> None:
    alone, draw = llama_alone(), random.Random(3)
    stems = random_rows(8, [26, 26, 26], VOCABULARY)
    with attach(llama, num_blocks=40, page_size=PAGE_SIZE, debug=True) as paged:
        for _ in range(25):
            rows = [draw.choice(stems)[: draw.randint(1, 26)] for _ in range(draw.randint(1, 3))]
            inputs = padded([[*row, *random_rows(draw.random(), [draw.randint(0, 5)], VOCABULARY)[0]] for row in rows])
            with paged.open(**inputs) as past:
                found = generate(llama, inputs, 6, past_key_values=past)
            assert found.tolist() == generate(alone, inputs, 6).tolist()
            assert_nothing_held(paged.cache)
        statistics = paged.cache.statistics()
    assert statistics.prefix.hit_tokens > 100
    assert statistics.reclaim.direct > 0  # the pool was full of what is findable


def test_scopes_share_nothing(llama: PreTrainedModel, paged: AttachedModel) -> None:
    with paged.open(**ONE, scope=Scope(salt="a")) as past:
        generate(llama, ONE, 1, past_key_values=past)
    with paged.open(**ONE, scope=Scope(salt="b")) as past:
        assert past.get_seq_length() == 0
    with paged.open(**ONE, scope=Scope(salt="a")) as past:
        assert past.get_seq_length() == 16


def test_without_a_prefix_cache_nothing_is_found(llama: PreTrainedModel) -> None:
    with attach(llama, num_blocks=50, prefix_cache=False) as paged:
        for _ in range(2):
            with paged.open(**ONE) as past:
                assert past.get_seq_length() == 0
                generate(llama, ONE, 1, past_key_values=past)


def test_content_of_other_weights_is_not_found(paged: AttachedModel, llama: PreTrainedModel) -> None:
    with paged.open(**ONE) as past:
        generate(llama, ONE, 1, past_key_values=past)
    with paged.open(**ONE) as past:
        assert past.get_seq_length() == 16  # the control
    with torch.no_grad():
        llama.lm_head.weight.mul_(1.0)
    with paged.open(**ONE) as past:
        assert past.get_seq_length() == 0


# -- padding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", [0, 9])
def test_padding_is_guessed_where_open_gets_no_mask(paged: AttachedModel, llama: PreTrainedModel, pad: int) -> None:
    inputs = padded(random_rows(9, [12, 6], VOCABULARY), pad)
    expected = generate(llama_alone(), inputs, NEW_TOKENS)
    llama.generation_config.pad_token_id = pad
    try:
        for _ in range(2):
            with paged.open(inputs["input_ids"]) as past:
                found = generate(llama, inputs, NEW_TOKENS, past_key_values=past)
            assert found.tolist() == expected.tolist()
    finally:
        llama.generation_config.pad_token_id = None


def test_a_wrong_guess_is_corrected_while_nothing_depends_on_it(paged: AttachedModel, llama: PreTrainedModel) -> None:
    inputs = padded(random_rows(10, [12, 6], VOCABULARY))  # no pad token is known, so none is guessed
    with paged.open(inputs["input_ids"]) as past:
        found = generate(llama, inputs, NEW_TOKENS, past_key_values=past)
    assert found.tolist() == generate(llama_alone(), inputs, NEW_TOKENS).tolist()


def test_padding_takes_no_pages(llama: PreTrainedModel, paged: AttachedModel) -> None:
    inputs = padded([*random_rows(11, [40, 1], VOCABULARY)])
    with paged.open(**inputs) as past:
        llama(**inputs, past_key_values=past)
        assert paged.cache.pool.counts().used == 10 + 1
        assert paged.cache.statistics().computed_tokens == 41


# -- one past, several calls ------------------------------------------------------------------------------------


def test_a_second_turn_continues_the_first(llama: PreTrainedModel, paged: AttachedModel) -> None:
    with paged.open(**ONE) as past:
        first = generate(llama, ONE, 6, past_key_values=past)
        turn = torch.cat([first, torch.tensor(random_rows(12, [5], VOCABULARY))], dim=1)
        inputs = {"input_ids": turn, "attention_mask": torch.ones_like(turn)}
        found = generate(llama, inputs, 6, past_key_values=past)
        assert past.get_seq_length() == 19 + 6 + 5 + 6 - 1
    assert found.tolist() == generate(llama_alone(), inputs, 6).tolist()


def test_a_direct_call_with_a_known_prompt_gives_every_logit(llama: PreTrainedModel, paged: AttachedModel) -> None:
    found = []
    for _ in range(2):
        with paged.open(**BATCH) as past:
            found.append(llama(**BATCH, past_key_values=past).logits)
            assert past.get_seq_length() == 17
            paged.cache.check()
    real = BATCH["attention_mask"] == 1
    torch.testing.assert_close(found[1][real], found[0][real], atol=1e-5, rtol=1e-5)


def test_only_the_new_columns_are_computed_where_only_their_logits_are_asked_for(
    llama: PreTrainedModel, paged: AttachedModel
) -> None:
    computed, found = [], []
    for _ in range(2):
        with paged.open(**ONE) as past:
            found.append(llama(**ONE, past_key_values=past, logits_to_keep=2).logits)
            computed.append(paged.cache.statistics().computed_tokens)
    assert computed == [19, 19 + 3]
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_direct_calls_step_by_step_and_back(llama: PreTrainedModel, paged: AttachedModel) -> None:
    ids = ONE["input_ids"]
    with torch.no_grad():
        expected = llama_alone()(ids).logits
    with paged.open(ids) as past:
        llama(ids[:, :10], None, None, past)  # by position, as the model's signature has it
        for column in range(10, 14):
            found = llama(ids[:, column : column + 1], past_key_values=past).logits[:, -1]
            torch.testing.assert_close(found, expected[:, column], atol=1e-4, rtol=1e-4)
        past.crop(-6)
        assert past.get_seq_length() == 8
        found = llama(ids[:, 8:], past_key_values=past).logits
        torch.testing.assert_close(found, expected[:, 8:], atol=1e-4, rtol=1e-4)
        paged.cache.check()


def test_rows_can_be_chosen_and_multiplied(llama: PreTrainedModel, paged: AttachedModel) -> None:
    ids = BATCH["input_ids"]
    with paged.open(**BATCH) as past:
        llama(**BATCH, past_key_values=past)
        past.batch_select_indices(torch.tensor([True, False, True]))
        past.batch_repeat_interleave(2)
        past.reorder_cache(torch.tensor([3, 0, 0]))
        rows = torch.tensor([2, 0, 0])
        paged.cache.check()
        mask = torch.cat([BATCH["attention_mask"][rows], torch.ones(3, 1, dtype=torch.long)], dim=1)
        new = torch.tensor([[7], [8], [9]])
        found = llama(new, attention_mask=mask, past_key_values=past).logits[:, -1]
        paged.cache.check()
    for at, row in enumerate(rows.tolist()):
        alone = torch.cat([ids[row][BATCH["attention_mask"][row] == 1], new[at]])[None]
        with torch.no_grad():
            torch.testing.assert_close(found[at], llama_alone()(alone).logits[0, -1], atol=1e-4, rtol=1e-4)


def test_a_window_can_be_taken_back_as_far_as_rewind_says() -> None:
    model = family_model("mistral")
    ids = torch.tensor(random_rows(13, [40], VOCABULARY))
    with torch.no_grad():
        expected = model(ids).logits
    with attach(model, num_blocks=60, page_size=PAGE_SIZE, rewind=8, debug=True) as paged, paged.open(ids) as past:
        model(ids, past_key_values=past)
        past.crop(-8)
        found = model(ids[:, 32:], past_key_values=past).logits
        torch.testing.assert_close(found, expected[:, 32:], atol=1e-4, rtol=1e-4)
        with pytest.raises(ConfigError, match="larger rewind"):
            past.crop(-8 - WINDOW)
        assert past.get_seq_length() == 40
        paged.cache.check()


# -- several models ---------------------------------------------------------------------------------------------


def test_two_models_can_be_attached_at_once() -> None:
    models = [family_model(name) for name in ("llama", "gpt2")]
    expected = [generate(model, BATCH, NEW_TOKENS).tolist() for model in models]
    with attach(models[0], num_blocks=90) as first, attach(models[1], num_blocks=90) as second:
        for _ in range(2):
            for model, paged, tokens in zip(models, (first, second), expected, strict=True):
                with paged.open(**BATCH) as past:
                    assert generate(model, BATCH, NEW_TOKENS, past_key_values=past).tolist() == tokens


def test_an_attachment_can_be_used_without_a_context(llama: PreTrainedModel) -> None:
    before = llama.config._attn_implementation
    paged = attach(llama, "1 MiB")
    past = paged.open(**ONE)
    found = generate(llama, ONE, 4, past_key_values=past)
    past.close()
    past.close()
    assert_nothing_held(paged.cache)
    paged.close()
    paged.close()
    assert llama.config._attn_implementation == before
    assert found.tolist() == generate(llama, ONE, 4).tolist()


def test_bfloat16_pages_hold_what_the_model_computes() -> None:
    model = family_model("llama").to(torch.bfloat16)
    with attach(model, num_blocks=90) as paged, paged.open(**ONE) as past:
        assert paged.cache.layout.dtype == "bfloat16"
        found = model(**ONE, past_key_values=past).logits.float()
    with torch.no_grad():
        expected = model(**ONE).logits.float()
    assert torch.nn.functional.cosine_similarity(found, expected, dim=-1).min() > 0.999
