"""The paper's figure: the published numbers, ours, and how far apart they are."""

from __future__ import annotations

import pytest

from components import kv_figures, paper_view
from components.palette import MEMORY_DARK, MEMORY_LIGHT
from engine.kv.figure_data import bars, page_sizes, running_requests
from engine.kv.presets import ANIMATIONS, PRESETS, preset
from engine.kv.simulate import SimulationResult, simulate
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import assert_no_live_markup, keys, said, table, titles


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    return simulate(preset("paper-sharegpt", requests=600))


def test_the_published_values_stand_beside_the_simulated_ones(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(fakes.READY), "paper")
    assert not at.exception
    assert titles(at) == ["The paper's figure"]
    ours = simulate(preset("paper-sharegpt"))
    for name, published in PRESETS["paper-sharegpt"].published.items():
        bar = ours.allocators[name]
        assert f"{bar.mean_running:.1f}" in table(at)
        assert published["mean_running"] == pytest.approx(bar.mean_running - bar.difference_mean_running)
        assert paper_view.signed(bar.difference_points["token_states_pct"]) in table(at)
    for note in ours.notes:
        assert note in said(at)
    assert "SOSP 2023" in said(at) and "arXiv 2309.06180" in said(at)
    assert "python -m engine simulate --preset paper-sharegpt" in said(at)
    assert_no_live_markup(at)


def test_alpaca_says_that_its_lengths_are_a_fit(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(fakes.READY), "paper", paper_preset="Alpaca", paper_seed="2")
    assert not at.exception
    assert "those rows are no test of the simulation" in said(at)
    assert "python -m engine simulate --preset paper-alpaca --seed 2" in said(at)
    assert "paper_shares" in keys(at)


def test_bars_add_up_and_marks_stand_where_the_published_shares_end(result: SimulationResult) -> None:
    figure = kv_figures.shares_figure(bars(result), MEMORY_LIGHT)
    stacked, markers = figure.data[:-1], figure.data[-1]
    for lengths in zip(*(trace.x for trace in stacked), strict=True):
        assert sum(lengths) == pytest.approx(100)
    ends = list(zip(markers.y, markers.x, strict=True))
    assert [end for title, end in ends if "max length" in title] == pytest.approx([20.4, 33.7, 91.0])
    assert [end for title, end in ends if "oracle" in title] == pytest.approx([38.2, 63.4])
    assert [end for title, end in ends if title == "Paged"] == pytest.approx([96.3])


def test_nothing_is_marked_where_nothing_was_published() -> None:
    shown = bars(simulate(ANIMATIONS["lab"].config))
    assert [trace.type for trace in kv_figures.shares_figure(shown, MEMORY_DARK).data] == ["bar"] * 4


def test_kinds_of_memory_keep_their_colours(result: SimulationResult) -> None:
    for colours in (MEMORY_LIGHT, MEMORY_DARK):
        traces = kv_figures.shares_figure(bars(result), colours).data
        assert [trace.marker.color for trace in traces[:4]] == [colours[kind] for kind in list(colours)[:4]]
        assert [trace.marker.pattern.shape for trace in traces[:4]] == ["", "/", "", ""]


def test_requests_over_time_are_those_of_the_simulation(result: SimulationResult) -> None:
    series = running_requests(result)
    figure = kv_figures.running_figure(series)
    assert [list(trace.y) for trace in figure.data] == list(series.running.values())
    assert f"at most {max(series.running['paged'])}" in kv_figures.running_alt(series)


def test_the_chosen_page_size_is_marked() -> None:
    sizes = page_sizes(ANIMATIONS["tight"].config)
    figure = kv_figures.page_size_figure(sizes, 32)
    (marked,) = [x for x, size in zip(figure.data[0].x, figure.data[0].marker.size, strict=True) if size > 9]
    assert marked == "32"
    assert list(figure.data[0].y) == [size.utilisation_pct for size in sizes]
    assert list(kv_figures.table_length_figure(sizes, 32).data[0].y) == [size.blocks_per_request for size in sizes]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "—"), (0.04, "0.0"), (-0.04, "0.0"), (1.25, "+1.2"), (-3.06, "−3.1")]
)
def test_differences_have_a_sign(value: float | None, text: str) -> None:
    assert paper_view.signed(value) == text
