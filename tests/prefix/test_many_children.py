"""A prompt with very many continuations: looking for a hit inside a page stays bounded."""

from array import array

from kvpager.prefix.hashing import Scope, root_key
from kvpager.prefix.index import MAX_CANDIDATES, PrefixIndex


def page(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def index_with(pages: list[bytes]) -> tuple[PrefixIndex, int]:
    index = PrefixIndex(num_blocks=len(pages), num_groups=1, page_size=4)
    root = index.enter_root(root_key(b"", "", Scope()))
    for block, label in enumerate(pages):
        index.attach(index.open_child(root, label), 0, block)
    index.check()
    return index, root


def test_a_child_is_found_among_thousands_that_begin_otherwise() -> None:
    index, root = index_with([page(token, 1, 2, 3) for token in range(5000)])
    match = index.match_inside(root, page(7, 1, 2, 9))
    assert match is not None
    assert match.num_tokens == 3
    assert index.label(match.node) == page(7, 1, 2, 3)


def test_no_more_than_the_stated_number_of_candidates_is_compared() -> None:
    late = MAX_CANDIDATES
    index, root = index_with([page(7, token, 2, 3) for token in range(late + 1)])
    found = index.match_inside(root, page(7, late, 2, 9))
    assert found is not None
    assert found.num_tokens == 3  # the latest are compared
    oldest = index.match_inside(root, page(7, 0, 2, 9))
    assert oldest is not None
    assert oldest.num_tokens == 1  # the oldest is not; what is shared is right all the same


def test_children_leave_the_list_of_their_first_token_in_any_order() -> None:
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]):
        index, root = index_with([page(7, token, 2, 3) for token in range(3)])
        left = {0, 1, 2}
        for block in order:
            index.detach(block)
            left.remove(block)
            index.check()
            for token in range(3):
                match = index.match_inside(root, page(7, token, 2, 9))
                expected = None if not left else 3 if token in left else 1
                assert (None if match is None else match.num_tokens) == expected
