"""Live blocks: the numbers, the tree, what happened, and the four requests, in every state of the server."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from components import palette
from components.block_tree.layout import MOST_COLUMNS, lay_out, tree_data
from components.blocks_view import ago
from engine.errors import AlreadyRunning, LabError
from engine.kv.live.block_tree import BlockTree
from engine.kv.live.chains import block_map, shown_chains
from engine.kv.live.events import BlockStored
from engine.kv.live.feed import FeedCounts
from engine.kv.live.follow import TOO_OLD, Cache, Line, What
from engine.kv.live.marks import Mark, MarkBook
from engine.kv.live.sharing import QUESTIONS, Sent, SharingSnapshot, State
from engine.kv.live.watch import ATTACHED, BlocksSnapshot
from engine.server.state import KvCapacity, ServerSnapshot
from engine.telemetry.prometheus import ServerMetrics
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import HOSTILE, assert_no_live_markup, errors, has_a_lone_zero, labels, part, press, said

SEND = "Send four requests that share a system prompt"
METRICS = ServerMetrics(
    kv_cache_usage=0.25, num_blocks=101, preemptions=3, prefix_queries=400, prefix_hits=100, block_size=32
)
READY = replace(fakes.READY, capacity=KvCapacity(tokens=3200, block_size=32, num_blocks=101, max_concurrency=2.0))


def shared_cache(words: str = "You are a guide.", **changes: Any) -> tuple[Cache, tuple[Mark, ...]]:
    """Four requests on a trunk of two blocks, each with one of its own, and a block of somebody else's."""
    tree, marks = BlockTree(), MarkBook()
    size = 32

    def store(*hashes: int, parent: int | None = None) -> None:
        tree.apply(BlockStored(hashes, parent, array("i", range(size * len(hashes))), size), 0, 1000.0)

    store(1, 2)
    made = [marks.add(label, question) for label, question in QUESTIONS]
    for number, mark in enumerate(made):
        store(10 + number, parent=2)
        marks.note(mark.session, [(0, 0, 1), (0, 0, 2), (0, 0, 10 + number)])
    store(99)
    cache = Cache(
        block_size=size,
        blocks=7,
        different=7,
        stored=9,
        removed=2,
        cleared=0,
        forgotten=0,
        counts=FeedCounts(batches=5),
        chains=shown_chains(tree, marks, lambda key: f"{words} {key[2]}", 8),
        map=block_map(tree, marks),
        marks=marks.all(),
        lines=(
            Line(1000.0, What.STORED, 2),
            Line(1001.0, What.FOUND, 2, made[0]),
            Line(1002.0, What.REMOVED, 1),
        ),
    )
    return replace(cache, **changes), marks.all()


@dataclass
class FakeBlocks:
    now: BlocksSnapshot
    error: LabError | None = None
    sent: list[str] = field(default_factory=list)

    def look(self) -> BlocksSnapshot:
        return self.now

    def send_four(self) -> None:
        if self.error:
            raise self.error
        self.sent.append("four")


def lab_with(
    server: ServerSnapshot = READY,
    cache: Cache | None = None,
    missing: str = "",
    metrics: ServerMetrics | None = METRICS,
    four: SharingSnapshot | None = None,
) -> fakes.FakeLab:
    lab = fakes.make_lab(server)
    lab.blocks = FakeBlocks(BlocksSnapshot(server, cache, missing, metrics, four or SharingSnapshot()))  # type: ignore[attr-defined]
    return lab


def test_a_stopped_server_has_no_blocks_and_says_where_to_start_one(open_page: OpenPage) -> None:
    at = open_page(lab_with(fakes.STOPPED), "live_blocks")
    assert "none is ready" in said(at) and "Start or attach one" in said(at)
    assert SEND not in labels(at) and not at.exception


def test_a_starting_server_is_to_be_waited_for(open_page: OpenPage) -> None:
    at = open_page(lab_with(fakes.STARTING), "live_blocks")
    assert "The server is starting." in said(at) and "See how far it is" in said(at)
    assert "Start or attach one" not in said(at)
    assert SEND not in labels(at) and not at.exception


def test_the_numbers_come_from_the_server(open_page: OpenPage) -> None:
    cache, _ = shared_cache()
    at = open_page(lab_with(cache=cache), "live_blocks")
    shown = part(at, "blocks_numbers")
    for text in ("25 of 100", "25%", "In use now", "of 32 tokens", "Prefix-hit rate", "Preemptions", "Evicted"):
        assert text in shown, text
    assert "Measured: this server's own blocks" in said(at) and not at.exception


def test_what_is_unknown_is_a_dash(open_page: OpenPage) -> None:
    cache, _ = shared_cache(blocks=5, removed=5)
    at = open_page(lab_with(cache=cache, metrics=None), "live_blocks")
    assert part(at, "blocks_numbers").count("—") >= 3
    assert not has_a_lone_zero(part(at, "blocks_numbers"))


@pytest.mark.parametrize(("server", "missing"), [(fakes.ATTACHED, ATTACHED), (READY, TOO_OLD)])
def test_without_events_the_page_says_so_and_shows_usage(
    open_page: OpenPage, server: ServerSnapshot, missing: str
) -> None:
    at = open_page(lab_with(server, missing=missing), "live_blocks")
    assert missing in said(at) and "25 of 100" in part(at, "blocks_numbers")
    assert "As it happens" not in said(at)
    assert (SEND in labels(at)) is not server.attached
    assert not at.exception


def test_what_happened_is_said_newest_first(open_page: OpenPage) -> None:
    cache, _ = shared_cache()
    text = said(open_page(lab_with(cache=cache), "live_blocks"))
    assert text.index("1 block evicted") < text.index("found 2 blocks") < text.index("stored 2 blocks")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"counts": FeedCounts(missed=3)}, "3 messages were lost"),
        ({"counts": FeedCounts(restarts=1)}, "stream of events began again"),
        ({"counts": FeedCounts(malformed=1)}, "1 message could not be read"),
        ({"counts": FeedCounts(replayed=4)}, "4 lost messages were asked for again"),
        ({"forgotten": 12}, "12 older blocks"),
    ],
)
def test_what_was_lost_is_said(open_page: OpenPage, changes: dict[str, Any], words: str) -> None:
    cache, _ = shared_cache(**changes)
    assert words in said(open_page(lab_with(cache=cache), "live_blocks"))


def test_nothing_is_said_to_be_lost_when_nothing_is(open_page: OpenPage) -> None:
    cache, _ = shared_cache()
    assert open_page(lab_with(cache=cache), "live_blocks").warning == []


def test_the_four_requests_are_sent_and_refused_with_the_reason(open_page: OpenPage) -> None:
    cache, _ = shared_cache()
    lab = lab_with(cache=cache)
    at = press(open_page(lab, "live_blocks"), SEND)
    assert lab.blocks.sent == ["four"]  # type: ignore[attr-defined]
    lab.blocks.error = AlreadyRunning(f"They are on their way. {HOSTILE}", "Wait.")  # type: ignore[attr-defined]
    at = press(at, SEND)
    assert "They are on their way." in errors(at)[0]
    assert_no_live_markup(at)


def test_nothing_is_sent_while_something_is_measured(open_page: OpenPage) -> None:
    cache, _ = shared_cache()
    at = open_page(lab_with(replace(READY, reserved=fakes.MEASURING), cache), "live_blocks")
    assert SEND not in labels(at) and "wait until it is over" in said(at)


def test_the_answers_show_what_each_request_found(open_page: OpenPage) -> None:
    cache, _ = shared_cache()
    sent = tuple(Sent(label, question, fakes.TRACE) for label, question in QUESTIONS)
    text = said(open_page(lab_with(cache=cache, four=SharingSnapshot(State.DONE, sent)), "live_blocks"))
    assert text.count("32 of 40 tokens") == 4 and QUESTIONS[0][1] in text
    waiting = SharingSnapshot(State.RUNNING, tuple(replace(one, trace=None) for one in sent))
    assert "tokens" not in said_four(open_page(lab_with(cache=cache, four=waiting), "live_blocks"))


def said_four(at: AppTest) -> str:
    text = said(at)
    return text[text.index("The four requests") : text.index("Blocks, order and letters")]


def test_a_request_that_failed_says_why(open_page: OpenPage) -> None:
    cache, _ = shared_cache()
    failed = replace(fakes.TRACE, error=f"The server refused it. {HOSTILE}", finish_reason=None)
    four = SharingSnapshot(State.DONE, (Sent("A", "Why?", failed),))
    at = open_page(lab_with(cache=cache, four=four), "live_blocks")
    assert "The server refused it." in errors(at)[0]
    assert_no_live_markup(at)


def test_blocks_too_large_for_a_chat_can_be_made_smaller(open_page: OpenPage) -> None:
    cache, _ = shared_cache()
    lab = lab_with(replace(fakes.READY, capacity=KvCapacity(block_size=128)), cache)
    press(open_page(lab, "live_blocks"), "Restart with blocks of 32 tokens")
    ((name, config),) = lab.supervisor.made
    assert (name, config.block_size) == ("restart", 32)
    for other in (READY, replace(fakes.ATTACHED, capacity=KvCapacity(block_size=128))):
        assert "Restart with blocks of 32 tokens" not in labels(open_page(lab_with(other, cache), "live_blocks"))


# -- the picture


def test_what_four_requests_share_is_one_block_as_high_as_all() -> None:
    cache, marks = shared_cache()
    cells = tree_data(cache)["cells"]
    trunk = [cell for cell in cells if len(cell["marks"]) == 4]
    assert [(cell["column"], cell["row"], cell["rows"]) for cell in trunk] == [(1, 1, 4), (2, 1, 4)]
    own = [cell for cell in cells if len(cell["marks"]) == 1]
    assert [(cell["column"], cell["row"], cell["rows"]) for cell in own] == [(3, row, 1) for row in (1, 2, 3, 4)]
    assert [cell["marks"][0]["label"] for cell in own] == ["A", "B", "C", "D"]
    (other,) = [cell for cell in cells if not cell["marks"]]
    assert (other["column"], other["row"], other["number"]) == (1, 5, 1)
    assert len({mark["colour"] for mark in trunk[0]["marks"]}) == len(marks)


def test_the_map_shows_who_uses_each_block() -> None:
    cache, marks = shared_cache()
    drawn = tree_data(cache)["map"]
    assert drawn.count("shared") == 2 and drawn.count("") == 1
    assert {palette.REQUESTS[mark.colour] for mark in marks} == set(drawn) - {"shared", ""}


def test_hashes_reach_the_browser_whole() -> None:
    tree = BlockTree()
    big, raw = 2**64 - 1, bytes(range(32))
    tree.apply(BlockStored((big,), None, array("i", [1]), 1), 0, 0.0)
    tree.apply(BlockStored((raw,), None, array("i", [1]), 1), 1, 0.0)
    cells = lay_out(shown_chains(tree, MarkBook(), lambda key: None, 8))
    cache, _ = shared_cache(chains=shown_chains(tree, MarkBook(), lambda key: None, 8))
    assert len(cells) == 2
    assert {cell["id"] for cell in tree_data(cache)["cells"]} == {f"0.0.{big:x}", f"1.0.{raw.hex()}"}


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 7, 50, 1000])
def test_however_long_a_chain_is_it_fits_and_every_block_is_drawn_or_counted(length: int) -> None:
    tree = BlockTree()
    tree.apply(BlockStored(tuple(range(length)), None, array("i", range(length)), 1), 0, 0.0)
    tree.apply(BlockStored(tuple(range(2000, 2000 + length)), 0, array("i", range(length)), 1), 0, 0.0)
    cells = lay_out(shown_chains(tree, MarkBook(), lambda key: None, 8))
    assert max(cell.column for cell in cells) < MOST_COLUMNS
    drawn = sum(not cell.hidden for cell in cells) + sum(cell.hidden for cell in cells)
    assert drawn == 2 * length


def test_markup_in_a_prompt_is_only_data() -> None:
    cache, _ = shared_cache(words=HOSTILE)
    assert all(HOSTILE in cell["words"] for cell in tree_data(cache)["cells"])


@pytest.mark.parametrize(
    ("passed_s", "words"), [(-1.0, "0 s ago"), (0.9, "0 s ago"), (89, "89 s ago"), (125, "2 min ago")]
)
def test_when_something_happened(passed_s: float, words: str) -> None:
    assert ago(passed_s) == words
