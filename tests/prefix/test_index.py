"""The prefix index against a dict of prefixes, and the lies its check must find."""

import random
from array import array

import numpy as np
import pytest

from kvpager import InvariantError
from kvpager.prefix.hashing import Scope, page_key, root_key
from kvpager.prefix.index import MAX_CANDIDATES, PrefixIndex
from kvpager.types import NodeId

PAGE = 4
ROOT_KEYS = [root_key(b"", "layout", Scope(salt=salt)) for salt in ("", "x", "y")]


def label(*tokens: int, media: bytes = b"") -> bytes:
    return array("i", tokens).tobytes() + media


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(num_blocks=16, num_groups=1, page_size=PAGE)


def chain(index: PrefixIndex, root: NodeId, labels: list[bytes], blocks: list[int]) -> list[NodeId]:
    node, nodes = root, []
    for each, block in zip(labels, blocks, strict=True):
        node = index.open_child(node, each)
        index.attach(node, 0, block)
        nodes.append(node)
    index.check()
    return nodes


A, B, C = label(1, 2, 3, 4), label(5, 6, 7, 8), label(5, 6, 9, 9)


def test_an_empty_index_finds_nothing(index: PrefixIndex) -> None:
    assert index.find_root(ROOT_KEYS[0]) is None
    assert (index.num_nodes, index.num_entries, index.num_scopes) == (0, 0, 0)
    assert index.all_blocks().tolist() == []
    index.check()


def test_a_chain_is_found_as_far_as_it_agrees(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    nodes = chain(index, root, [A, B], [3, 5])
    assert index.match(root, [A, B]) == nodes
    assert index.match(root, [A, C]) == nodes[:1]
    assert index.match(root, [B, A]) == []
    assert index.match(root, []) == []
    assert [index.block(node, 0) for node in nodes] == [3, 5]
    assert index.find_root(ROOT_KEYS[0]) == root


def test_a_partial_match_takes_the_child_with_the_longest_common_run(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    (b,) = chain(index, root, [B], [0])
    (c,) = chain(index, root, [C], [1])
    found = {tokens: index.match_inside(root, label(*tokens)) for tokens in [(5, 6, 7), (5, 6, 9), (5,), (6, 6, 7), ()]}
    assert found[5, 6, 7] is not None
    assert (found[5, 6, 7].node, found[5, 6, 7].num_tokens) == (b, 3)
    assert found[5, 6, 9] is not None
    assert (found[5, 6, 9].node, found[5, 6, 9].num_tokens) == (c, 3)
    assert found[5,] is not None
    assert found[5,].num_tokens == 1
    assert found[6, 6, 7] is None
    assert found[()] is None


def test_tokens_that_agree_in_some_bytes_only_are_not_equal_tokens(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    chain(index, root, [label(0x0101, 2, 3, 4)], [0])
    assert index.match_inside(root, label(0x0201, 2, 3)) is None
    found = index.match_inside(root, label(0x0101, 0x0102, 3))
    assert found is not None
    assert found.num_tokens == 1


def test_among_more_children_than_are_compared_a_partial_match_is_still_right() -> None:
    """The bound is one on time: what is found may be shorter than the best, never other content."""
    many = 5 * MAX_CANDIDATES
    index = PrefixIndex(num_blocks=many + 1, num_groups=1, page_size=PAGE)
    root = index.enter_root(ROOT_KEYS[0])
    for number in range(many):
        chain(index, root, [label(7, number, 0, 0)], [number])
    (other,) = chain(index, root, [label(8, 0, 0, 0)], [many])
    latest = index.match_inside(root, label(7, many - 1, 0))
    assert latest is not None
    assert latest.num_tokens == 3
    oldest = index.match_inside(root, label(7, 0, 0))
    assert oldest is not None
    assert oldest.num_tokens in (1, 3)
    assert index.match_inside(root, label(9)) is None
    found = index.match_inside(root, label(8, 0, 1))
    assert found is not None
    assert (found.node, found.num_tokens) == (other, 2)


def test_a_page_with_media_is_never_matched_inside(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    chain(index, root, [A + b"m" * 40], [0])
    assert index.match_inside(root, A) is None
    assert index.match(root, [A]) == []
    chain(index, root, [A], [1])
    assert index.match_inside(root, A) is not None  # the control


def test_a_page_that_lacks_a_block_in_one_group_is_not_matched_inside() -> None:
    index = PrefixIndex(num_blocks=4, num_groups=2, page_size=PAGE)
    root = index.enter_root(ROOT_KEYS[0])
    node = index.open_child(root, A)
    index.attach(node, 0, 0)
    assert index.match_inside(root, A) is None
    index.attach(node, 1, 2)
    assert index.match_inside(root, A) is not None
    assert index.blocks_of(node) == [0, 2]
    assert index.blocks_in_group([node, node], 1) == [2, 2]
    index.detach(0)
    assert index.blocks_in_group([node], 0) == [None]
    index.check()


def test_a_key_is_the_chained_hash_of_scope_and_content(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[1])
    nodes = chain(index, root, [A, B + b"media"], [0, 1])
    first = page_key(ROOT_KEYS[1], A, b"")
    assert index.key(nodes[1]) == page_key(first, B, b"media")
    assert index.key(nodes[0]) == first
    assert index.key(root) == ROOT_KEYS[1]
    index.check()


def test_a_block_or_a_place_that_is_taken_is_refused(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    (node,) = chain(index, root, [A], [0])
    other = index.open_child(root, B)
    for place, block in ((other, 0), (node, 1)):
        with pytest.raises(InvariantError, match="already"):
            index.attach(place, 0, block)
    index.attach(other, 0, 1)
    index.check()


def test_a_block_that_is_not_there_has_no_node(index: PrefixIndex) -> None:
    with pytest.raises(InvariantError, match="not in the prefix index"):
        index.node_of_block(3)
    with pytest.raises(InvariantError, match="not in the prefix index"):
        index.detach(3)


def test_a_node_without_blocks_stays_while_it_has_children_and_then_goes_with_its_parents(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    nodes = chain(index, root, [A, B, C], [0, 1, 2])
    index.detach(0)
    index.detach(1)
    assert index.match(root, [A, B, C]) == nodes
    assert not index.is_leaf(nodes[0])
    index.detach(2)
    assert index.match(root, [A, B, C]) == []
    assert index.num_nodes == 1
    index.leave_root(root)
    assert index.num_nodes == index.num_scopes == 0
    index.check()


def test_a_root_stays_while_a_sequence_stands_on_it(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    assert index.enter_root(ROOT_KEYS[0]) == root
    index.leave_root(root)
    assert index.find_root(ROOT_KEYS[0]) == root
    index.leave_root(root)
    assert index.find_root(ROOT_KEYS[0]) is None


def test_a_reused_node_number_forgets_its_former_key_and_content(index: PrefixIndex) -> None:
    """O-01: a node's number given to other content must not carry the old name."""
    root = index.enter_root(ROOT_KEYS[0])
    (node,) = chain(index, root, [A], [0])
    old = index.key(node)
    index.detach(0)
    (again,) = chain(index, root, [B], [0])
    assert again == node
    assert index.key(again) == page_key(ROOT_KEYS[0], B, b"") != old
    assert index.match(root, [A]) == []


def test_moved_blocks_keep_their_content_and_a_smaller_index_keeps_what_is_below(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    nodes = chain(index, root, [A, B], [14, 15])
    index.move(14, 0)
    index.move(15, 1)
    index.resize(2)
    index.check()
    assert [index.block(node, 0) for node in index.match(root, [A, B])] == [0, 1]
    index.resize(20)
    chain(index, nodes[1], [C], [19])
    assert index.all_blocks().tolist() == [0, 1, 19]


def _rename(children: dict[bytes, int]) -> None:
    key, node = children.popitem()
    children[key[:-1] + b"x"] = node


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda index, node: index._tree._content.__setitem__(node, C), "is not found under"),
        (lambda index, node: index._keys.__setitem__(node, b"0" * 32), "not the key of its content"),
        (lambda index, node: index._node_of_block.__setitem__(0, 7), "names another"),
        (lambda index, node: index._blocks[0].__setitem__(node, -1), "neither blocks nor children"),
        (lambda index, node: setattr(index, "num_entries", 5), "number of published blocks"),
        (lambda index, node: index._root_by_key.clear(), "which is gone"),
        (lambda index, node: index._tree.num_children.__setitem__(0, 3), "numbers of children"),
        (lambda index, node: index._tree._only_child.__setitem__(0, node), "whose only child is"),
        (lambda index, node: index._tree._child_by_token.clear(), "begin alike"),
        (lambda index, node: _rename(index._tree._child_by_token), "begin otherwise"),
    ],
)
def test_check_finds_an_index_that_lies(index: PrefixIndex, lie: object, reason: str) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    (node,) = chain(index, root, [A], [0])
    chain(index, root, [B], [1])
    index.key(node)
    index.check()
    lie(index, node)
    with pytest.raises(InvariantError, match=reason):
        index.check()


def test_a_chain_that_is_hung_at_once_is_the_chain_that_is_opened_page_by_page(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    for start, labels in ((root, [A, B, C]), (root, [B]), (root, [C, A])):  # nodes are used anew
        last = index.hang(start, b"".join(labels), [np.arange(3, 3 + len(labels))])
        index.check()
        nodes = index.match(root, [*labels, A])
        assert (nodes[-1], len(nodes)) == (last, len(labels))
        assert index.blocks_in_group(nodes, 0) == list(range(3, 3 + len(labels)))
        index.detach_all()
        assert index.match(root, labels) == []


def test_a_block_that_is_there_is_not_hung_twice(index: PrefixIndex) -> None:
    root = index.enter_root(ROOT_KEYS[0])
    chain(index, root, [A], [3])
    with pytest.raises(InvariantError, match="in the prefix index already"):
        index.hang(root, B, [np.array([3])])


@pytest.mark.parametrize("seed", range(6))
def test_the_index_is_a_dict_of_prefixes(seed: int) -> None:
    """The model maps (scope, pages so far) to a block; everything the index answers is compared with it."""
    generator = random.Random(seed)
    labels = [label(a, b, 1, 1) for a in (1, 2) for b in (1, 2)]
    index = PrefixIndex(num_blocks=24, num_groups=1, page_size=PAGE)
    roots = [index.enter_root(key) for key in ROOT_KEYS]
    model: dict[tuple[int, tuple[bytes, ...]], int] = {}
    free = list(range(24))
    for turn in range(1500):
        where = f"seed={seed} turn={turn}"
        scope = generator.randrange(3)
        path = tuple(generator.choices(labels, k=generator.randint(1, 4)))
        if generator.random() < 0.6 and free:
            node = roots[scope]
            known = len(index.match(node, list(path)))
            if known == 0 and len(free) >= len(path):
                blocks = [free.pop() for _ in path]
                index.hang(node, b"".join(path), [np.array(blocks)])
                model |= {(scope, path[: depth + 1]): block for depth, block in enumerate(blocks)}
            for depth in range(1, len(path) + 1):
                node = index.open_child(node, path[depth - 1])
                if (scope, path[:depth]) not in model and free:
                    model[scope, path[:depth]] = free.pop()
                    index.attach(node, 0, model[scope, path[:depth]])
            index.prune(node)  # where the blocks ran out
        elif model:
            held = generator.choice(sorted(model))
            block = model.pop(held)
            index.detach(block)
            free.append(block)
        index.check()
        expected = [model.get((scope, path[: depth + 1])) for depth in range(len(path))]
        nodes = index.match(roots[scope], list(path))
        assert index.match_pages(roots[scope], b"".join(path)) == nodes, where
        found = [index.block(node, 0) for node in nodes]
        assert found == expected[: len(found)], where
        assert all(block is None for block in expected[len(found) :]), where
        assert index.all_blocks().tolist() == sorted(model.values()), where
        inside = index.match_inside(roots[scope], path[0][:8])
        children = {prefix[0] for at, prefix in model if at == scope and len(prefix) == 1}
        common = [sum(1 for one, two in zip(c[:8:4], path[0][:8:4], strict=True) if one == two) for c in children]
        runs = [0 if c[:4] != path[0][:4] else n for c, n in zip(children, common, strict=True)]
        assert (0 if inside is None else inside.num_tokens) == max(runs, default=0), where
