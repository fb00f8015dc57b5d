"""The fleet: sums, rates, gaps and restarts of several targets, and that only looking has them read."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

import pytest

from engine import fleet as module
from engine.errors import AlreadyRunning, ConfigError
from engine.fleet import Fleet, FleetSnapshot, Moment, TargetView
from engine.telemetry.prometheus import ServerMetrics
from tests.fake_openai import FakeOpenAI

VLLM = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\nvllm:generation_tokens_total {}\n"
LLAMA = "llamacpp:requests_processing 3\nllamacpp:tokens_predicted_total 40\n"


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with closing(Fleet()) as made:
        yield made


def looked(fleet: Fleet, readings: int = 1) -> FleetSnapshot:
    """After so many readings of every target; looks all the time, as an open page does."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        now = fleet.look()
        if all(len(target.moments) >= readings for target in now.targets):
            return now
        time.sleep(0.02)
    raise AssertionError("no reading")


def test_two_engines_one_view_each_and_summed(fleet: Fleet) -> None:
    with FakeOpenAI() as first, FakeOpenAI() as second:
        first.metrics_text, second.metrics_text = VLLM.format(100), LLAMA
        assert fleet.add(first.base_url, "one") == "one"
        assert fleet.add(f"127.0.0.1:{second.port}") == f"127.0.0.1:{second.port}"
        now = looked(fleet)
    one, two = now.targets
    assert [target.detected and target.detected.dialect.key for target in now.targets] == ["vllm", "llamacpp"]
    assert (one.problem, two.problem) == ("", "")
    totals = now.totals
    assert (totals.answering, totals.running, totals.waiting, totals.kv_cache_usage) == (2, 5, 1, 0.5)
    assert totals.prompt_tok_s is None


def test_what_does_not_answer_is_named_and_not_summed(fleet: Fleet) -> None:
    with FakeOpenAI() as good, FakeOpenAI() as silent:
        good.metrics_text, silent.metrics_text = VLLM.format(5), None
        fleet.add(good.base_url, "good")
        fleet.add(silent.base_url, "without metrics")
        fleet.add("http://127.0.0.1:9/v1", "gone")
        now = looked(fleet)
    problems = {target.name: target.problem for target in now.targets}
    assert problems["good"] == "" and "no metrics" in problems["without metrics"]
    assert "No server answers at 127.0.0.1:9" in problems["gone"]
    assert (now.totals.answering, now.totals.running) == (1, 2)


def test_keys_go_to_their_own_target_and_nowhere_else(fleet: Fleet) -> None:
    with FakeOpenAI() as server:
        server.metrics_text = VLLM.format(5)
        fleet.add(server.base_url, "one", " secret ")
        assert "secret" not in repr(looked(fleet))
    with pytest.raises(ConfigError, match="API key"):
        fleet.add("http://127.0.0.1:9", "two", "sécret")


def test_names_are_kept_apart_and_few(fleet: Fleet) -> None:
    fleet.add("http://127.0.0.1:9", "a")
    with pytest.raises(AlreadyRunning):
        fleet.add("http://127.0.0.1:10", " a ")
    with pytest.raises(ConfigError, match="base URL"):
        fleet.add("not an address", "b")
    for number in range(1, module.MOST_TARGETS):
        fleet.add("http://127.0.0.1:9", str(number))
    with pytest.raises(ConfigError, match="too many"):
        fleet.add("http://127.0.0.1:9", "one more")
    fleet.remove("a")
    fleet.remove("a")
    assert "a" not in [target.name for target in fleet.look().targets]


def test_nobody_looks_nothing_is_read(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_LASTS_S", 0.1)
    monkeypatch.setattr(module, "EVERY_S", 0.05)
    with FakeOpenAI() as server:
        server.metrics_text = VLLM.format(5)
        fleet.add(server.base_url, "one")
        looked(fleet, readings=2)
        target = fleet._targets["one"]
        thread = target.thread
        assert thread is not None
        thread.join(10)
        assert not thread.is_alive()
        looked(fleet, readings=len(target.moments) + 1)  # and again, once somebody does


def counts(*values: int | None) -> tuple[Moment, ...]:
    """A reading every second; None is a gap."""
    moments: list[Moment] = []
    for second, value in enumerate(values):
        metrics = None if value is None else ServerMetrics(running=1, generation_tokens=value)
        moments.append(module._moment(float(second), metrics, moments))
    return tuple(moments)


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ((0, 10, 20, 30), (None, 10, 10, 10)),
        ((0, 10, None, 30, 50), (None, 10, None, None, 20)),  # no rate across a gap
        ((1000, 1010, 5, 25), (None, 10, None, 20)),  # restarted: neither negative nor a spike
        ((0, 0, 0), (None, 0, 0)),
        ((0, 100, 100, 100, 100, 100, 100), (None, 100, 50, 100 / 3, 25, 20, 0)),  # five seconds back, not more
    ],
)
def test_rates(values: tuple[int | None, ...], rates: tuple[float | None, ...]) -> None:
    found = [moment.generation_tok_s for moment in counts(*values)]
    assert found == [None if rate is None else pytest.approx(rate) for rate in rates]


def test_a_clock_set_back_gives_no_rate() -> None:
    before = [Moment(10.0, ServerMetrics(generation_tokens=5))]
    assert module._moment(4.0, ServerMetrics(generation_tokens=9), before).generation_tok_s is None


def test_the_sum_of_nothing_is_unknown() -> None:
    empty = FleetSnapshot(
        (TargetView("a", "http://a/v1"), TargetView("b", "http://b/v1", moments=(Moment(1.0, None),)))
    )
    totals = empty.totals
    assert (totals.answering, totals.running, totals.generation_tok_s, totals.kv_cache_usage) == (0, None, None, None)


def test_history_is_bounded() -> None:
    moments = counts(*range(module.HISTORY + 50))
    assert all(before.at_s < after.at_s for before, after in pairwise(moments))
    target = module._Target(module.Endpoint("http://a/v1", "m"))
    target.moments.extend(moments)
    assert len(target.moments) == module.HISTORY and target.asked_s == -math.inf
