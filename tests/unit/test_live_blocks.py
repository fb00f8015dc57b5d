"""The live cache with a server's life, for those who look at it, and the four requests that share a beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.chat import ChatOptions, ChatRegistry
from engine.config import ServerConfig
from engine.errors import AlreadyRunning, ConfigError, LabError
from engine.kv.live import watch
from engine.kv.live.chains import Segment
from engine.kv.live.follow import CACHING_OFF, NO_SERVER, TOO_OLD, Cache, Line, LiveBlocks, What
from engine.kv.live.sharing import QUESTIONS, SYSTEM, State
from engine.kv.live.watch import BlockWatch
from engine.kv.live.words import WordBook
from engine.server.state import ServerSnapshot, ServerState
from tests.fake_openai import FakeOpenAI, Script
from tests.kv_publisher import CLEARED, Publisher, removed, stored
from tests.supervised import Lab, eventually

METRICS = """\
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:num_preemptions_total{engine="0"} 3.0
vllm:prefix_cache_queries_total{engine="0"} 400.0
vllm:prefix_cache_hits_total{engine="0"} 100.0
vllm:cache_config_info{block_size="4",num_gpu_blocks="101"} 1.0
"""


@pytest.fixture
def live() -> Iterator[LiveBlocks]:
    made = LiveBlocks()
    yield made
    made.close()


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(Script(tokens=3, gap_s=0.0, cached=5)) as opened:
        opened.metrics_text = METRICS
        yield opened


class Watched:
    """A watch over a server whose state the test sets."""

    def __init__(self, live: LiveBlocks, fake: FakeOpenAI) -> None:
        self.server = ServerSnapshot(state=ServerState.READY, generation=1, endpoint=fake.endpoint())
        self.refusal: LabError | None = None
        self.watch = BlockWatch(live, lambda: self.server, self._before)

    def _before(self) -> None:
        if self.refusal:
            raise self.refusal


@pytest.fixture
def watched(live: LiveBlocks, fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(watch, "EVERY_S", 0.02)
    made = Watched(live, fake)
    yield made
    made.watch.close()


def option_of(live: LiveBlocks, config: ServerConfig | None = None) -> str:
    option = live.open(config or ServerConfig())
    assert option is not None
    return option


def cache_of(live: LiveBlocks) -> Cache:
    cache = live.cache(lambda key: None, 8)
    assert cache is not None
    return cache


def wait_for_blocks(live: LiveBlocks, blocks: int) -> Cache:
    eventually(lambda: cache_of(live).blocks == blocks)
    return cache_of(live)


def words(segments: tuple[Segment, ...]) -> list[str | None]:
    return [block.words for one in segments for block in one.blocks] + [w for s in segments for w in words(s.children)]


# -- with a server's life


def test_without_a_server_there_is_nothing_and_a_reason(live: LiveBlocks) -> None:
    assert (live.cache(lambda key: None, 8), live.missing, live.chat_fields("Why?")) == (None, NO_SERVER, {})


@pytest.mark.parametrize(
    ("supported", "config", "reason"),
    [
        (False, ServerConfig(), TOO_OLD),
        (True, ServerConfig(enable_prefix_caching=False), CACHING_OFF),
    ],
)
def test_a_server_that_can_not_tell_is_not_asked_to(supported: bool, config: ServerConfig, reason: str) -> None:
    live = LiveBlocks(supported=lambda: supported)
    assert live.open(config) is None
    assert (live.missing, live.cache(lambda key: None, 8)) == (reason, None)


def test_a_server_starts_although_no_port_can_be_had(live: LiveBlocks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise ConfigError("No port for KV events can be had.", "Free some ports.")

    monkeypatch.setattr("engine.kv.live.follow.EventFeed", refused)
    assert live.open(ServerConfig()) is None
    assert "No port" in live.missing


def test_a_restart_begins_with_an_empty_tree(live: LiveBlocks) -> None:
    with Publisher(option_of(live)) as publisher:
        publisher.send(stored([1, 2]))
        wait_for_blocks(live, 2)
    live.chat_fields("Why?")
    live.close()
    assert live.missing == NO_SERVER
    option_of(live)
    again = cache_of(live)
    assert (again.blocks, again.stored, again.lines, again.marks, again.block_size) == (0, 0, (), (), None)
    assert again.counts.batches == 0


def test_what_happens_is_told_line_by_line(live: LiveBlocks) -> None:
    with Publisher(option_of(live)) as publisher:
        session = live.chat_fields("Why?")["session_id"]
        publisher.send(stored([1, 2]), unix_s=1.0)
        publisher.send(stored([1, 2], session_id=session), stored([3], 2, session_id=session), unix_s=2.0)
        publisher.send(removed(3), removed(2), unix_s=3.0)
        publisher.send(CLEARED, unix_s=4.0)
        eventually(lambda: cache_of(live).cleared)
    lines = cache_of(live).lines
    (mark,) = cache_of(live).marks
    assert lines == (
        Line(1.0, What.STORED, 2),
        Line(2.0, What.FOUND, 2, mark),
        Line(2.0, What.STORED, 1, mark),
        Line(3.0, What.REMOVED, 2),  # vLLM sends one event for each
        Line(4.0, What.CLEARED, 0),
    )


def test_an_answer_that_goes_on_is_one_line_and_what_others_do_one_a_second(live: LiveBlocks) -> None:
    with Publisher(option_of(live)) as publisher:
        session = live.chat_fields("Why?")["session_id"]
        publisher.send(stored([1], session_id=session), unix_s=1.0)
        publisher.send(stored([2]), unix_s=2.1)
        publisher.send(stored([3]), unix_s=2.9)
        publisher.send(stored([4]), unix_s=3.0)
        publisher.send(stored([5, 6], 1, session_id=session), unix_s=9.0)
        cache = wait_for_blocks(live, 6)
    assert cache.lines == (
        Line(2.9, What.STORED, 2),
        Line(3.0, What.STORED, 1),
        Line(9.0, What.STORED, 3, cache.marks[0]),
    )


def test_a_publisher_that_begins_again_empties_the_tree(live: LiveBlocks) -> None:
    with Publisher(option_of(live)) as publisher:
        publisher.send(stored([1, 2]))
        publisher.send(stored([3]))
        publisher.begin_again()
        publisher.send(stored([4]))
        eventually(lambda: cache_of(live).counts.restarts)
        cache = wait_for_blocks(live, 1)
    assert What.RESTARTED in [line.what for line in cache.lines]


def test_two_requests_with_one_beginning_share_its_blocks(live: LiveBlocks) -> None:
    with Publisher(option_of(live)) as publisher:
        first, second = (live.chat_fields(text)["session_id"] for text in ("Why?", "Why not?"))
        publisher.send(stored([1, 2, 3], session_id=first))
        publisher.send(stored([1, 2], session_id=second), stored([4], 2, session_id=second))
        (trunk,) = wait_for_blocks(live, 4).chains
    assert [[mark.title for mark in block.marks] for block in trunk.blocks] == [["Why?", "Why not?"]] * 2
    assert [child.blocks[0].marks[0].label for child in trunk.children] == ["1", "2"]


def test_chat_turns_are_marked_where_somebody_listens(live: LiveBlocks, fake: FakeOpenAI) -> None:
    session = ChatRegistry(extra_fields=live.chat_fields).get("one")
    session.send(fake.endpoint(), "Why is the sky blue?", ChatOptions(max_tokens=3))
    assert session.wait(30)
    option_of(live)
    session.send(fake.endpoint(), "And the sea?", ChatOptions(max_tokens=3))
    assert session.wait(30)
    first, second = (sent.body for sent in fake.sent)
    assert "session_id" not in first and "vllm_xargs" not in first
    (mark,) = cache_of(live).marks
    assert (mark.label, mark.title) == ("1", "And the sea?")
    assert {name: second[name] for name in mark.request_fields} == mark.request_fields


# -- for those who look


def test_looking_brings_metrics_and_the_words_of_what_is_shown(
    live: LiveBlocks, watched: Watched, fake: FakeOpenAI
) -> None:
    with Publisher(option_of(live)) as publisher:
        publisher.send(stored([1, 2]))
        wait_for_blocks(live, 2)
        eventually(lambda: (look := watched.watch.look()).cache and None not in words(look.cache.chains))
        now = watched.watch.look()
    assert now.cache is not None
    assert words(now.cache.chains) == ["w100 w101 w102 w103", "w200 w201 w202 w203"]
    assert (now.total_blocks, now.used_blocks, now.prefix_hit_rate) == (100, 25, 0.25)  # one block is vLLM's own
    assert now.metrics is not None and now.metrics.preemptions == 3
    assert len(fake.detokenized) == 2  # each once, however often somebody looked


def test_a_server_without_detokenize_is_asked_once(live: LiveBlocks, watched: Watched, fake: FakeOpenAI) -> None:
    fake.has_tokenize = False
    with Publisher(option_of(live)) as publisher:
        publisher.send(stored([1, 2]))
        wait_for_blocks(live, 2)
        eventually(lambda: watched.watch.look().metrics)
        eventually(lambda: not watched.watch._tells_words)
        now = watched.watch.look()
    assert now.cache is not None and words(now.cache.chains) == [None, None]


def test_nothing_is_asked_while_something_is_measured(live: LiveBlocks, watched: Watched, fake: FakeOpenAI) -> None:
    watched.server = replace(watched.server, reserved="A comparison is being measured.")
    with Publisher(option_of(live)) as publisher:
        publisher.send(stored([1]))
        wait_for_blocks(live, 1)
        now = watched.watch.look()
        assert watched.watch._thread is not None
        watched.watch.close()
    assert now.cache is not None and now.cache.blocks == 1  # events cost the server nothing more
    assert (now.metrics, fake.detokenized) == (None, [])


def test_numbers_from_before_a_measurement_are_not_shown_as_now(live: LiveBlocks, watched: Watched) -> None:
    eventually(lambda: watched.watch.look().metrics)
    watched.server = replace(watched.server, reserved="A comparison is being measured.")
    assert watched.watch.look().used_blocks is None


def test_nobody_asks_when_nobody_looks(live: LiveBlocks, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_LASTS_S", 0.05)
    watched.watch.look()
    eventually(lambda: watched.watch._thread is None)
    watched.watch.look()
    assert watched.watch._thread is not None


def test_an_attached_server_has_usage_only(live: LiveBlocks, watched: Watched) -> None:
    watched.server = replace(watched.server, attached=True)
    eventually(lambda: watched.watch.look().metrics)
    now = watched.watch.look()
    assert (now.cache, now.missing, now.used_blocks) == (None, watch.ATTACHED, 25)


def test_what_is_known_of_a_server_ends_with_it(live: LiveBlocks, watched: Watched, fake: FakeOpenAI) -> None:
    eventually(lambda: watched.watch.look().metrics)
    fake.metrics_text = ""
    watched.server = replace(watched.server, generation=2)
    eventually(lambda: watched.watch.look().used_blocks is None)
    watched.server = replace(watched.server, state=ServerState.STOPPED)
    now = watched.watch.look()
    assert (now.cache, now.metrics, now.total_blocks, now.prefix_hit_rate) == (None, None, None, None)


def test_words_are_forgotten_when_there_are_many() -> None:
    book = WordBook(most=2)
    for number in range(3):
        book.put((0, 0, number), str(number))
    assert [book.get((0, 0, number)) for number in range(3)] == [None, "1", "2"]


# -- the four requests


def test_the_four_share_a_system_prompt_and_say_who_they_are(
    live: LiveBlocks, watched: Watched, fake: FakeOpenAI
) -> None:
    option_of(live)
    watched.watch.send_four()
    eventually(lambda: watched.watch.look().four.state == State.DONE)
    bodies = [sent.body for sent in fake.sent]
    assert {body["messages"][0]["content"] for body in bodies} == {SYSTEM}
    assert {body["messages"][1]["content"] for body in bodies} == {question for _, question in QUESTIONS}
    assert len({body["session_id"] for body in bodies}) == 4
    assert all(body["vllm_xargs"] == {"kv_cache_report_mode": "full"} for body in bodies)
    assert fake.most_active == 4
    sent = watched.watch.look().four.sent
    assert [one.label for one in sent] == ["A", "B", "C", "D"]
    assert all(one.trace and one.trace.ok and one.trace.cached_tokens == 5 for one in sent)
    assert [mark.label for mark in cache_of(live).marks] == ["A", "B", "C", "D"]


def test_the_four_are_sent_once_at_a_time(live: LiveBlocks, watched: Watched, fake: FakeOpenAI) -> None:
    fake.script = Script(end="hang")
    watched.watch.send_four()
    assert watched.watch.sending
    with pytest.raises(AlreadyRunning, match="on their way"):
        watched.watch.send_four()
    watched.watch.close()
    assert watched.watch.look().four.state == State.DONE


def test_what_one_server_found_is_not_shown_with_the_next(live: LiveBlocks, watched: Watched, fake: FakeOpenAI) -> None:
    watched.watch.send_four()
    eventually(lambda: watched.watch.look().four.state == State.DONE)
    watched.server = replace(watched.server, generation=2)
    assert watched.watch.look().four.state == State.IDLE
    watched.server = replace(watched.server, generation=3)
    watched.watch.send_four()  # before anybody has looked at this server
    eventually(lambda: watched.watch.look().four.state == State.DONE)


@pytest.mark.parametrize("way", ["reserved", "before", "stopped"])
def test_the_four_are_refused_with_the_reason(live: LiveBlocks, watched: Watched, fake: FakeOpenAI, way: str) -> None:
    if way == "reserved":
        watched.server = replace(watched.server, reserved="A comparison is being measured.")
    if way == "before":
        watched.refusal = AlreadyRunning("A comparison is being measured.", "Wait.")
    if way == "stopped":
        watched.server = replace(watched.server, state=ServerState.STOPPED, endpoint=None)
    with pytest.raises(LabError, match="not ready" if way == "stopped" else "being measured"):
        watched.watch.send_four()
    assert watched.watch.look().four.state == State.IDLE and fake.sent == []


def test_a_failure_of_all_four_is_in_their_traces(live: LiveBlocks, watched: Watched, fake: FakeOpenAI) -> None:
    fake.script = Script(status=500, body=b'{"error": {"message": "out of luck"}}', content_type="application/json")
    watched.watch.send_four()
    eventually(lambda: watched.watch.look().four.state == State.DONE)
    failures = [one.trace.failure() for one in watched.watch.look().four.sent if one.trace]
    assert len(failures) == 4 and all(failure and "out of luck" in str(failure) for failure in failures)


# -- with the supervisor


def test_the_blocks_of_a_supervised_server_are_followed_until_it_ends(lab: Lab, tmp_path: Path) -> None:
    live = LiveBlocks()
    supervisor = lab.open(events=live)
    supervisor.start(ServerConfig())
    ready = supervisor.wait_ready(30)
    cache = wait_for_blocks(live, 3)  # what the first token of the probe stored
    assert "--kv-events-config" in lab.launched[0].argv and "--kv-events-config" in ready.command
    assert cache.counts.complete and cache.block_size == 4
    supervisor.restart(ServerConfig(enable_prefix_caching=False))
    eventually(lambda: supervisor.snapshot().generation == 2 and supervisor.snapshot().ready)
    assert "--kv-events-config" not in lab.launched[1].argv
    assert (live.cache(lambda key: None, 8), live.missing) == (None, CACHING_OFF)
    supervisor.stop(wait=True)
    assert live.missing == NO_SERVER


def test_a_start_that_fails_gives_the_listener_back(lab: Lab) -> None:
    live = LiveBlocks()
    supervisor = lab.open(events=live)
    lab.words = ["--at", "weights", "--do", "die"]
    supervisor.start()
    eventually(lambda: supervisor.snapshot().state == ServerState.FAILED)
    assert (live.missing, live.cache(lambda key: None, 8)) == (NO_SERVER, None)
