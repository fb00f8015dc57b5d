"""Reports and comparisons: right numbers, nothing from outside as markup, unknown stays unknown."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from components import palette
from engine.errors import ConfigError
from engine.imports import read_runs
from engine.report import compare, cost, export, figures
from engine.report.page import plotly_script
from engine.report.points import points_of
from engine.report.spread import chance_pct, is_beyond_spread
from engine.report.table import to_csv
from engine.store import FORMULA_STARTS, run_to_json
from tests.reports import HOSTILE, chat_run, compare_run, guidellm_report, hostile, level, load_run

SLOW, FAST = (30.0, 31.0, 32.0), (40.0, 41.0, 42.0)
A, B = compare_run("20261201-100000-aaaa", SLOW), compare_run("20261201-110000-bbbb", FAST)


class Page(HTMLParser):
    """What a browser would see as elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def rows_of(comparison: Any, metric: str, point: str) -> Any:
    (row,) = [row for row in comparison.rows if row.metric == metric and row.point == point]
    return row


# -- comparing


def test_a_change_is_told_absolutely_relatively_and_against_the_spread() -> None:
    row = rows_of(compare([A, B]), "throughput_tok_s", "vLLM, one request")
    (change,) = row.changes
    assert row.values == (31.0, 41.0)
    assert change.absolute == 10.0
    assert change.relative_pct == pytest.approx(32.258, abs=0.001)
    assert change.beyond_spread is True
    assert change.chance_pct == 10.0
    same = rows_of(compare([A, B]), "throughput_tok_s", "Hugging Face, one request")
    assert same.changes[0].beyond_spread is False


def test_without_repeats_the_spread_is_unknown() -> None:
    pair = compare([load_run(), load_run("other", level(1, 60.0), level(10, 240.0))])
    change = rows_of(pair, "throughput_tok_s", "10 users").changes[0]
    assert (change.absolute, change.relative_pct, change.beyond_spread, change.chance_pct) == (120.0, 100.0, None, None)
    assert any("Nothing was repeated" in note for note in pair.notes)


@pytest.mark.parametrize(
    ("before", "after", "beyond", "chance"),
    [
        ((1.0, 2.0), (3.0, 4.0), True, 100 / 3),
        ((3.0, 4.0), (1.0, 2.0), True, 100 / 3),
        ((1.0, 3.0), (3.0, 4.0), False, 100 / 3),
        ((1.0,), (3.0, 4.0), None, None),
        ((), (), None, None),
    ],
)
def test_the_rule_of_the_spread(before: Any, after: Any, beyond: bool | None, chance: float | None) -> None:
    assert is_beyond_spread(before, after) is beyond
    assert chance_pct(before, after) == (None if chance is None else pytest.approx(chance))


def test_a_comparison_with_itself_differs_in_nothing() -> None:
    same = compare([A, replace(A, id="other")])
    assert same.differences == () and same.warnings == ()
    assert all(change.absolute == 0 for row in same.rows for change in row.changes)


def test_differences_come_with_the_setting_that_was_changed_first() -> None:
    config = load_run().config
    other = load_run("other", config=config | {"server": config["server"] | {"max_num_seqs": 8}})
    found = compare([load_run(), other]).differences
    assert [(one.name, one.values) for one in found] == [("config.server.max_num_seqs", ("32", "8"))]


def test_what_is_not_set_differs_and_what_is_not_said_does_not() -> None:
    config = load_run().config
    changed = config | {"server": config["server"] | {"max_num_batched_tokens": 4096}}
    found = compare([load_run(), load_run("b", config=changed), load_run("c", environment={}, config={})]).differences
    assert [(one.name, one.values) for one in found] == [
        ("config.server.max_num_batched_tokens", ("not set", "4096", None))
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environment": {"hardware": {"device": "cuda"}}}, "Hardware differs"),
        ({"environment": {}}, "Hardware: not known of run 2"),
        ({"model": {"model_id": "other"}}, "The model differs"),
        ({"config": {"prompt": "Other words"}}, "Prompts or lengths differ"),
        ({"status": "cancelled"}, "Run 2 is not whole"),
        ({"kind": "load", "results": load_run().results}, "different kinds of measurement"),
    ],
)
def test_what_makes_a_comparison_unfair_is_said(changes: dict[str, Any], words: str) -> None:
    warnings = compare([A, replace(A, id="other", **changes)]).warnings
    assert any(words in warning for warning in warnings), warnings


def test_a_foreign_run_is_compared_by_its_own_definitions_where_ours_has_them() -> None:
    (theirs,) = read_runs(json.dumps(guidellm_report()).encode(), "benchmarks.json")
    both = compare([load_run(), theirs])
    assert both.convention == "guidellm"
    assert rows_of(both, "throughput_tok_s", "1 user").values == (27.0, 100.0)
    assert rows_of(both, "tpot_p95_ms", "10 users").values == (20.0, 90.0)
    assert any("guidellm" in note for note in both.notes)


def test_runs_without_common_definitions_are_warned_of() -> None:
    (theirs,) = read_runs(json.dumps(guidellm_report()).encode(), "benchmarks.json")
    ours = load_run("ours", level(1, 30.0, conventions={}))
    both = compare([ours, theirs])
    assert both.convention == "mixed"
    assert any("different definitions" in warning for warning in both.warnings)


@pytest.mark.parametrize("runs", [[], [A], [A, A], [replace(A, id=str(i)) for i in range(7)]], ids=len)
def test_only_two_to_six_different_runs_can_be_compared(runs: list[Any]) -> None:
    with pytest.raises(ConfigError):
        compare(runs)


# -- cost


def test_cost_of_a_million_tokens() -> None:
    assert cost.per_million_tokens(3.6, 1000.0) == pytest.approx(1.0)
    assert cost.per_million_tokens(None, 1000.0) is None
    assert cost.per_million_tokens(3.6, None) is None
    assert cost.per_million_tokens(3.6, 0.0) is None


def test_a_price_per_gpu_is_multiplied_by_the_gpus_of_the_server() -> None:
    assert cost.per_hour_of(load_run(), 2.0) == 2.0
    run = load_run(environment={"hardware": {"device": "cuda"}}, config={"server": {"tensor_parallel_size": 4}})
    assert (cost.gpus_of(run), cost.per_hour_of(run, 2.0)) == (4, 8.0)


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_what_is_no_price_is_refused(price: float) -> None:
    with pytest.raises(ConfigError):
        export([load_run()], "csv", price)


def test_without_a_price_there_is_no_cost() -> None:
    assert "cost_per_million" not in export([load_run()], "csv")
    rows = list(csv.DictReader(io.StringIO(export([load_run()], "csv", 0.36))))
    assert [float(row["cost_per_million_output_tokens"]) for row in rows] == [
        pytest.approx(3.3333, rel=1e-4),
        pytest.approx(0.8333, rel=1e-4),
    ]


# -- files

ALL = [
    load_run(),
    A,
    chat_run(),
    load_run("t", kind="tune"),
    load_run("empty", results={}),
    load_run("x", results=None),
]


@pytest.mark.parametrize("run", [*ALL, *map(hostile, ("load", "compare", "chat"))], ids=lambda run: run.id)
def test_nothing_in_a_report_is_markup_of_others(run: Any) -> None:
    text = export([run], "html", 1.5)
    page = Page(text.replace(plotly_script(), ""))
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.tags.count("script") == (3 if "data-figure" in dict(page.attributes) else 1)
    assert not [value for name, value in page.attributes if name in ("src", "href", "action")]
    (data,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, flags=re.DOTALL)
    assert "<" not in data and "\u2028" not in data
    assert isinstance(json.loads(data), list)


def test_a_report_says_what_was_measured_where_and_how() -> None:
    words = " ".join(Page(export([load_run()], "html", 0.36).replace(plotly_script(), "")).text)
    for expected in (
        "1, 10 users",
        "Test CPU, 2 cores",
        "120 tok/s",
        "90.0 ms",
        "python -m vllm",
        "0.833",
        "org/model",
    ):
        assert expected in words, expected


def test_a_pair_has_its_comparison_and_both_runs() -> None:
    words = " ".join(Page(export([A, B], "html").replace(plotly_script(), "")).text)
    assert "(+10 tok/s, +32.3%, beyond the spread)" in words
    assert words.count("How to repeat it") == 2
    assert A.id in words and B.id in words


def test_an_imported_run_is_marked() -> None:
    (back,) = read_runs(run_to_json(load_run()).encode(), "a<b>.json")
    assert "Imported, not measured here: by vLLM Lab, from a&lt;b&gt;.json." in export([back], "html")


def test_no_cell_of_a_csv_is_a_formula() -> None:
    run = load_run(title="=HYPERLINK(1)", model={"model_id": "@x"}, environment={"summary": " +1"})
    text = export([run, hostile("load")], "csv")
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert not [cell for cell in cells if cell.lstrip(" \n")[:1] in ("=", "+", "-", "@") and not _is_number(cell)]
    assert "'=HYPERLINK(1)" in cells


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_the_json_of_a_pair_imports_back() -> None:
    text = export([A, B], "json")
    assert json.loads(text)["comparison"]["metrics"]
    assert [run.title for run in read_runs(text.encode(), "pair.json")] == [A.title, B.title]


def test_charts_escape_names_and_say_the_same_in_words() -> None:
    (chart,) = figures.of_points(points_of(load_run()))
    assert chart.figure["data"][0]["y"] == [30.0, 120.0]
    assert "10 users: 120 tok/s" in chart.words
    drawn = figures.of_runs([HOSTILE, "b"], [points_of(load_run()), points_of(hostile("load"))])
    assert all("<" not in trace["name"] for one in drawn for trace in one.figure["data"])


def test_the_colours_are_those_of_the_app() -> None:
    assert figures.ENGINE_COLOURS == palette.COLOURS
    assert (palette.MEASURES["throughput"], palette.MEASURES["ttft"]) == (figures.THROUGHPUT, figures.TTFT)
    assert not set(figures.RUN_COLOURS) & set(palette.COLOURS.values())
    assert figures.OTHER_COLOUR == palette.NEUTRAL


def test_a_name_from_a_file_is_no_formula_in_the_head_of_a_table() -> None:
    run = load_run("bad-4", level(1, 30.0))
    run.results["levels"][0]["=HYPERLINK(1)"] = 5.0
    assert not any(cell.startswith(FORMULA_STARTS) for cell in next(csv.reader(io.StringIO(to_csv([run])))))
