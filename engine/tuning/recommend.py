"""Which of the measured configurations to choose for this load, and how to start it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from engine.environment import GIB
from engine.metrics import Distribution, Slo
from engine.server.command import Launch
from engine.tuning.knobs import in_words
from engine.tuning.prediction import CPU_SPACE
from engine.tuning.study import Recommendation, Study, Trial
from engine.vllm_facts import MODULE

LIMITS = (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E"))
# Where and under which key it serves is the reader's own choice.
LEFT_OUT = frozenset({"host", "port"})
MEMORY_KEY = "kv-cache-memory-bytes"


def excess(trial: Trial, slo: Slo) -> float | None:
    """How far a trial is over the SLO at p95: 1 is at the limit of the worst measure. None where nothing was measured.

    Requests that failed count as over it.
    """
    if trial.level is None:
        return None
    shares = [0.0]
    for name, _ in LIMITS:
        limit, measured = getattr(slo, name), getattr(trial.level, name)
        if limit is not None:
            shares.append(measured.p95 / limit if measured else float("inf"))
    return float("inf") if trial.level.requests_failed else max(shares)


def meets(trial: Trial, slo: Slo) -> bool:
    over = excess(trial, slo)
    return over is not None and over <= 1


def recommend(study: Study) -> Recommendation | None:
    """The most throughput within the SLO; where nothing is within it, what comes closest. None without measurements."""
    slo = study.config.slo
    trials = [trial for trial in study.measured if trial.level and trial.level.throughput_tok_s is not None]
    if not trials:
        return None
    good = [trial for trial in trials if meets(trial, slo)]
    chosen = max(good, key=_throughput) if good else min(trials, key=lambda trial: _distance(trial, slo))
    return Recommendation(
        trial=chosen.number,
        words=_words(study, chosen, slo, bool(good)),
        meets_slo=bool(good),
        config=study.config.server(chosen.changes),
    )


def pareto(trials: Sequence[Trial]) -> tuple[int, ...]:
    """Numbers of the trials that no other beats in throughput without being slower to the first token at p95."""
    points = [
        (trial.number, trial.level.throughput_tok_s, trial.level.ttft_ms.p95)
        for trial in trials
        if trial.level and trial.level.throughput_tok_s is not None and trial.level.ttft_ms
    ]
    return tuple(
        number
        for number, fast, late in points
        if not any(f >= fast and t <= late and (f > fast or t < late) for _, f, t in points)
    )


def _distance(trial: Trial, slo: Slo) -> tuple[int, float, float]:
    """How far from the SLO: failed requests first, then the worst share of a limit, then slowness."""
    failed = trial.level.requests_failed if trial.level else 0
    return failed, excess(trial, slo) or 0.0, -_throughput(trial)


def _throughput(trial: Trial) -> float:
    return (trial.level.throughput_tok_s if trial.level else None) or 0.0


def _words(study: Study, chosen: Trial, slo: Slo, good: bool) -> str:
    asked = " and ".join(f"{label} p95 ≤ {getattr(slo, name):g} ms" for name, label in LIMITS if getattr(slo, name))
    assert chosen.level is not None
    measured = ", ".join(
        f"{label} p95 {value.p95:,.0f} ms" for label, value in _shown(chosen, slo) if isinstance(value, Distribution)
    )
    result = f"{_throughput(chosen):,.0f} tok/s" + (f" at {measured}" if measured else "")
    settings = chosen.label or in_words(chosen.changes)
    if not good:
        failed = "Requests failed in every trial" if not asked else f"No trial met {asked}"
        return f"{failed}. Closest is {settings}: {result}."
    purpose = f"For {asked}" if asked else "For the most throughput"
    return f"{purpose} choose {settings}: {result}.{_gain(study, chosen)}"


def _shown(chosen: Trial, slo: Slo) -> list[tuple[str, Distribution | None]]:
    limited = [(label, getattr(chosen.level, name)) for name, label in LIMITS if getattr(slo, name) is not None]
    return limited or [("TTFT", chosen.level.ttft_ms if chosen.level else None)]


def _gain(study: Study, chosen: Trial) -> str:
    """Against what ran before, where that was measured too."""
    same = (
        t for t in study.measured if t.number != chosen.number and study.config.server(t.changes) == study.config.base
    )
    before = next(same, None)
    if before is None or not _throughput(before):
        return ""
    change = _throughput(chosen) / _throughput(before) - 1
    return f" That is {abs(change):.0%} {'more' if change >= 0 else 'less'} throughput than before."


def serve_yaml(launch: Launch) -> str:
    """The same server as a file for ``vllm serve --config``; what only the environment can say stands in a comment."""
    values: dict[str, object] = {}
    words = launch.argv[launch.argv.index(MODULE) + 1 :]
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name = word.removeprefix("--")
        given = index + 1 < len(words) and not words[index + 1].startswith("--")
        if given:
            values[name] = _typed(words[index + 1])
        else:
            values[name.removeprefix("no-")] = not name.startswith("no-")
    if CPU_SPACE in launch.env:
        values[MEMORY_KEY] = int(launch.env[CPU_SPACE]) * GIB
    kept = {name: value for name, value in values.items() if name not in LEFT_OUT}
    on_cpu = CPU_SPACE in launch.env
    variables = {name: value for name, value in launch.env.items() if name not in (CPU_SPACE, "VLLM_API_KEY")}
    # The CPU wheel has another name, for which the ``vllm`` command does not look.
    start = f"python -m {MODULE}" if on_cpu else "vllm serve"
    line = f"{Launch((), variables).shell_line()} {start} --config this-file.yaml".strip()
    comment = f"# {' '.join(line.split())}\n"
    return comment + yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)


def _typed(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
