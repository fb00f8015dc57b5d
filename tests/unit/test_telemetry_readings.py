"""What is read of a metrics text, whole, cut off, hostile or huge."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from engine.telemetry.prometheus import parse
from engine.telemetry.readings import MOST_LINES_KNOWN, MetricsReader
from tests.unit.telemetry_texts import metrics_text

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "metrics"


def test_two_engines_are_summed_and_their_usage_is_the_mean() -> None:
    text = metrics_text(2, running=3, kv=0.5, generation=100, observed={"ttft": [0.05, 0.3]})
    reading = MetricsReader().read(text)
    assert reading is not None
    assert reading.values == {"running": 6, "kv_cache_usage": 0.5, "generation_tokens": 200}
    assert list(reading.histograms["ttft"].counts) == [2, 2, 4, 4, 4]
    assert reading.start_s == 1000.0


def test_a_second_reading_of_known_lines_has_the_new_numbers() -> None:
    reader = MetricsReader()
    reader.read(metrics_text(running=1, generation=10, observed={"e2e": [0.1]}))
    again = reader.read(metrics_text(running=4, generation=30, observed={"e2e": [0.1, 0.5]}))
    assert again is not None
    assert again.values == {"running": 4, "generation_tokens": 30}
    assert list(again.histograms["e2e"].counts) == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("text", ["", "\n", "<html>no metrics</html>\n", "{}\n", "\x00\xff\n", "other_metric 1\n"])
def test_what_is_no_engines_metrics_is_nothing(text: str) -> None:
    assert MetricsReader().read(text) is None


def test_a_text_that_is_cut_off_is_nothing() -> None:
    whole = metrics_text(running=1, generation=1234)
    assert MetricsReader().read(whole[:-3]) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e300", "twelve", ""])
def test_a_value_that_is_no_count_is_left_out(value: str) -> None:
    text = metrics_text(running=1) + f'vllm:generation_tokens_total{{engine="0"}} {value}\n'
    reader = MetricsReader()
    for _ in range(2):  # as a new line and as a known one
        reading = reader.read(text)
        assert reading is not None and reading.values == {"running": 1}


def test_buckets_that_contradict_themselves_are_no_histogram() -> None:
    name = "vllm:time_to_first_token_seconds_bucket"
    falling = f'{name}{{le="0.1"}} 5\n{name}{{le="+Inf"}} 3\n'
    endless = f'{name}{{le="0.1"}} 5\n'
    for buckets in (falling, endless):
        reading = MetricsReader().read(metrics_text(running=1) + buckets)
        assert reading is not None and not reading.histograms


def test_endless_new_names_do_not_fill_the_memory() -> None:
    reader = MetricsReader()
    lines = "".join(f"name_{number} 1\n" for number in range(MOST_LINES_KNOWN + 500))
    assert reader.read(lines + metrics_text(running=2)) is not None
    assert len(reader._places) <= MOST_LINES_KNOWN


def test_a_time_behind_the_value_is_not_the_value() -> None:
    reader = MetricsReader()
    for count in (5, 6):
        reading = reader.read(f'vllm:generation_tokens_total{{engine="0"}} {count} 1796099645053\n')
        assert reading is not None and reading.values == {"generation_tokens": count}


@pytest.mark.parametrize("path", [RECORDED / "vllm.txt", RECORDED / "vllm_old.txt"], ids=lambda path: path.name)
def test_recorded_servers_read_as_the_plain_parser_reads_them(path: Path) -> None:
    text = path.read_text("utf-8")
    plain, reading = parse(text), MetricsReader().read(text)
    assert reading is not None
    for name in ("running", "waiting", "kv_cache_usage", "prompt_tokens", "generation_tokens", "preemptions"):
        expected = getattr(plain, name)
        assert reading.values.get(name) == (pytest.approx(expected) if expected is not None else None)
    assert reading.histograms["ttft"].bounds[-1] == math.inf


def test_a_restart_is_seen_by_the_process_or_by_a_counter_that_went_back() -> None:
    def reading(start_s: float | None, generation: int):
        found = MetricsReader().read(metrics_text(start_s=start_s, generation=generation))
        assert found is not None
        return found

    assert reading(1.0, 20).follows(reading(1.0, 10))
    assert not reading(2.0, 20).follows(reading(1.0, 10))
    assert not reading(None, 5).follows(reading(None, 10))
