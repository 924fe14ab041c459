"""Text from tokens, piece by piece: whole characters, no stop string, constant work a token."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from kvpager.engine.detokenizer import MAX_PENDING, Detokenizer, TextDelta
from kvpager.errors import InvariantError


class BytesTokenizer:
    """Token i is ``vocabulary[i]``, some bytes; None is a special token. Counts what decode had to read."""

    def __init__(self, vocabulary: list[bytes | None]) -> None:
        self.vocabulary = vocabulary
        self.longest = 0

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        self.longest = max(self.longest, len(token_ids))
        special = b"" if skip_special_tokens else b"<s>"
        pieces = [self.vocabulary[token] for token in token_ids]
        return b"".join(special if piece is None else piece for piece in pieces).decode(errors="replace")


def spaced_tokenizer() -> PreTrainedTokenizerFast:
    """Like Llama 2: a leading space is dropped, unknown characters are bytes."""
    words = ["<unk>", "▁Hello", "▁world", "▁", "lo", *[f"<0x{byte:02X}>" for byte in range(256)]]
    rust = RustTokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=rust, unk_token="<unk>")


def deltas(pieces: list[bytes | None], stop: tuple[str, ...] = (), **options: object) -> list[TextDelta]:
    """What each piece, and then flush, gives out; nothing is pushed after a stop string."""
    detokenizer = Detokenizer(BytesTokenizer(pieces), stop, **options)
    result = []
    for token in range(len(pieces)):
        result.append(detokenizer.push(token))
        if result[-1].finished_by is not None:
            break
    return [*result, detokenizer.flush()]


def texts(pieces: list[bytes | None], stop: tuple[str, ...] = (), **options: object) -> list[str]:
    return [delta.text for delta in deltas(pieces, stop, **options)]


def cut(data: bytes, places: list[int]) -> list[bytes | None]:
    edges = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def oracle(text: str, stops: tuple[str, ...]) -> TextDelta:
    """The stop string that ends first, of those that end together the longest."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return TextDelta(text[: end - len(longest)], longest)
    return TextDelta(text)


def test_text_comes_out_at_once_without_stop_strings() -> None:
    assert texts([b"Hello", b",", b" world"]) == ["Hello", ",", " world", ""]


def test_a_character_waits_for_its_last_byte() -> None:
    assert texts([b"a\xf0", b"\x9f", b"\x98", b"\x80!"]) == ["a", "", "", "😀!", ""]


def test_an_unfinished_character_is_never_given_out() -> None:
    assert texts([b"ok", b"\xf0\x9f"]) == ["ok", "", ""]
    assert texts([b"ok", b"\xf0\x9f", b"\x98\x80"]) == ["ok", "", "😀", ""]


def test_invalid_bytes_show_once_text_follows() -> None:
    assert texts([b"a", b"\xff", b"b"]) == ["a", "", "\ufffdb", ""]


def test_the_stop_string_and_what_follows_is_left_out() -> None:
    assert deltas([b"one ", b"EN", b"D two"], ("END",)) == [
        TextDelta("one "),
        TextDelta(""),
        TextDelta("", "END"),
        TextDelta(""),
    ]


def test_text_held_back_comes_when_it_is_no_stop_string() -> None:
    assert texts([b"x EN", b"T", b"EN"], ("END",)) == ["x ", "ENT", "", "EN"]


def test_overlapping_beginnings() -> None:
    assert deltas([b"aab", b"aa", b"ab", b"aac"], ("aabaac",))[3] == TextDelta("", "aabaac")
    assert "".join(texts([b"aab", b"aa", b"ab", b"aac"], ("aabaac",))) == "aaba"


@pytest.mark.parametrize(
    ("stops", "text", "finished_by"),
    [
        (("b", "abc"), "xa", "b"),  # ends first
        (("c", "abc"), "x", "abc"),  # end together: the longest
        (("cd", "abcde", "d"), "xab", "cd"),
        (("zz",), "xabcde", None),
    ],
)
def test_which_stop_string_wins(stops: tuple[str, ...], text: str, finished_by: str | None) -> None:
    for pieces in ([b"xabcde"], [b"xa", b"bc", b"de"], [b"x", b"a", b"b", b"c", b"d", b"e"]):
        result = deltas(pieces, stops)
        assert "".join(delta.text for delta in result) == text
        assert result[-2].finished_by == finished_by


def test_pushing_after_the_end_is_a_bug() -> None:
    for end in ("stop", "flush"):
        detokenizer = Detokenizer(BytesTokenizer([b"a", b"stop"]), ("stop",))
        detokenizer.push(0)
        if end == "stop":
            detokenizer.push(1)
        else:
            detokenizer.flush()
        with pytest.raises(InvariantError, match="after the end"):
            detokenizer.push(0)


def test_flush_twice_gives_the_text_once() -> None:
    detokenizer = Detokenizer(BytesTokenizer([b"st"]), ("stop",))
    detokenizer.push(0)
    assert [detokenizer.flush().text, detokenizer.flush().text] == ["st", ""]


def test_special_tokens_are_left_out_unless_wanted() -> None:
    assert texts([b"a", None, b"b"]) == ["a", "", "b", ""]
    assert texts([b"a", None, b"b"], skip_special_tokens=False) == ["a", "<s>", "b", ""]


@given(
    text=st.text(st.sampled_from("ab€😀é\ufffd "), max_size=24),
    places=st.lists(st.integers(0, 80)),
    stops=st.lists(st.text(st.sampled_from("ab€ "), min_size=1, max_size=4), max_size=3).map(tuple),
)
def test_any_cut_of_a_text_gives_the_text_up_to_the_stop_string(
    text: str, places: list[int], stops: tuple[str, ...]
) -> None:
    result = deltas(cut(text.encode(), places), stops)
    expected = oracle(text, stops)
    joined = "".join(delta.text for delta in result)
    if expected.finished_by is None:
        assert joined == text.rstrip("\ufffd")
    else:
        assert joined == expected.text
    assert {delta.finished_by for delta in result} - {None} == {expected.finished_by} - {None}


@given(
    st.lists(
        st.sampled_from(
            [b"\xff", b"\xf0", b"\x9f\x98", b"\x80", b"a", b"a\xf0", b"\xe2\x82\xac", b"\xac", b"\xac\xff"]
        ),
        max_size=80,
    )
)
@example([b"\xff"] * 40)
@example([b"\xff"] * 15 + [b"\xf0", b"\x9f", b"\x98", b"\x80"])
def test_garbage_is_given_out_as_decoded_but_for_the_number_of_replacements(pieces: list[bytes]) -> None:
    joined = "".join(texts(pieces))
    whole = b"".join(pieces).decode(errors="replace")
    assert joined.replace("\ufffd", "") == whole.replace("\ufffd", "")
    if len(pieces) <= MAX_PENDING:
        assert joined == whole.rstrip("\ufffd")


@pytest.mark.parametrize("garbage", range(30))
def test_a_character_after_garbage_is_whole(garbage: int) -> None:
    pieces: list[bytes | None] = [b"\xff"] * garbage + [b"\xf0", b"\x9f", b"\x98", b"\x80", b"hi\xe2", b"\x82\xac."]
    assert "".join(texts(pieces)) == "\ufffd" * garbage + "😀hi€."


@pytest.mark.parametrize("garbage", range(30))
def test_text_after_garbage_comes_once(garbage: int) -> None:
    pieces: list[bytes | None] = [b"\xff"] * garbage + [b"hi\xe2", b"\x82", b"\xac."]
    assert "".join(texts(pieces)) == "\ufffd" * garbage + "hi€."


@pytest.mark.parametrize("piece", [b"word ", b"\xff", None, b"", b"a\xf0"])
def test_work_per_token_does_not_grow(piece: bytes | None) -> None:
    tokenizer = BytesTokenizer([piece])
    detokenizer = Detokenizer(tokenizer, ("never",))
    for _ in range(500):
        detokenizer.push(0)
    assert tokenizer.longest <= 2 * MAX_PENDING + 1


def test_a_leading_space_survives_with_context_only() -> None:
    tokenizer = spaced_tokenizer()
    hello, world = tokenizer.convert_tokens_to_ids(["▁Hello", "▁world"])
    assert Detokenizer(tokenizer, context=[hello]).push(world).text == " world"
    assert Detokenizer(tokenizer).push(world).text == "world"


@pytest.mark.parametrize("specials", [0, 1, MAX_PENDING, 100])
def test_a_leading_space_survives_special_tokens(specials: int) -> None:
    tokenizer = spaced_tokenizer()
    hello, world, special = tokenizer.convert_tokens_to_ids(["▁Hello", "▁world", "<unk>"])
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push(token).text for token in [hello, *[special] * specials, world]) == "Hello world"


@given(st.lists(st.sampled_from(["▁Hello", "▁world", "▁", "lo", "é", "€", "😀"]), max_size=20))
def test_a_real_tokenizer_with_byte_fallback(words: list[str]) -> None:
    tokenizer = spaced_tokenizer()
    tokens: list[int] = []
    for word in words:
        names = [word] if word.isascii() or "▁" in word else [f"<0x{byte:02X}>" for byte in word.encode()]
        tokens += tokenizer.convert_tokens_to_ids(names)
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push(token).text for token in tokens) == tokenizer.decode(tokens)
