"""Requests: sampled as documented, read from traces, typed, and every bad input refused in words."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import SimulationConfig
from engine.errors import ConfigError
from engine.kv import lengths
from engine.kv.presets import PRESETS
from engine.kv.traces import SAMPLE_TRACE, fitting, read_trace, read_typed
from engine.kv.workloads import make_workload

HEADER = "arrival_s,input_tokens,output_tokens\n"


def sample(pairs: lengths.Lengths, count: int = 20_000) -> tuple[list[int], list[int]]:
    prompts, outputs = zip(*islice(pairs, count), strict=True)
    return list(prompts), list(outputs)


def test_sharegpt_has_the_quantiles_it_was_given() -> None:
    prompts, outputs = sample(lengths.sharegpt(random.Random(1)))
    for values, quantiles in ((prompts, lengths.SHAREGPT_PROMPTS), (outputs, lengths.SHAREGPT_OUTPUTS)):
        ordered = sorted(values)
        for percent, expected in zip(lengths.SHAREGPT_PERCENTS, quantiles, strict=True):
            if 20 <= percent <= 90:
                assert ordered[int(len(ordered) * percent / 100)] == pytest.approx(expected, rel=0.08, abs=2)
    assert max(p + o for p, o in zip(prompts, outputs, strict=True)) < 2048


def test_sharegpt_means_are_what_the_preset_says() -> None:
    """148 and 332; the list's own are 161.31 and 337.99 (the paper's figure 11)."""
    prompts, outputs = sample(lengths.sharegpt(random.Random(2)))
    assert fmean(prompts) == pytest.approx(148, rel=0.03)
    assert fmean(outputs) == pytest.approx(332, rel=0.03)
    assert any("148 tokens in and 332 out" in words for words in PRESETS["paper-sharegpt"].assumptions)


def test_sharegpt_lengths_go_together_as_measured() -> None:
    prompts, outputs = sample(lengths.sharegpt(random.Random(3)))
    assert rank_correlation(prompts, outputs) == pytest.approx(0.20, abs=0.03)


def rank_correlation(first: list[int], second: list[int]) -> float:
    def ranks(values: list[int]) -> list[int]:
        result = [0] * len(values)
        for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
            result[place] = rank
        return result

    one, two = ranks(first), ranks(second)
    middle = fmean(one)
    covariance = fmean((a - middle) * (b - middle) for a, b in zip(one, two, strict=True))
    return covariance / fmean((a - middle) ** 2 for a in one)


def test_alpaca_means_are_near_the_papers() -> None:
    prompts, outputs = sample(lengths.alpaca(random.Random(4)))
    assert fmean(prompts) == pytest.approx(19.31, rel=0.03)
    assert fmean(outputs) == pytest.approx(58.45, rel=0.03)


@given(seed=st.integers(0, 2**63 - 1), workload=st.sampled_from(("lab", "sharegpt", "alpaca", "shared_prefix")))
def test_the_same_seed_gives_the_same_requests_in_order_of_arrival(seed: int, workload: str) -> None:
    config = SimulationConfig(workload=workload, seed=seed, requests=20, arrivals_per_100_steps=30)
    requests = make_workload(config).requests
    assert requests == make_workload(config).requests
    assert [request.arrival for request in requests] == sorted(request.arrival for request in requests)
    assert [request.index for request in requests] == list(range(len(requests)))
    assert all(request.prompt >= 1 and request.output >= 1 for request in requests)
    assert all(request.prompt + request.output <= config.max_model_len for request in requests)


def test_another_seed_gives_other_requests() -> None:
    assert make_workload(SimulationConfig(seed=1)).requests != make_workload(SimulationConfig(seed=2)).requests


def test_more_arrivals_do_not_change_the_lengths() -> None:
    slow, fast = (make_workload(SimulationConfig(arrivals_per_100_steps=rate)).requests for rate in (10, 50))
    assert [(r.prompt, r.output) for r in slow] == [(r.prompt, r.output) for r in fast]
    assert slow[-1].arrival > fast[-1].arrival


def test_poisson_arrivals_have_the_rate_asked_for() -> None:
    config = SimulationConfig(requests=5000, arrivals_per_100_steps=25)
    assert make_workload(config).requests[-1].arrival == pytest.approx(5000 / 0.25, rel=0.05)


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 8, 40), (1.0, 120, 240)])
def test_the_labs_mix(share: float, low: int, high: int) -> None:
    requests = make_workload(SimulationConfig(long_share=share)).requests
    assert all(low <= request.prompt <= high for request in requests)
    assert {request.name for request in requests} == {"long" if share else "short"}


def test_shared_prefixes_are_spread_over_the_groups() -> None:
    requests = make_workload(SimulationConfig(workload="shared_prefix", prefix_groups=3, prefix_tokens=64)).requests
    assert {request.prefix for request in requests} == {0, 1, 2}
    assert all(request.prefix_tokens == 64 < request.prompt for request in requests)


def test_answers_end_at_max_model_len_and_longer_prompts_are_refused() -> None:
    workload = make_workload(SimulationConfig(workload="typed", typed="500 5; 510 50; 512 1; 600 1"))
    assert [(request.prompt, request.output) for request in workload.requests] == [(500, 5), (510, 2)]
    assert (workload.shortened, workload.too_long) == (1, 2)


def test_typed_requests_may_have_arrivals() -> None:
    workload = make_workload(SimulationConfig(workload="typed", typed="7 30 40\n\n 2, 10 ,20;5 6"))
    assert [(r.arrival, r.prompt, r.output) for r in workload.requests] == [(0, 5, 6), (2, 10, 20), (7, 30, 40)]
    assert not workload.closed


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "No request was typed."),
        ("5", "Line 1 has 1 numbers."),
        ("1 2 3 4", "Line 1 has 4 numbers."),
        ("5 6\nx 3", "Line 2: the prompt is 'x', not a whole number."),
        ("0 3", "Line 1: the prompt is '0'."),
        ("3 -1", "Line 1: the output is '-1'."),
        ("-1 3 3", "Line 1: the arrival step is '-1'."),
        ("3 99999999", "Line 1: the output is '99999999'."),
        ("1.5 3", "Line 1: the prompt is '1.5', not a whole number."),
        ("1 1;" * 1001, "1001 requests were typed."),
    ],
)
def test_bad_typed_requests(text: str, cause: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_typed(text)
    assert caught.value.cause == cause
    assert caught.value.remedy


def write(folder: Path, text: str) -> str:
    path = folder / "trace.csv"
    path.write_text(text)
    return str(path)


def test_a_trace_waits_at_once_or_keeps_its_times(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "1.0,30,4\n0.5,20,3\n")
    config = SimulationConfig(workload="trace", trace=path)
    at_once = make_workload(config)
    assert at_once.closed and [request.arrival for request in at_once.requests] == [0, 0]
    timed = make_workload(replace(config, step_s=0.1))
    assert not timed.closed
    assert [(r.arrival, r.prompt) for r in timed.requests] == [(5, 20), (10, 30)]


def test_a_trace_without_times_is_fine_when_all_wait(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path, HEADER + ",30,4\n"), timed=False)[0].prompt == 30
    assert read_trace(write(tmp_path, "\ufeffoutput_tokens,input_tokens\n4,30\n"), timed=False)[0].prompt == 30


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "The trace trace.csv has no column arrival_s, input_tokens, output_tokens."),
        (HEADER, "The trace trace.csv has no rows."),
        ("arrival_s,input_tokens\n1,2\n", "The trace trace.csv has no column output_tokens."),
        (HEADER + "0,5,-2\n", "Line 2 of trace.csv: output_tokens is '-2'."),
        (HEADER + "0,5,3\n0,0,3\n", "Line 3 of trace.csv: input_tokens is '0'."),
        (HEADER + "0,5,1e9\n", "Line 2 of trace.csv: output_tokens is '1e9', not a whole number."),
        (HEADER + "0,5,99999999999\n", "Line 2 of trace.csv: output_tokens is '99999999999'."),
        (HEADER + "0,5\n", "Line 2 of trace.csv: output_tokens is missing, not a whole number."),
        (HEADER + ",5,3\n", "Line 2 of trace.csv has no arrival_s."),
        (HEADER + "soon,5,3\n", "Line 2 of trace.csv: arrival_s is 'soon', not a number."),
        (HEADER + "nan,5,3\n", "Line 2 of trace.csv: arrival_s is 'nan'."),
        (HEADER + "-1,5,3\n", "Line 2 of trace.csv: arrival_s is '-1'."),
        (HEADER + f"0,{'9' * 6000},3\n", f"Line 2 of trace.csv: input_tokens is '{'9' * 30}…', not a whole number."),
    ],
)
def test_bad_traces(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_trace(write(tmp_path, text), timed=True)
    assert caught.value.cause == cause
    assert caught.value.remedy


def test_spaces_after_commas_do_not_matter(tmp_path: Path) -> None:
    text = "arrival_s, input_tokens, output_tokens\n0.5, 30, 4\n"
    assert read_trace(write(tmp_path, text), timed=True) == [(0.5, 30, 4)]


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\xff\xfe\x00")
    for path, cause in (
        ("", "No trace file was given."),
        (str(tmp_path / "none.csv"), "The trace none.csv can't be read: No such file or directory."),
        ("/dev/zero", "The trace zero can't be read: it is not a plain file."),
        (str(tmp_path), f"The trace {tmp_path.name} can't be read: Is a directory."),
    ):
        with pytest.raises(ConfigError) as caught:
            read_trace(path, timed=False)
        assert caught.value.cause == cause
    (tmp_path / "sheet.csv").write_text(HEADER + "0,5,3\n", "utf-16")
    for name in ("picture.csv", "sheet.csv"):
        with pytest.raises(ConfigError, match=f"The trace {name} can't be read: it is not UTF-8 text."):
            read_trace(str(tmp_path / name), timed=False)
    with pytest.raises(ConfigError, match="can't be read"):
        read_trace("nul\0byte", timed=False)


def test_the_shipped_sample_can_be_read_with_its_times() -> None:
    rows = read_trace(str(SAMPLE_TRACE), timed=True)
    assert len(rows) == 1000
    assert rows[0] == (0.0, 374, 44)


def test_a_memory_that_suits_a_trace(tmp_path: Path) -> None:
    rows = read_trace(write(tmp_path, HEADER + "0,3000,100\n0,10,10\n"), timed=True)
    assert fitting(rows) == (4096, 8 * 4096)
