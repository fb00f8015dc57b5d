"""The part of a block tree that fits on a screen: a few chains, with what they share said once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from engine.kv.live.block_tree import Block, BlockTree, Key
from engine.kv.live.marks import Mark, MarkBook

# How many of the newest blocks are looked at to find the ends of chains; more would take time from the server.
LOOKED_AT = 2000
MAP_BLOCKS = 1500
# Of a long run only its beginning and its last block are shown.
MOST_IN_A_ROW = 5
HEAD = 3

Words = Callable[[Key], str | None]


@dataclass(frozen=True)
class ShownBlock:
    """A block as a page shows it.

    ``words`` is None until the server has told them. ``number`` counts from 1 at the chain's beginning, None where
    the beginning isn't known.
    """

    key: Key
    number: int | None
    words: str | None
    tokens: int
    copies: int
    marks: tuple[Mark, ...]
    unix_s: float


@dataclass(frozen=True)
class Segment:
    """Blocks one after the other that the same requests use, and what follows them.

    ``hidden`` blocks before the last one are left out. ``orphan``: the block before the first one is not in the cache
    any more, or was never seen.
    """

    blocks: tuple[ShownBlock, ...]
    children: tuple[Segment, ...]
    hidden: int = 0
    orphan: bool = False

    @property
    def ends(self) -> int:
        """Chains that end in it or below it."""
        return sum(child.ends for child in self.children) or 1


@dataclass
class _Node:
    block: Block
    children: dict[Key, _Node] = field(default_factory=dict)


def shown_chains(tree: BlockTree, marks: MarkBook, words: Words, most: int) -> tuple[Segment, ...]:
    """At most ``most`` chains: those of marked requests first, then the newest."""
    roots: dict[Key, _Node] = {}
    for end in islice(_ends(tree, marks), most):
        level = roots
        for block in tree.path(end):
            level = level.setdefault(block.key, _Node(block)).children
    return tuple(_segment(root, 1, marks, words) for root in roots.values())


def block_map(tree: BlockTree, marks: MarkBook) -> tuple[tuple[Mark, ...], ...]:
    """Who uses each of the newest ``MAP_BLOCKS`` blocks, the newest first."""
    users: dict[Key, list[Mark]] = {}
    for mark in marks.all():
        for key in marks.blocks(mark):
            users.setdefault(key, []).append(mark)
    return tuple(tuple(users.get(block.key, ())) for block in islice(tree.newest(), MAP_BLOCKS))


def _ends(tree: BlockTree, marks: MarkBook) -> Iterator[Key]:
    """Last blocks of chains, each once."""
    seen: dict[Key, None] = {}
    for mark in reversed(marks.all()):
        own = [key for key in marks.blocks(mark) if tree.get(key)]
        followed = {block.parent for block in map(tree.get, own) if block}
        seen.update(dict.fromkeys(key for key in own if key not in followed))
    # A marked chain that ends inside another one is drawn with it.
    inner = {block.key for end in seen for block in tree.path(end)[:-1]}
    yield from (end for end in seen if end not in inner)
    for block in islice(tree.newest(), LOOKED_AT):
        if block.key not in seen and not tree.children(block.key):
            yield block.key


def _segment(node: _Node, number: int | None, marks: MarkBook, words: Words) -> Segment:
    orphan = number == 1 and node.block.parent is not None
    number = None if orphan else number
    users = marks.of(node.block.key)
    run = [node]
    while len(node.children) == 1:
        (following,) = node.children.values()
        if marks.of(following.block.key) != users:
            break
        run.append(following)
        node = following
    places = range(len(run)) if len(run) <= MOST_IN_A_ROW else (*range(HEAD), len(run) - 1)
    blocks = tuple(_shown(run[place].block, _plus(number, place), users, words) for place in places)
    after = _plus(number, len(run))
    children = tuple(_segment(child, after, marks, words) for child in _in_order(node.children.values(), marks))
    return Segment(blocks, children, len(run) - len(places), orphan)


def _in_order(nodes: Iterable[_Node], marks: MarkBook) -> list[_Node]:
    """Marked ones by their label, then the others."""
    return sorted(nodes, key=lambda node: min((mark.label for mark in marks.of(node.block.key)), default="~"))


def _plus(number: int | None, more: int) -> int | None:
    return None if number is None else number + more


def _shown(block: Block, number: int | None, users: tuple[Mark, ...], words: Words) -> ShownBlock:
    return ShownBlock(block.key, number, words(block.key), block.size, block.copies, users, block.unix_s)
