"""What can't work is refused in words, loses nothing, and leaves everything usable. Each refusal has its control."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, LlamaForCausalLM, OPTConfig, PreTrainedModel

from kvpager.errors import ConfigError, InvariantError, OutOfBlocks, UnsupportedModel
from kvpager.integrations.transformers import AttachedModel, PagedPast, attach
from tests.families import VOCABULARY
from tests.integrations.compare import assert_nothing_held, family_model, generate, padded, random_rows

PAGE_SIZE = 4
ONE = padded(random_rows(1, [13], VOCABULARY))
TWO = padded(random_rows(2, [13, 9], VOCABULARY))


@pytest.fixture
def model() -> PreTrainedModel:
    return family_model("llama")


@pytest.fixture
def paged(model: PreTrainedModel) -> Iterator[AttachedModel]:
    with attach(model, num_blocks=60, page_size=PAGE_SIZE, debug=True) as paged:
        yield paged


def logits(model: PreTrainedModel, inputs: dict[str, Tensor], **options: Any) -> Tensor:
    with torch.no_grad():
        return model(**inputs, **options).logits


def assert_works(paged: AttachedModel, inputs: dict[str, Tensor], past: PagedPast | None = None) -> None:
    """After a refusal: the books agree, and the right logits still come out, over ``past`` or a new one."""
    paged.cache.check()
    if past is None:
        with paged.open(**inputs) as fresh:
            return assert_works(paged, inputs, fresh)
    found = logits(paged.model, inputs, past_key_values=past)[:, -1]
    torch.testing.assert_close(found, logits(family_model("llama"), inputs)[:, -1], atol=1e-4, rtol=1e-4)
    paged.cache.check()
    return None


# -- attaching --------------------------------------------------------------------------------------------------


def test_a_family_that_is_not_supported_is_refused_and_left_as_it_is() -> None:
    config = OPTConfig(vocab_size=64, hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2)
    model = AutoModelForCausalLM.from_config(config).eval()
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModel, match="'opt'"):
        attach(model, num_blocks=8)
    assert model.config._attn_implementation == before
    assert not model._forward_pre_hooks


class FamiliarNameOnly(LlamaForCausalLM):
    """Claims to be a Llama, and computes something else."""

    class Base(nn.Module):
        pass

    @property
    def base_model(self) -> nn.Module:
        return self.Base()


def test_code_of_somebody_else_under_a_known_name_is_refused(model: PreTrainedModel) -> None:
    with attach(model, num_blocks=8):
        pass
    with pytest.raises(UnsupportedModel, match="Base is not one of transformers' own"):
        attach(FamiliarNameOnly(model.config).eval(), num_blocks=8)


def test_something_that_is_no_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="not Linear"):
        attach(nn.Linear(1, 1), num_blocks=8)  # type: ignore[arg-type]


def test_training_mode_is_refused_before_and_during(model: PreTrainedModel) -> None:
    model.train()
    with pytest.raises(ConfigError, match=r"model\.eval\(\)"):
        attach(model, num_blocks=8)
    model.eval()
    with attach(model, num_blocks=60, page_size=PAGE_SIZE) as paged, paged.open(**ONE) as past:
        model.train()
        with pytest.raises(ConfigError, match=r"model\.eval\(\)"):
            logits(model, ONE, past_key_values=past)
        model.eval()
        assert_works(paged, ONE, past)


def test_a_model_is_attached_once(model: PreTrainedModel, paged: AttachedModel) -> None:
    with pytest.raises(ConfigError, match="attached already"):
        attach(model, num_blocks=8)
    with pytest.raises(ConfigError, match="attached already"):
        attach(model.model, num_blocks=8)  # the same layers
    assert_works(paged, ONE)
    paged.close()
    with attach(model, num_blocks=60) as again:
        assert_works(again, ONE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "capacity"),
        ({"capacity": "1 KiB", "num_blocks": 3}, "capacity"),
        ({"capacity": "10 B"}, "holds no block"),
        ({"capacity": "many"}, "many"),
        ({"num_blocks": 8, "page_size": 0}, "page_size"),
        ({"num_blocks": 8, "backend": "fastest"}, "fastest"),
        ({"num_blocks": 8, "eviction": "mru"}, "mru"),
        ({"num_blocks": 8, "rewind": -1}, "rewind"),
        ({"num_blocks": 8, "page_sise": 4}, "page_sise"),
    ],
)
def test_a_wrong_option_is_named_and_the_model_left_as_it_is(
    model: PreTrainedModel, options: dict[str, Any], message: str
) -> None:
    before = model.config._attn_implementation
    with pytest.raises(ConfigError, match=message):
        attach(model, **options)
    assert model.config._attn_implementation == before
    assert not model._forward_pre_hooks


# -- opening ----------------------------------------------------------------------------------------------------

ids = ONE["input_ids"]
WRONG_PROMPTS: dict[str, tuple[Any, Any, str]] = {
    "above the vocabulary": (torch.tensor([[1, VOCABULARY]]), None, f"{VOCABULARY} is outside the vocabulary"),
    "below 0": (torch.tensor([[1, -100]]), None, "-100 is outside the vocabulary"),
    "no tokens": (torch.zeros(1, 0, dtype=torch.long), None, "at least one token"),
    "no rows": (torch.zeros(0, 3, dtype=torch.long), None, "at least one token"),
    "one dimension": (ids[0], None, r"\[rows, columns\]"),
    "a list": (ids.tolist(), None, "list"),
    "embeddings": (torch.rand(1, 3), None, "whole numbers"),
    "padding on the right": (ids[:, :3], torch.tensor([[1, 1, 0]]), "pad on the left"),
    "a hole": (ids[:, :3], torch.tensor([[1, 0, 1]]), "without holes"),
    "nothing but padding": (ids[:, :2].repeat(2, 1), torch.tensor([[1, 1], [0, 0]]), "row 1 is all padding"),
    "a mask per query": (ids[:, :2], torch.ones(1, 1, 2, 2), "no other masks"),
    "an additive mask": (ids[:, :2], torch.tensor([[-1e9, 1.0]]), "only 0 and 1"),
    "a mask of another size": (ids[:, :3], torch.ones(1, 2), "1 x 2"),
}


@pytest.mark.parametrize("what", WRONG_PROMPTS)
def test_a_prompt_that_can_not_be_opened(paged: AttachedModel, what: str) -> None:
    tokens, mask, message = WRONG_PROMPTS[what]
    with pytest.raises(ConfigError, match=message):
        paged.open(tokens, mask)
    assert_nothing_held(paged.cache)
    assert_works(paged, ONE)


# -- forward passes ---------------------------------------------------------------------------------------------

WRONG_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "above the vocabulary": ({"input_ids": torch.full((2, 13), VOCABULARY)}, "outside the vocabulary"),
    "another prompt": ({"input_ids": (TWO["input_ids"] + 1) % VOCABULARY}, "opened for a prompt"),
    "rows that are no multiple": ({"input_ids": ONE["input_ids"], "attention_mask": None}, "opened for 2"),
    "other rows": (
        {"input_ids": TWO["input_ids"][[0, 0, 1, 0]], "attention_mask": TWO["attention_mask"][[0, 0, 1, 0]]},
        "opened for a prompt|shows 0 columns",
    ),
    "other padding": ({"attention_mask": torch.tensor([[1] * 13, [0] * 5 + [1] * 8])}, "shows 5 columns"),
    "no mask": ({"attention_mask": None}, "shows 0 columns"),
    "padding on the right": ({"attention_mask": torch.tensor([[1] * 13, [1] * 9 + [0] * 4])}, "pad on the left"),
    "a mask per query": ({"attention_mask": torch.ones(2, 1, 13, 13)}, "no other masks"),
    "a mask of masks": ({"attention_mask": {"full_attention": TWO["attention_mask"]}}, "not dict"),
    "a short mask": ({"attention_mask": TWO["attention_mask"][:, 1:]}, "2 x 12"),
    "positions from 1 on": ({"position_ids": torch.arange(1, 14)[None].repeat(2, 1)}, "say 1 where row 0"),
    "positions that skip": ({"position_ids": torch.arange(0, 26, 2)[None]}, "say 2 where row 0"),
    "positions that count padding": ({"position_ids": torch.arange(13)[None]}, "say 4 where row 1"),
    "positions of another shape": ({"position_ids": torch.zeros(3, 2, 13, dtype=torch.long)}, "position_ids must be"),
    "embeddings": ({"input_ids": None, "inputs_embeds": torch.rand(2, 13, 64)}, "inputs_embeds"),
    "attention weights": ({"output_attentions": True}, "output_attentions"),
    "no cache": ({"use_cache": False}, "use_cache"),
    "token types": ({"token_type_ids": torch.zeros(2, 13, dtype=torch.long)}, "token_type_ids"),
    "packed sequences": ({"cu_seq_lens_q": torch.tensor([0, 13])}, "cu_seq_lens_q"),
}


@pytest.mark.parametrize("is_known", [False, True], ids=["new prompt", "known prompt"])
@pytest.mark.parametrize("what", WRONG_CALLS)
def test_a_call_that_pages_can_not_honour(
    model: PreTrainedModel, paged: AttachedModel, what: str, is_known: bool
) -> None:
    changes, message = WRONG_CALLS[what]
    if is_known:
        assert_works(paged, TWO)
    with paged.open(TWO["input_ids"], TWO["attention_mask"]) as past:
        assert (past.get_seq_length() > 0) == is_known
        with pytest.raises(ConfigError, match=message):
            model(**{**TWO, **changes}, past_key_values=past)
        assert past.num_rows == 2
        assert_works(paged, TWO, past)
    assert_nothing_held(paged.cache)


def test_a_later_call_without_the_mask_is_refused_where_rows_are_padded(
    model: PreTrainedModel, paged: AttachedModel
) -> None:
    new = torch.tensor([[5], [6]])
    mask = torch.cat([TWO["attention_mask"], torch.ones(2, 1, dtype=torch.long)], dim=1)
    with paged.open(**TWO) as past:
        model(**TWO, past_key_values=past)
        with pytest.raises(ConfigError, match="shows 0 columns of padding in row 1"):
            model(new, past_key_values=past)
        with pytest.raises(ConfigError, match="opened for 2"):
            model(new.repeat(2, 1), past_key_values=past)  # too late to multiply
        model(new, attention_mask=mask, past_key_values=past)
        assert past.get_seq_length() == 14
        paged.cache.check()


def test_a_pass_without_pages_of_this_model_is_refused(model: PreTrainedModel, paged: AttachedModel) -> None:
    with pytest.raises(ConfigError, match="attached to pages"):
        model(**ONE)
    with pytest.raises(ConfigError, match="attached to pages"):
        generate(model, ONE, 4)
    with pytest.raises(ConfigError, match="attached to pages"):
        model(**ONE, past_key_values=DynamicCache(config=model.config))
    other = family_model("gpt2")
    with attach(other, num_blocks=60) as others, others.open(**ONE) as past:
        with pytest.raises(ConfigError, match="another model"):
            model(**ONE, past_key_values=past)
        other(**ONE, past_key_values=past)
    with pytest.raises(InvariantError, match="outside of an open step"):
        model.model(**ONE)  # under the hooks
    assert_works(paged, ONE)


def test_a_closed_past_is_refused(model: PreTrainedModel, paged: AttachedModel) -> None:
    with paged.open(**ONE) as past:
        pass
    for use in (
        lambda: model(**ONE, past_key_values=past),
        lambda: generate(model, ONE, 2, past_key_values=past),
        lambda: past.crop(-1),
        lambda: past.reorder_cache(torch.tensor([0])),
    ):
        with pytest.raises(ConfigError, match="was closed"):
            use()
    assert_works(paged, ONE)


def test_closing_the_attachment_closes_its_pasts(model: PreTrainedModel) -> None:
    with attach(model, num_blocks=60) as paged:
        past = paged.open(**ONE)
        model(**ONE, past_key_values=past)
    assert past.is_closed
    assert_nothing_held(paged.cache)
    with pytest.raises(ConfigError, match="attachment was closed"):
        paged.open(**ONE)
    logits(model, ONE)  # alone again


@pytest.mark.parametrize("columns", [1, -14, 2])
def test_a_wrong_crop_changes_nothing(model: PreTrainedModel, paged: AttachedModel, columns: int) -> None:
    with paged.open(**ONE) as past:
        model(**ONE, past_key_values=past)
        with pytest.raises(ConfigError, match="give minus the number"):
            past.crop(columns)
        past.crop(0)
        assert past.get_seq_length() == 13
        with pytest.raises(ConfigError, match="not all among"):
            past.reorder_cache(torch.tensor([1]))
        with pytest.raises(ConfigError, match="open another"):
            past.reset()
        paged.cache.check()


def test_assisted_decoding_over_a_window_without_rewind_is_refused_in_words() -> None:
    model, prompt = family_model("mistral"), padded(random_rows(3, [30], VOCABULARY))
    options = {"assistant_model": family_model("mistral", seed=1)}
    before = model.config._attn_implementation
    expected = generate(model, prompt, 20, **options)
    with (
        pytest.raises(ConfigError, match="larger rewind"),
        attach(model, num_blocks=60, page_size=1, rewind=0) as paged,
        paged.open(**prompt) as past,
    ):
        generate(model, prompt, 20, past_key_values=past, **options)
    assert_nothing_held(paged.cache)
    assert model.config._attn_implementation == before
    with attach(model, num_blocks=200, page_size=1) as paged, paged.open(**prompt) as past:
        assert generate(model, prompt, 20, past_key_values=past, **options).tolist() == expected.tolist()


# -- failures on the way ----------------------------------------------------------------------------------------


def test_a_pool_too_small_says_what_is_missing_and_everything_is_given_back(model: PreTrainedModel) -> None:
    before = model.config._attn_implementation
    expected = generate(model, TWO, 20).tolist()
    with attach(model, num_blocks=9, page_size=PAGE_SIZE, debug=True) as paged:
        with pytest.raises(OutOfBlocks) as refusal, paged.open(**TWO) as past:
            generate(model, TWO, 20, past_key_values=past)
        assert (refusal.value.needed, refusal.value.free, refusal.value.total) == (2, 0, 9)
        assert past.is_closed
        assert_nothing_held(paged.cache)
        with pytest.raises(OutOfBlocks) as refusal, paged.open(**TWO) as past:
            generate(model, TWO, 4, past_key_values=past, num_beams=5)
        assert past.num_rows == 0
        assert_nothing_held(paged.cache)
        with paged.open(**TWO) as past:  # the control: what fits runs
            assert generate(model, TWO, 4, past_key_values=past).tolist() == [row[:17] for row in expected]
    assert model.config._attn_implementation == before
    assert generate(model, TWO, 20).tolist() == expected


def test_after_out_of_blocks_the_same_past_goes_on_when_there_is_room(model: PreTrainedModel) -> None:
    with attach(model, num_blocks=8, page_size=PAGE_SIZE) as paged:
        other = paged.open(**ONE)
        model(**ONE, past_key_values=other)
        prompt = padded(random_rows(5, [17], VOCABULARY))
        with paged.open(**prompt) as past:
            with pytest.raises(OutOfBlocks) as refusal:
                model(**prompt, past_key_values=past)
            assert (refusal.value.needed, refusal.value.free) == (5, 4)
            assert past.get_seq_length() == 0
            other.close()
            assert_works(paged, prompt, past)


def test_more_positions_than_the_model_has_embeddings_for_are_refused() -> None:
    model = family_model("gpt2")
    last = model.config.max_position_embeddings
    prompt = padded(random_rows(6, [last - 3], VOCABULARY))
    with attach(model, num_blocks=60) as paged:
        with paged.open(**prompt) as past:
            generate(model, prompt, 4, past_key_values=past)  # the last token is not computed
        with paged.open(**prompt) as past, pytest.raises(ConfigError, match=f"position {last} is needed"):
            generate(model, prompt, 5, past_key_values=past)
        assert_nothing_held(paged.cache)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("kind", [Interrupted, KeyboardInterrupt])
def test_an_interrupted_pass_counts_nothing(
    model: PreTrainedModel, paged: AttachedModel, kind: type[BaseException]
) -> None:
    def interrupt(*_: object) -> None:
        raise kind

    with paged.open(**TWO) as past:
        hook = model.model.layers[2].register_forward_pre_hook(interrupt)
        with pytest.raises(kind):
            model(**TWO, past_key_values=past)
        hook.remove()
        assert past.get_seq_length() == 0
        assert_works(paged, TWO, past)
    assert_nothing_held(paged.cache)
    assert torch.is_grad_enabled()


def test_ctrl_c_in_the_last_pass_before_closing(model: PreTrainedModel) -> None:
    before = model.config._attn_implementation

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    model.model.layers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), attach(model, num_blocks=60) as paged, paged.open(**ONE) as past:
        model(**ONE, past_key_values=past)
    assert_nothing_held(paged.cache)
    assert model.config._attn_implementation == before
    assert torch.is_grad_enabled()
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_a_pass_that_leaves_layers_out_is_not_kept(model: PreTrainedModel, paged: AttachedModel) -> None:
    with paged.open(**ONE) as past:
        model.model.config.num_hidden_layers = 3
        try:
            with pytest.raises(ConfigError, match="left out 1 layer"):
                model(**ONE, past_key_values=past)
        finally:
            model.model.config.num_hidden_layers = 4
        assert past.get_seq_length() == 0
        assert_works(paged, ONE, past)


def test_gradients_are_refused_where_they_are_asked_for(model: PreTrainedModel, paged: AttachedModel) -> None:
    with paged.open(**ONE) as past:
        loss = model(**ONE, past_key_values=past, labels=ONE["input_ids"]).loss
    with pytest.raises(ConfigError, match="no gradients"):
        loss.backward()
    model.requires_grad_(False)
    model.model.layers[3].self_attn.v_proj.weight.requires_grad_(True)  # reached through the values alone
    with paged.open(**ONE) as past:
        loss = model(**ONE, past_key_values=past, labels=ONE["input_ids"]).loss
    with pytest.raises(ConfigError, match="no gradients"):
        loss.backward()
    model.requires_grad_(True)
    assert_works(paged, ONE)
    paged.close()
    model(**ONE, labels=ONE["input_ids"]).loss.backward()
    assert model.model.embed_tokens.weight.grad is not None


def test_a_model_is_restored_exactly(model: PreTrainedModel) -> None:
    before = copy.copy(model.config.to_dict()), model.config._attn_implementation, logits(model, ONE)
    with attach(model, num_blocks=60) as paged, paged.open(**ONE) as past:
        generate(model, ONE, 3, past_key_values=past)
    assert model.config.to_dict() == before[0]
    assert model.config._attn_implementation == before[1]
    assert torch.equal(logits(model, ONE), before[2])
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
