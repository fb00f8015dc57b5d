"""The tree of cached blocks, who uses which, and what of it is shown."""

from __future__ import annotations

from array import array
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from engine.kv.live.block_tree import BlockTree
from engine.kv.live.chains import HEAD, MAP_BLOCKS, MOST_IN_A_ROW, Segment, block_map, shown_chains
from engine.kv.live.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event
from engine.kv.live.marks import MOST_MARKS, MarkBook

SIZE = 4


def key(block_hash: BlockHash, rank: int = 0, group: int = 0) -> tuple[int, int, BlockHash]:
    return (rank, group, block_hash)


def stored(*hashes: BlockHash, parent: BlockHash | None = None, session: str | None = None, group: int = 0) -> Event:
    return BlockStored(hashes, parent, array("i", range(SIZE * len(hashes))), SIZE, group, session)


def removed(*hashes: BlockHash, group: int = 0) -> Event:
    return BlockRemoved(hashes, group)


def tree_of(*events: Event, most: int = 1000) -> BlockTree:
    tree = BlockTree(most)
    for number, event in enumerate(events):
        tree.apply(event, 0, float(number))
    return tree


def hashes(tree: BlockTree, end: BlockHash) -> list[BlockHash]:
    return [block.key[2] for block in tree.path(key(end))]


# -- the tree


def test_each_block_follows_the_one_before_it() -> None:
    tree = tree_of(stored(1, 2, 3), stored(4, 5, parent=2))
    assert (hashes(tree, 3), hashes(tree, 5)) == ([1, 2, 3], [1, 2, 4, 5])
    assert tree.children(key(2)) == (key(3), key(4))
    second = tree.get(key(2))
    assert second is not None and list(second.tokens) == [4, 5, 6, 7] and second.unix_s == 0.0
    assert (len(tree), tree.copies, tree.stored) == (5, 5, 5)


def test_a_removed_block_leaves_its_children_which_find_it_again() -> None:
    tree = tree_of(stored(1, 2, 3), removed(1, 2))
    assert (hashes(tree, 3), len(tree), tree.removed) == ([3], 1, 2)
    tree.apply(stored(1, 2), 0, 1.0)
    assert hashes(tree, 3) == [1, 2, 3]


def test_a_parent_that_was_never_seen_may_come_later() -> None:
    tree = tree_of(stored(3, parent=2))
    assert hashes(tree, 3) == [3]
    tree.apply(stored(1, 2), 0, 1.0)
    assert hashes(tree, 3) == [1, 2, 3]


def test_equal_blocks_are_counted_and_removed_one_by_one() -> None:
    tree = tree_of(stored(1, 2), stored(2, parent=1))
    assert (len(tree), tree.copies, tree.stored) == (2, 3, 3)
    tree.apply(removed(2), 0, 1.0)
    assert hashes(tree, 2) == [1, 2]
    tree.apply(removed(2), 0, 2.0)
    assert (hashes(tree, 2), tree.copies) == ([], 1)


def test_a_reported_hit_is_no_second_copy() -> None:
    tree = tree_of(stored(1, 2), stored(1, 2, session="lab-1"), stored(3, parent=2, session="lab-1"))
    assert (len(tree), tree.copies, tree.stored) == (3, 3, 3)
    tree.apply(removed(2), 0, 1.0)
    assert tree.get(key(2)) is None


def test_ranks_and_groups_are_caches_of_their_own() -> None:
    tree = tree_of(stored(1, 2), stored(1, group=1))
    tree.apply(stored(1), 1, 0.0)
    assert len(tree) == 4
    tree.apply(removed(1, group=1), 0, 1.0)
    tree.apply(AllBlocksCleared(), 0, 2.0)
    assert [block.key for block in tree.newest()] == [key(1, rank=1)]
    assert tree.cleared == 1


def test_removing_what_is_not_known_changes_nothing() -> None:
    tree = tree_of(stored(1), removed(9), removed(9))
    assert (len(tree), tree.copies, tree.removed) == (1, 1, 2)


def test_memory_is_bounded_and_what_was_forgotten_is_counted() -> None:
    tree = tree_of(*(stored(number) for number in range(50)), most=10)
    assert [block.key[2] for block in tree.newest()] == list(range(49, 39, -1))
    assert (len(tree), tree.copies, tree.forgotten, tree.stored) == (10, 10, 40, 50)


def test_a_circle_ends() -> None:
    tree = tree_of(stored(1, parent=2), stored(2, parent=1), stored(3, parent=3))
    assert hashes(tree, 1) == [2, 1] and hashes(tree, 3) == [3]
    assert shown_chains(tree, MarkBook(), lambda _: None, 5) == ()  # it has no end


EVENTS = st.one_of(
    st.builds(
        lambda ones, parent: stored(*ones, parent=parent),
        st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True),
        st.none() | st.integers(0, 20),
    ),
    st.builds(lambda one: removed(one), st.integers(0, 20)),
    st.just(AllBlocksCleared()),
)


@given(st.lists(EVENTS, max_size=40), st.integers(1, 12))
def test_whatever_comes_the_tree_stays_consistent(events: list[Event], most: int) -> None:
    tree = tree_of(*events, most=most)
    blocks = list(tree.newest())
    assert len(blocks) == len(tree) <= most
    assert tree.copies == sum(block.copies for block in blocks)
    for block in blocks:
        assert tree.path(block.key)[-1] is block
        if block.parent is not None:
            assert block.key in tree.children(block.parent)
        assert all(child_key in [one.key for one in blocks] for child_key in tree.children(block.key))
    tree.apply(AllBlocksCleared(), 0, 0.0)
    assert (len(tree), tree.copies, tree._children) == (0, 0, {})


# -- marks


def test_a_mark_is_told_from_the_session_and_ends_with_its_successor() -> None:
    marks = MarkBook()
    first = marks.add("A", "Why?")
    assert marks.note(first.session, [key(1), key(2)]) is first
    assert marks.note("somebody-else", [key(1)]) is None and marks.note(None, [key(1)]) is None
    assert marks.of(key(1)) == (first,) and marks.blocks(first) == (key(1), key(2))
    second = marks.add("A", "Why not?")
    assert marks.all() == (second,) and marks.of(key(1)) == ()
    assert second.session != first.session and second.request_fields["session_id"] == second.session


def test_marks_are_few_and_no_two_have_the_same_colour() -> None:
    marks = MarkBook()
    made = [marks.add(str(number), "") for number in range(3 * MOST_MARKS)]
    assert marks.all() == tuple(made[-MOST_MARKS:])
    assert len({mark.colour for mark in marks.all()}) == MOST_MARKS


# -- what is shown


def shape(segments: tuple[Segment, ...]) -> list[object]:
    """Hashes of each segment, and what follows."""
    return [([block.key[2] for block in one.blocks], shape(one.children)) for one in segments]


def test_a_shared_beginning_is_shown_once_with_the_marks_of_all() -> None:
    tree, marks = tree_of(stored(1, 2), stored(3, 4, parent=2), stored(5, parent=2)), MarkBook()
    first, second = marks.add("A", ""), marks.add("B", "")
    marks.note(first.session, map(key, (1, 2, 3, 4)))
    marks.note(second.session, map(key, (1, 2, 5)))
    (trunk,) = shown_chains(tree, marks, lambda one: f"words {one[2]}", 8)
    assert shape((trunk,)) == [([1, 2], [([3, 4], []), ([5], [])])]
    assert [block.marks for block in trunk.blocks] == [(first, second)] * 2
    assert [child.blocks[0].marks for child in trunk.children] == [(first,), (second,)]
    assert [block.number for block in trunk.children[0].blocks] == [3, 4]
    assert (trunk.ends, trunk.blocks[0].words, trunk.orphan) == (2, "words 1", False)


def test_a_marked_chain_inside_a_longer_one_is_drawn_with_it() -> None:
    """The first turn of a chat is the beginning of the second."""
    tree, marks = tree_of(stored(1, 2, 3, 4)), MarkBook()
    first, second = marks.add("1", ""), marks.add("2", "")
    marks.note(first.session, map(key, (1, 2)))
    marks.note(second.session, map(key, (1, 2, 3, 4)))
    assert shape(shown_chains(tree, marks, lambda _: None, 1)) == [([1, 2], [([3, 4], [])])]


def test_marked_chains_come_first_and_then_the_newest() -> None:
    tree, marks = tree_of(*(stored(number) for number in range(20))), MarkBook()
    mark = marks.add("A", "")
    marks.note(mark.session, [key(3)])
    assert shape(shown_chains(tree, marks, lambda _: None, 3)) == [([3], []), ([19], []), ([18], [])]


def test_the_middle_of_a_long_run_is_left_out_and_counted() -> None:
    tree = tree_of(stored(*range(100)))
    (run,) = shown_chains(tree, MarkBook(), lambda _: None, 3)
    assert [block.number for block in run.blocks] == [*range(1, HEAD + 1), 100]
    assert run.hidden == 100 - HEAD - 1
    (short,) = shown_chains(tree_of(stored(*range(MOST_IN_A_ROW))), MarkBook(), lambda _: None, 3)
    assert (len(short.blocks), short.hidden) == (MOST_IN_A_ROW, 0)


def test_a_chain_without_its_beginning_says_so() -> None:
    tree = tree_of(stored(1, 2, 3), removed(1))
    (run,) = shown_chains(tree, MarkBook(), lambda _: None, 3)
    assert run.orphan and [block.number for block in run.blocks] == [None, None]


def test_marks_on_blocks_that_are_gone_show_nothing() -> None:
    tree, marks = tree_of(stored(1), removed(1)), MarkBook()
    mark = marks.add("A", "")
    marks.note(mark.session, [key(1)])
    assert shown_chains(tree, marks, lambda _: None, 3) == () and block_map(tree, marks) == ()


def test_the_map_has_the_newest_blocks_with_their_users() -> None:
    numbers = count()
    tree, marks = tree_of(*(stored(next(numbers)) for _ in range(MAP_BLOCKS + 10)), most=MAP_BLOCKS + 10), MarkBook()
    mark = marks.add("A", "")
    marks.note(mark.session, [key(MAP_BLOCKS + 9)])
    shown = block_map(tree, marks)
    assert (len(shown), shown[0], shown[1]) == (MAP_BLOCKS, (mark,), ())
