"""The pure parts of the screen: numbers as text, our own markup, colours, figures, and the race's data."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from streamlit.testing.v1 import AppTest

from components import figures, html, palette, results
from components import format as fmt
from components.race import race_data
from engine.compare_results import (
    ENGINE_LABELS,
    CompareResults,
    CompareSnapshot,
    CompareState,
    EngineResult,
    Lane,
    LaneState,
    Level,
    Mode,
)
from engine.config import CompareConfig

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 30
MARKUP = "<script>x</script> \" ' &amp;"

# -- format


@pytest.mark.parametrize(
    "show",
    [fmt.number, fmt.short, fmt.speed, fmt.millis, fmt.seconds, fmt.ratio, fmt.percent, fmt.size, fmt.moment],
)
def test_unknown_is_a_dash(show: object) -> None:
    assert show(None) == "—"  # type: ignore[operator]
    assert fmt.with_unit(None, "tok/s") == "—"
    assert fmt.number(None, 2) == "—"


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (fmt.number(0), "0"),
        (fmt.number(1234.5), "1,234"),
        (fmt.number(45.51, 1), "45.5"),
        (fmt.short(0.834), "0.83"),
        (fmt.short(8.34), "8.3"),
        (fmt.short(83.4), "83"),
        (fmt.short(1234), "1,234"),
        (fmt.short(-8.34), "-8.3"),
        (fmt.with_unit(8.34, "GB"), "8.3 GB"),
        (fmt.speed(102.4), "102 tok/s"),
        (fmt.millis(0), "0.0 ms"),
        (fmt.millis(12.34), "12.3 ms"),
        (fmt.millis(123.4), "123 ms"),
        (fmt.millis(1234), "1.2 s"),
        (fmt.seconds(0.834), "0.83 s"),
        (fmt.seconds(8.34), "8.3 s"),
        (fmt.seconds(42.4), "42 s"),
        (fmt.seconds(125.9), "2 min 05 s"),
        (fmt.roughly(1.0, 5.0), "a few seconds"),
        (fmt.roughly(42.4, 44.4), "about 40 s"),
        (fmt.roughly(31.0, 52.0), "30 to 50 s"),
        (fmt.roughly(0.0, 21.0), "up to 20 s"),
        (fmt.roughly(118.0, 125.0), "about 2 min"),
        (fmt.roughly(70.0, 200.0), "1 to 3 min"),
        (fmt.ratio(3.119), "3.1×"),
        (fmt.ratio(0.94), "0.9×"),
        (fmt.ratio(123.4), "123×"),
        (fmt.percent(0), "0%"),
        (fmt.percent(0.034), "3.4%"),
        (fmt.percent(0.25), "25%"),
        (fmt.percent(1), "100%"),
        (fmt.size(512), "512 B"),
        (fmt.size(4096), "4.1 kB"),
        (fmt.size(269_060_552), "269 MB"),
        (fmt.size(1_234_567_890), "1.2 GB"),
    ],
)
def test_numbers_are_shown_as_people_read_them(shown: str, wanted: str) -> None:
    assert shown == wanted


@pytest.mark.parametrize(
    ("time", "wanted"),
    [
        ("2026-12-01T06:40:00+00:00", "1 Dec 2026, 06:40 UTC"),
        ("2026-12-01T06:40:59.123456Z", "1 Dec 2026, 06:40 UTC"),
        ("2026-12-01T06:40:00", "1 Dec 2026, 06:40 UTC"),
        ("2026-12-01T00:40:00+02:00", "30 Nov 2026, 22:40 UTC"),
        ("yesterday", "yesterday"),
        ("", "—"),
    ],
)
def test_moment_is_utc(time: str, wanted: str) -> None:
    assert fmt.moment(time) == wanted


def rendered(markdown: str) -> tuple[str, set[str]]:
    """Text and kinds of everything that a markdown reader makes of it."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    inner = [child for token in tokens for child in (token.children or [])]
    return "".join(child.content for child in inner), {token.type for token in (*tokens, *inner)}


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "**bold** _it_ ~~gone~~ `code`",
        "# 1. - + > | a | b |",
        "[link](http://x.org) ![i](x) <http://x.org>",
        "&amp; &#35; \\ \\*",
        "max_model_len=20480 (65536 > 20480)",
    ],
)
def test_plain_text_stays_text_in_markdown(text: str) -> None:
    assert rendered(fmt.plain(text)) == (text, {"paragraph_open", "inline", "paragraph_close", "text"})


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], include_characters=" \n\r")))
def test_any_text_stays_one_paragraph_of_text(text: str) -> None:
    found, kinds = rendered(fmt.plain(f"x{text}x"))
    assert kinds == {"paragraph_open", "inline", "paragraph_close", "text"}
    assert found == "x" + re.sub("[\r\n]+", " ", text) + "x"


@pytest.mark.parametrize("mark", ["$x$", ":red[x]", ":material/home:", ":smile:", "$$x$$"])
def test_every_mark_of_streamlits_own_markdown_is_escaped(mark: str) -> None:
    escaped = fmt.plain(mark)
    assert not re.search(r"(?<!\\)[$:\[\]]", escaped)
    assert escaped.replace("\\", "") == mark


def test_plain_takes_what_is_no_text() -> None:
    assert fmt.plain(None) == "None"
    assert fmt.plain(3) == "3"


# -- html


def bodies(script: object) -> str:
    """What a script wrote with ``st.html``."""
    at = AppTest.from_function(script, default_timeout=TIMEOUT_S).run()  # type: ignore[arg-type]
    assert not at.exception
    return "\n".join(node.proto.body for node in at.get("html"))


def test_no_text_becomes_markup_in_our_html() -> None:
    def script() -> None:
        from components import html

        text = "<script>x</script> \" ' &amp;"
        html.eyebrow(text)
        html.hero(text, text, text, text, [(text, 1.0, text, text)])
        html.bars([(text, 1.0, text, text)])
        html.table([text], [[text, text]])
        html.facts([(text, text, text)])

    body = bodies(script)
    assert "<script" not in body
    assert body.count("&lt;script&gt;x&lt;/script&gt; &quot; &#x27; &amp;amp;") == 17
    assert not re.search(r'style="[^"]*[<>]', body)


def test_longest_bar_is_widest_and_an_unknown_one_has_no_length() -> None:
    def script() -> None:
        from components import html

        html.bars([("a", 25.0, "25 tok/s", "#111"), ("b", 100.0, "100 tok/s", "#222"), ("c", None, "—", "#333")])

    body = bodies(script)
    assert re.findall(r"width:calc\(\(100% - (\d+)ch - 0.7rem\) \* ([\d.]+)\)", body) == [
        ("9", "0.2500"),
        ("9", "1.0000"),
        ("9", "0.0000"),
    ]
    assert "—" in body


def test_bars_without_any_value_are_drawn() -> None:
    def script() -> None:
        from components import html

        html.bars([("a", None, "—", "#111"), ("b", 0.0, "0 tok/s", "#222")])
        html.bars([])

    assert re.findall(r" \* ([\d.]+)\)", bodies(script)) == ["0.0000", "0.0000"]


@pytest.mark.parametrize(
    ("share", "width"), [(None, "0.0"), (0.0, "0.0"), (0.256, "25.6"), (1.0, "100.0"), (7.0, "100.0"), (-1.0, "0.0")]
)
def test_meter_stays_between_empty_and_full(share: float | None, width: str) -> None:
    assert f"width:{width}%" in html.meter(share)


# -- palette


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def themes() -> dict[str, dict[str, object]]:
    theme = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["theme"]
    return {name: theme[name] for name in ("light", "dark")}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("engine", palette.COLOURS)
def test_engine_colours_can_be_seen_on_both_backgrounds(engine: str, theme: str) -> None:
    assert contrast(palette.colour(engine), str(themes()[theme]["backgroundColor"])) >= 3


def test_every_engine_has_a_colour_and_a_name_of_its_own() -> None:
    assert len({*palette.COLOURS.values(), palette.NEUTRAL}) == len(palette.COLOURS) + 1
    assert set(palette.COLOURS) == set(ENGINE_LABELS)
    assert [palette.name(engine) for engine in palette.COLOURS] == [ENGINE_LABELS[engine] for engine in palette.COLOURS]


def test_charts_of_the_theme_use_the_engines_colours() -> None:
    ours = list(palette.COLOURS.values())
    for theme in themes().values():
        assert theme["chartCategoricalColors"][: len(ours)] == ours  # type: ignore[index]


def test_an_engine_without_a_look_is_grey_under_its_own_name() -> None:
    assert (palette.colour("sglang"), palette.name("sglang")) == (palette.NEUTRAL, "sglang")
    assert (palette.colour("hf"), palette.name("hf")) == ("#DB6B0B", "Hugging Face")


# -- figures

LEVELS = (
    Level(5, Mode.SEQUENTIAL, "hf", 33.0, (32.0, 34.0)),
    Level(1, Mode.SEQUENTIAL, "hf", 32.0, (31.0, 33.5)),
    Level(1, Mode.CONCURRENT, "vllm", 102.0, (98.0, 104.0)),
    Level(5, Mode.CONCURRENT, "vllm", 330.0),
    Level(5, Mode.STATIC_BATCH, "hf"),
)


def test_levels_are_one_line_for_each_engine_and_mode_in_order_of_users() -> None:
    lines = {line.name: line for line in figures.levels_figure(LEVELS).data}
    assert list(lines) == ["Hugging Face, one after another", "vLLM, all at once", "Hugging Face, one static batch"]
    assert list(lines["Hugging Face, one after another"].x) == [1, 5]
    assert list(lines["Hugging Face, one after another"].y) == [32.0, 33.0]
    assert lines["vLLM, all at once"].line.color == palette.colour("vllm")
    assert lines["Hugging Face, one static batch"].line.dash == "dash"


def test_an_unknown_throughput_is_no_point() -> None:
    (batch,) = [line for line in figures.levels_figure(LEVELS).data if "static" in line.name]
    assert (list(batch.x), list(batch.y)) == ([], [])
    assert "static batch" not in figures.levels_alt(LEVELS)


def test_spread_is_drawn_where_every_point_of_a_line_has_one() -> None:
    lines = {line.name: line for line in figures.levels_figure(LEVELS).data}
    spread = lines["Hugging Face, one after another"].error_y
    assert (list(spread.array), list(spread.arrayminus)) == ([1.5, 1.0], [1.0, 1.0])
    assert lines["vLLM, all at once"].error_y.array is None


@pytest.mark.parametrize(
    ("figure", "x", "y"),
    [
        (figures.levels_figure(LEVELS), "Users at the same time", "Throughput (tok/s)"),
        (figures.levels_figure(()), "Users at the same time", "Throughput (tok/s)"),
        (figures.gaps_figure((10.0,)), "Chunk of the answer", "Gap before it (ms)"),
    ],
)
def test_every_axis_has_a_title_with_its_unit(figure: object, x: str, y: str) -> None:
    layout = figure.layout  # type: ignore[attr-defined]
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == (x, y)
    assert layout.yaxis.rangemode == "tozero"


def test_gaps_begin_before_the_second_chunk() -> None:
    (bars,) = figures.gaps_figure((10.0, 12.5)).data
    assert (list(bars.x), list(bars.y)) == ([2, 3], [10.0, 12.5])


def test_charts_are_told_in_words() -> None:
    assert "vLLM, all at once, 5 users: 330 tok/s" in figures.levels_alt(LEVELS)
    assert "Hugging Face, one after another, 1 user: 32 tok/s" in figures.levels_alt(LEVELS)
    assert figures.gaps_alt((30.0, 10.0, 12.5)) == ("3 gaps between chunks, middle one 12.5 ms, longest 30.0 ms.")
    assert figures.gaps_alt(()) == "No gaps between chunks yet."


def test_engines_come_in_the_same_order_whatever_was_measured_first() -> None:
    both = CompareResults(engines={"vllm": EngineResult(throughput_tok_s=100.0), "hf": EngineResult()})
    assert [(name, value, text) for name, value, text, _ in results.speed_rows(both)] == [
        ("Hugging Face", None, "—"),
        ("vLLM", 100.0, "100 tok/s"),
    ]


def test_a_spread_of_one_repeat_is_not_shown() -> None:
    one = CompareResults(engines={"hf": EngineResult(throughput_tok_s=32.0, spread=(32.0, 32.0))})
    several = CompareResults(engines={"hf": EngineResult(throughput_tok_s=32.0, spread=(31.0, 33.0))})
    assert [row[2] for row in (*results.speed_rows(one), *results.speed_rows(several))] == [
        "32 tok/s",
        "32 tok/s   (31 to 33)",
    ]


@pytest.mark.parametrize(
    ("hf", "vllm", "overlap"),
    [
        ((18.0, 24.0), (9.2, 18.5), True),
        ((9.2, 18.5), (18.0, 24.0), True),
        ((18.0, 24.0), (24.5, 30.0), False),
        ((18.0, 24.0), (17.0, 30.0), True),
        (None, (17.0, 30.0), False),
    ],
)
def test_ranges_that_overlap_are_no_clear_difference(
    hf: tuple[float, float] | None, vllm: tuple[float, float], overlap: bool
) -> None:
    found = CompareResults(engines={"hf": EngineResult(spread=hf), "vllm": EngineResult(spread=vllm)})
    assert results.ranges_overlap(found) is overlap


# -- the race

HF_PIECES = ((0.5, "The "), (1.0, "sky "), (2.0, "is."))
VLLM_PIECES = ((0.1, "The "), (0.4, "sky."))
HF_DONE = Lane("hf", "Hugging Face", LaneState.DONE, HF_PIECES, 2.0)
VLLM_DONE = Lane("vllm", "vLLM", LaneState.DONE, VLLM_PIECES, 0.4)
VLLM_RUNNING = replace(VLLM_DONE, state=LaneState.RUNNING, text_pieces=VLLM_PIECES[:1], elapsed_s=0.1)
WAITING = Lane("vllm", "vLLM")


def raced(state: CompareState, *lanes: Lane, tokens: int | None = 40) -> dict[str, object]:
    """Data for the browser; always something that JSON can carry."""
    config = CompareConfig(max_tokens=tokens) if tokens else None
    data = race_data(CompareSnapshot(state, config=config, lanes=lanes))
    return json.loads(json.dumps(data, allow_nan=False))


def lane(data: dict[str, object], number: int) -> dict[str, object]:
    return data["lanes"][number]  # type: ignore[index, no-any-return]


def test_before_the_race_there_is_nothing_to_replay() -> None:
    data = raced(CompareState.IDLE)
    assert (data["replay"], data["autoplay"], data["lanes"]) == (False, False, [])


def test_a_lane_that_is_measured_ticks_and_the_other_waits() -> None:
    running = replace(HF_DONE, state=LaneState.RUNNING, text_pieces=HF_PIECES[:1], elapsed_s=0.5)
    data = raced(CompareState.RUNNING, running, WAITING)
    assert data["replay"] is False
    assert lane(data, 0) == {
        "label": "Hugging Face",
        "colour": palette.colour("hf"),
        "state": "running",
        "pieces": [[0.5, "The "]],
        "clock": 0.5,
        "ticking": True,
        "follow": False,
        "note": "Measuring now",
        "rate": "",
        "finished": "Finished: repeat 3 of 3",
        "total": 40,
    }
    assert (lane(data, 1)["ticking"], lane(data, 1)["note"]) == (False, "Waiting for its turn")


def test_while_vllm_is_measured_the_other_lane_replays_on_its_clock() -> None:
    data = raced(CompareState.RUNNING, HF_DONE, VLLM_RUNNING)
    hf = lane(data, 0)
    assert (hf["follow"], hf["ticking"], hf["clock"]) == (True, True, 0.1)
    assert hf["note"] == "Replay at its measured pace"
    assert hf["pieces"] == [[0.5, "The "], [1.0, "sky "], [2.0, "is."]]


def test_after_the_race_both_are_replayed_with_their_rates() -> None:
    data = raced(CompareState.DONE, HF_DONE, VLLM_DONE)
    assert (data["replay"], data["autoplay"]) == (True, True)
    assert [lane(data, i)["rate"] for i in (0, 1)] == ["20 tok/s", "100 tok/s"]
    assert [lane(data, i)["ticking"] for i in (0, 1)] == [False, False]


def test_a_replay_says_how_it_was_recorded_and_which_repeat_it_is() -> None:
    data = raced(CompareState.DONE, HF_DONE, VLLM_DONE)
    assert "Recorded one after the other, shown here as if started together: repeat 3 of 3." in str(data["footer"])
    assert "median of all 3" in str(data["footer"])
    assert lane(data, 1)["finished"] == "Finished: repeat 3 of 3"
    once = race_data(CompareSnapshot(CompareState.DONE, config=CompareConfig(repeats=1), lanes=(HF_DONE, VLLM_DONE)))
    assert "median" not in once["footer"] and once["lanes"][0]["finished"] == "Finished"


def test_the_lane_of_an_attached_server_is_named_so() -> None:
    found = CompareResults(engines={}, context={"model": "owner/name"})
    data = race_data(CompareSnapshot(CompareState.DONE, lanes=(HF_DONE, VLLM_DONE), results=found))
    assert [lane(data, i)["label"] for i in (0, 1)] == ["Hugging Face", "Attached server"]


@pytest.mark.parametrize("state", [CompareState.CANCELLED, CompareState.FAILED])
@pytest.mark.parametrize("reached", [LaneState.LOADING, LaneState.WARMING, LaneState.RUNNING])
def test_an_answer_that_was_not_complete_has_no_rate_no_clock_and_no_replay(
    state: CompareState, reached: LaneState
) -> None:
    data = raced(state, HF_DONE, replace(VLLM_RUNNING, state=reached))
    assert data["replay"] is False
    half = lane(data, 1)
    assert (half["rate"], half["ticking"]) == ("", False)
    assert half["note"] == "Ended before the answer was complete"
    assert lane(data, 0)["rate"] == "20 tok/s"


def test_a_lane_that_never_began_is_not_said_to_wait_any_longer() -> None:
    data = raced(CompareState.CANCELLED, HF_DONE, WAITING)
    assert lane(data, 1)["note"] == "Not measured"


@pytest.mark.parametrize(("state", "note"), [(LaneState.FAILED, "Failed"), (LaneState.CANCELLED, "Cancelled")])
def test_a_lane_says_how_it_ended(state: LaneState, note: str) -> None:
    data = raced(CompareState.FAILED, HF_DONE, replace(WAITING, state=state))
    assert lane(data, 1)["note"] == note
    assert data["replay"] is False


def test_only_the_two_engines_of_the_race_have_a_lane() -> None:
    eager = Lane("vllm_eager", "vLLM (eager)", LaneState.DONE, VLLM_PIECES, 0.4)
    data = raced(CompareState.DONE, HF_DONE, eager, VLLM_DONE)
    assert [lane(data, i)["label"] for i in range(2)] == ["Hugging Face", "vLLM"]
    assert len(data["lanes"]) == 2  # type: ignore[arg-type]


def test_without_the_number_of_tokens_there_is_no_rate() -> None:
    data = raced(CompareState.DONE, HF_DONE, VLLM_DONE, tokens=None)
    assert [lane(data, i)["rate"] for i in (0, 1)] == ["", ""]
    assert lane(data, 0)["total"] == 3


def test_an_answer_at_time_zero_has_no_rate() -> None:
    data = raced(CompareState.DONE, replace(HF_DONE, text_pieces=((0.0, "x"),), elapsed_s=0.0))
    assert lane(data, 0)["rate"] == ""


def test_markup_in_an_answer_is_handed_over_as_it_is() -> None:
    data = raced(CompareState.DONE, replace(HF_DONE, text_pieces=((1.0, MARKUP),)))
    assert lane(data, 0)["pieces"] == [[1.0, MARKUP]]
    assert "innerHTML" not in (ROOT / "components" / "race.js").read_text()
