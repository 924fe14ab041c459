"""Frames as JSON: whatever is sent, whole or as changes, the reader has the same map."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.metrics.block_view import BlockView
from kvpager.metrics.frames import Frame, decode_blocks, encode_blocks, read_frame
from tests.metrics.views import frame, view, views


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12).flatmap(lambda size: st.lists(views(size), min_size=1, max_size=5)))
def test_changes_one_after_the_other_give_what_whole_frames_give(sent: list[BlockView]) -> None:
    before: Frame | None = None
    seen: Frame | None = None
    for seq, blocks in enumerate(sent, 1):
        now = frame(seq, blocks, note="x")
        seen = read_frame(now.encode(before).text, seen)
        assert seen.blocks.is_same(blocks)
        assert read_frame(now.encode().text).blocks.is_same(blocks)
        assert seen.figures == now.figures
        before = now


@settings(max_examples=40, deadline=None)
@given(st.lists(views(6), min_size=3, max_size=3))
def test_frames_may_be_left_out_between_two(sent: list[BlockView]) -> None:
    first, last = frame(1, sent[0]), frame(9, sent[2])
    assert read_frame(last.encode(first).text, read_frame(first.encode().text)).blocks.is_same(sent[2])


def test_what_is_sent_is_never_more_than_the_whole() -> None:
    quiet = view(*[1] * 100, owner=5)
    one = BlockView(quiet.state.copy(), quiet.owner, quiet.mappings, quiet.tokens)
    one.state[3] = 2
    all_of_them = view(*[2] * 100)
    assert not encode_blocks(one, quiet)["full"]
    assert encode_blocks(all_of_them, quiet)["full"]
    assert encode_blocks(quiet)["full"]
    assert len(json.dumps(encode_blocks(one, quiet))) < len(json.dumps(encode_blocks(quiet))) / 3


def test_a_pool_of_another_size_is_sent_whole() -> None:
    encoded = frame(2, view(0, 1)).encode(frame(1, view(0, 1, 2)))
    assert encoded.is_whole
    assert len(read_frame(encoded.text).blocks) == 2


def test_nothing_changed() -> None:
    before = frame(1, view(0, 1, 2))
    encoded = frame(2, view(0, 1, 2)).encode(before)
    assert not encoded.is_whole
    assert read_frame(encoded.text, before).blocks.is_same(before.blocks)


def test_bytes_are_as_the_page_reads_them() -> None:
    columns = {"state": [1, 0], "owner": [258, 0], "mappings": [3, 0], "tokens": [4, 0]}
    kinds = {"owner": np.uint16}
    blocks = BlockView(**{name: np.array(column, kinds.get(name, np.uint8)) for name, column in columns.items()})
    sent = encode_blocks(blocks)
    assert sent == {"full": True, "state": "AQA=", "owner": "AgEAAA==", "mappings": "AwA=", "tokens": "BAA="}


# -- what can't be read --------------------------------------------------------------------------------------------


def test_changes_to_another_frame_are_refused() -> None:
    first, second, third = frame(1, view(0, 0, 1)), frame(2, view(0, 0, 2)), frame(3, view(0, 0, 3))
    text = third.encode(second).text
    assert read_frame(text, second).blocks.is_same(third.blocks)
    for wrong in (None, first):
        with pytest.raises(ValueError, match="not there"):
            read_frame(text, wrong)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"blocks": 3}', "\x00"])
def test_what_is_no_frame_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_frame(text)


def test_columns_that_do_not_fit_are_refused() -> None:
    whole = encode_blocks(view(0, 1, 2))
    assert len(decode_blocks(whole)) == 3
    with pytest.raises(ValueError, match="differ in length"):
        decode_blocks({**whole, "owner": "AAA="})
    before = view(0, 1, 2)
    changes = encode_blocks(view(0, 1, 3), before)
    assert not changes["full"]
    with pytest.raises(ValueError, match="don't fit"):
        decode_blocks(changes, view(0, 1))
    with pytest.raises(ValueError, match="no frame before"):
        decode_blocks(changes)
