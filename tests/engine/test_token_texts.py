"""Remembered texts of tokens: what the tokenizer itself says, whatever tokens follow each other."""

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kvpager.engine.token_texts import TokenTexts

WORDS = ["hello", " world", "\n\n", "é", " 日本", "\ufffd", "  ", "."]


def byte_level() -> PreTrainedTokenizerFast:
    """One token for every byte, then some words, and a special token and an added one that is not."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = ["".join(piece for piece, _ in split.pre_tokenize_str(word)) for word in WORDS]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([*alphabet, *words]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    made.add_special_tokens({"eos_token": "<end>"})
    made.add_tokens([AddedToken("日<added>", special=False)])
    return made


class Counted:
    """Counts how often it is asked, and says which decoder it has."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.asked = 0
        self.tokenizer = tokenizer
        self.backend_tokenizer = tokenizer.backend_tokenizer
        self.clean_up_tokenization_spaces = tokenizer.clean_up_tokenization_spaces

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        self.asked += 1
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text


@pytest.mark.parametrize("skip", [True, False])
def test_it_says_what_the_tokenizer_says(skip: bool) -> None:
    tokenizer = byte_level()
    counted = Counted(tokenizer)
    texts, generator = TokenTexts(counted), random.Random(1)
    for _ in range(1500):
        tokens = [generator.randrange(len(tokenizer)) for _ in range(generator.randrange(1, 5))]
        assert texts.decode(tokens, skip_special_tokens=skip) == tokenizer.decode(tokens, skip_special_tokens=skip)


def test_it_asks_once_for_a_token_and_never_for_whole_characters() -> None:
    tokenizer = byte_level()
    counted = Counted(tokenizer)
    texts, tokens = TokenTexts(counted), tokenizer.convert_tokens_to_ids(["hello", "Ġworld", "Ã©", "hello"])
    for _ in range(3):
        assert texts.decode(tokens, skip_special_tokens=True) == "hello worldéhello"
    assert counted.asked == 3
    half = tokenizer.convert_tokens_to_ids(["Ã", "©"])  # two halves of a character: each alone is none
    assert texts.decode(half, skip_special_tokens=True) == "é"
    assert counted.asked == 3 + 2 + 1


@pytest.mark.parametrize("change", ["decoder", "clean up"])
def test_other_tokenizers_are_asked_each_time(change: str) -> None:
    counted = Counted(byte_level())
    if change == "decoder":
        counted.backend_tokenizer = Tokenizer(models.BPE())
        counted.backend_tokenizer.decoder = decoders.Metaspace()
    else:
        counted.clean_up_tokenization_spaces = True
    texts = TokenTexts(counted)
    for _ in range(3):
        texts.decode([1, 2], skip_special_tokens=True)
    assert counted.asked == 3
