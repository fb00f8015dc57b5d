"""The pieces of the page of live blocks: the numbers, the notices, what happened, and the four requests."""

from __future__ import annotations

import time
from html import escape

import streamlit as st

from components import html
from components.block_tree import block_tree
from components.block_tree.layout import colour
from components.format import UNKNOWN, millis, number, percent, plain
from engine.kv.live.follow import Cache, Line, What
from engine.kv.live.marks import Mark
from engine.kv.live.sharing import Sent, SharingSnapshot, State
from engine.kv.live.watch import BlocksSnapshot

LINES = 8


def numbers(now: BlocksSnapshot) -> None:
    cache, metrics = now.cache, now.metrics
    usage = metrics.kv_cache_usage if metrics else None
    used = f"{number(now.used_blocks)} of {number(now.total_blocks)}" if now.used_blocks is not None else UNKNOWN
    size = f" of {cache.block_size} tokens" if cache and cache.block_size else ""
    facts = [
        ("In use now", used, f"KV blocks, {percent(usage)}"),
        ("Cached for reuse", number(cache.blocks if cache else None), f"blocks{size}"),
        ("Prefix-hit rate", percent(now.prefix_hit_rate), "of all prompt tokens"),
        ("Preemptions", number(metrics.preemptions if metrics else None), "for want of blocks"),
        ("Evicted", number(cache.removed if cache else None), "blocks, taken for others"),
    ]
    with st.container(key="blocks_numbers"):
        html.facts(facts)


def tree(cache: Cache) -> None:
    _doubts(cache)
    block_tree(cache, key="blocks_tree")


def events(cache: Cache) -> None:
    """What happened last, the newest first."""
    html.eyebrow("As it happens")
    lines = list(cache.lines)[-LINES:][::-1]
    rows = "".join(_line_html(line, time.time()) for line in lines) or "<div>Nothing yet.</div>"
    st.html(f'<div class="lab-events">{rows}</div>')


def four(shared: SharingSnapshot, marks: tuple[Mark, ...]) -> None:
    """The four requests and what the server says that it found for each."""
    html.eyebrow("The four requests")
    if shared.state == State.IDLE:
        st.markdown("The same system prompt, four questions, sent at once. Press it again, and see what is found.")
        return
    chips = {mark.label: _chip(mark) for mark in marks}
    rows = "".join(_sent_html(one, chips.get(one.label, escape(one.label))) for one in shared.sent)
    head = "<tr><th></th><th>Question</th><th>Found in the cache</th><th>TTFT</th></tr>"
    st.html(f'<table class="lab-table"><thead>{head}</thead><tbody>{rows}</tbody></table>')
    failed = next((one.trace for one in shared.sent if one.trace and not one.trace.ok), None)
    if failed is not None:
        st.error(plain(str(failed.failure())), icon=":material/error:")


def paused(now: BlocksSnapshot) -> None:
    if now.server.reserved:
        waits = "The numbers of /metrics and the words in new blocks wait until it is over."
        st.info(f"{plain(now.server.reserved)} {waits}", icon=":material/timer:")


def _doubts(cache: Cache) -> None:
    counts = cache.counts
    if counts.missed or counts.restarts:
        lost = f"{counted(counts.missed, 'message was', 'messages were')} lost"
        cause = lost if counts.missed else "The server's stream of events began again"
        st.warning(f"{cause}: the tree may lack blocks, or show some that are gone.", icon=":material/warning:")
    if counts.malformed:
        st.warning(f"{counted(counts.malformed, 'message', 'messages')} could not be read.", icon=":material/warning:")
    if cache.forgotten:
        what = counted(cache.forgotten, "older block is", "older blocks are")
        st.warning(f"{what} not followed any more: there are too many.", icon=":material/warning:")


def notes(cache: Cache) -> None:
    replayed = cache.counts.replayed
    mended = f" {counted(replayed, 'lost message was', 'lost messages were')} asked for again and came."
    st.caption(
        "Blocks, order and letters are the server's own KV events. They tell which blocks can be found by their hash; "
        "which of them a request holds at this moment they don't tell, so “in use now” is read from /metrics. A block "
        "is cached when it is full, and stays until another needs its place. One block of every vLLM server (the null "
        "block) holds no tokens and is left out here." + (mended if replayed else "")
    )


def counted(count: int, one: str, many: str) -> str:
    return f"{number(count)} {one if count == 1 else many}"


def ago(passed_s: float) -> str:
    whole = max(0, int(passed_s))
    return f"{whole} s ago" if whole < 90 else f"{whole // 60} min ago"


def _line_html(line: Line, now_s: float) -> str:
    when = ago(now_s - line.unix_s) if line.unix_s else ""
    return f'<div>{_happened(line)} <span class="lab-event-time">{when}</span></div>'


def _happened(line: Line) -> str:
    blocks = counted(line.blocks, "block", "blocks")
    who = _chip(line.mark) if line.mark else "Others"
    return {
        What.STORED: f"{who} stored {blocks}",
        What.FOUND: f"{who} <b>found {blocks}</b> in the cache",
        What.REMOVED: f"{blocks} evicted",
        What.CLEARED: "The cache was reset",
        What.RESTARTED: "The stream began again",
    }[What(str(line.what))]


def _sent_html(one: Sent, chip: str) -> str:
    trace = one.trace
    found = UNKNOWN
    if trace and trace.cached_tokens is not None and trace.prompt_tokens:
        found = f"{trace.cached_tokens:,} of {trace.prompt_tokens:,} tokens"
    ttft = millis(trace.ttft_ms) if trace else "…"
    cells = (escape(one.question), found if trace else "…", ttft)
    return f"<tr><th scope='row'>{chip}</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _chip(mark: Mark) -> str:
    return f'<span class="lab-mark" style="background:{escape(colour(mark))}">{escape(mark.label)}</span>'
