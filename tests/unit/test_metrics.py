"""The definitions, checked against hand-made traces and against docs/metrics.md."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestInterrupted, RequestRejected
from engine.metrics import (
    METRIC_HELP,
    METRIC_UNITS,
    RequestTrace,
    distribution,
    median_and_spread,
    percentile,
    summarize,
)

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
FULL = RequestTrace(
    sent_s=100.0,
    chunk_times_s=(100.2, 100.3, 100.5),
    chunk_texts=("a", "b", "c"),
    prompt_tokens=5,
    output_tokens=4,
    finish_reason="length",
)


def test_numbers_of_one_request() -> None:
    assert FULL.text == "abc"
    assert FULL.ok and not FULL.interrupted
    assert FULL.ttft_ms == pytest.approx(200)
    assert FULL.e2e_ms == pytest.approx(500)
    assert FULL.tpot_ms == pytest.approx((500 - 200) / 3)
    assert FULL.itl_ms == pytest.approx((100, 200))
    assert FULL.decode_speed_tok_s == pytest.approx(3 / 0.3)


@pytest.mark.parametrize("tokens", [None, 0, 1])
def test_tpot_needs_two_counted_tokens(tokens: int | None) -> None:
    trace = replace(FULL, output_tokens=tokens)
    assert trace.tpot_ms is None
    assert trace.decode_speed_tok_s is None


def test_all_text_in_one_chunk_tells_nothing_about_tpot() -> None:
    trace = replace(FULL, chunk_times_s=(100.2,), chunk_texts=("abc",))
    assert (trace.tpot_ms, trace.decode_speed_tok_s, trace.itl_ms) == (None, None, ())
    assert trace.ttft_ms == trace.e2e_ms == pytest.approx(200)


def test_no_text_is_unknown_and_never_zero() -> None:
    trace = RequestTrace(sent_s=1.0, output_tokens=1, finish_reason="stop", ended_s=1.5)
    assert trace.ok
    assert (trace.ttft_ms, trace.e2e_ms, trace.tpot_ms) == (None, None, None)
    assert trace.finished_s == 1.5


@pytest.mark.parametrize(
    "changes",
    [
        {"finish_reason": None},
        {"finish_reason": "abort"},
        {"expected_tokens": 5},
        {"error": "The connection broke."},
    ],
)
def test_cut_short_is_interrupted(changes: dict[str, object]) -> None:
    trace = replace(FULL, **changes)
    assert trace.interrupted and not trace.ok
    assert isinstance(trace.failure(), RequestInterrupted)
    assert str(trace.failure())


def test_expected_length_reached_or_not_counted_is_fine() -> None:
    assert replace(FULL, expected_tokens=4).ok
    assert replace(FULL, expected_tokens=4, output_tokens=None).ok


def test_a_refused_request_is_not_an_interrupted_one() -> None:
    trace = RequestTrace(sent_s=0.0, error="no", remedy="do", rejected=True, status=400)
    assert not trace.ok and not trace.interrupted
    failure = trace.failure()
    assert isinstance(failure, RequestRejected)
    assert (failure.status, str(failure)) == (400, "no do")


def test_percentile_interpolates() -> None:
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile([1, 2, 3, 4], 95) == pytest.approx(3.85)
    assert percentile([10], 99) == 10
    assert percentile([], 50) is None
    with pytest.raises(ValueError, match="0 to 100"):
        percentile([1], 101)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentile_agrees_with_numpy(values: list[float], percent: float) -> None:
    numpy = pytest.importorskip("numpy")
    assert percentile(values, percent) == pytest.approx(numpy.percentile(values, percent), rel=1e-9, abs=1e-9)


def test_summary_counts_failures_and_leaves_them_out() -> None:
    late = RequestTrace(99.0, (160.0,), ("x",), output_tokens=1000, error="broke")
    refused = RequestTrace(98.0, error="no", rejected=True, ended_s=300.0)
    second = replace(FULL, sent_s=100.1, chunk_times_s=(100.4, 101.0), chunk_texts=("a", "b"), output_tokens=2)
    summary = summarize([FULL, late, second, refused])
    assert (summary.requests_ok, summary.requests_failed) == (2, 2)
    assert summary.output_tokens == 6
    assert summary.wall_s == pytest.approx(1.0)
    assert summary.throughput_tok_s == pytest.approx(6.0)
    assert summary.ttft_ms is not None and summary.ttft_ms.mean == pytest.approx(250)
    assert summary.ttft_ms.count == 2
    assert summary.itl_ms is not None and summary.itl_ms.count == 3  # pooled over requests


def test_throughput_is_unknown_when_one_count_is() -> None:
    summary = summarize([FULL, replace(FULL, output_tokens=None)])
    assert summary.output_tokens is None
    assert summary.throughput_tok_s is None


def test_summary_of_nothing() -> None:
    flat = summarize([]).to_dict()
    assert flat.pop("requests_ok") == flat.pop("requests_failed") == 0
    assert set(flat.values()) == {None}
    assert {"ttft_p95_ms", "e2e_mean_ms", "itl_p99_ms", "tpot_p50_ms", "throughput_tok_s"} <= set(flat)


def test_unknown_values_are_left_out() -> None:
    values = distribution([None, 1.0, None, 3.0])
    assert values is not None and (values.count, values.mean) == (2, 2.0)
    assert distribution([None]) is None
    assert median_and_spread([3.0, None, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert median_and_spread([None]) is None


def test_docs_and_help_texts_are_the_same() -> None:
    rows = re.findall(r"^\|([^|]+)\|([^|]+)\|([^|]*)\|$", DOCS.read_text(), re.MULTILINE)
    documented = {name.strip(): (text.strip(), unit.strip()) for name, text, unit in rows}
    expected = {name: (METRIC_HELP[name], METRIC_UNITS[name]) for name in METRIC_HELP}
    assert {name: documented.get(name) for name in expected} == expected
