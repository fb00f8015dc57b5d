"""Values of tuning as people read them."""

from __future__ import annotations

from components.format import UNKNOWN, millis, number, roughly, seconds, short
from engine.environment import GIB
from engine.tuning.estimate import Estimate
from engine.tuning.explain import Delta
from engine.tuning.prediction import Outcome
from engine.tuning.study import Trial, TrialState, TuneSnapshot
from engine.units import counted

STATE_WORDS = {
    TrialState.QUEUED: "Waits",
    TrialState.RESTARTING: "Restarting",
    TrialState.MEASURING: "Measuring",
    TrialState.DONE: "Measured",
    TrialState.FAILED: "Failed",
    TrialState.REFUSED: "Can't start",
    TrialState.CANCELLED: "Called off",
}


def state(trial: Trial) -> str:
    return STATE_WORDS.get(TrialState(str(trial.state)), str(trial.state))


def gib(value_bytes: float | None) -> str:
    return UNKNOWN if value_bytes is None else f"{value_bytes / GIB:,.2f} GiB"


def amount(value: float | None, unit: str) -> str:
    """A number with its unit: ms, %, bytes, × and names of things."""
    if value is None:
        return UNKNOWN
    if unit == "ms":
        return millis(value)
    if unit == "bytes":
        return gib(value)
    if unit == "s":
        return seconds(value)
    if unit == "×":
        return f"{value:,.1f}×"
    if unit == "%":
        return f"{short(value)}%"
    return f"{number(value) if value == int(value) else short(value)} {unit}".strip()


def change(delta: Delta) -> str:
    """Such as “+35%”; empty where it can't be said."""
    return "" if delta.change is None else f"{delta.change:+.0%}".replace("-", "−")


def off(outcome: Outcome) -> str:
    """How far a prediction was off."""
    if outcome.off_pct is None:
        return UNKNOWN
    return "exact" if outcome.off_pct == 0 else f"{outcome.off_pct:+.1f}%".replace("-", "−")


def cancelled(now: TuneSnapshot) -> str:
    """What is left of a study that was called off."""
    measured = now.study.measured if now.study else ()
    if not measured:
        return "Cancelled before anything was measured."
    return f"Cancelled. Measured before, shown below and saved: {counted(len(measured), 'configuration')}."


def age(trial: Trial) -> str:
    """Says of a measurement that was used again how old it is, empty where it was made for this trial."""
    if trial.measured_ago_s is None:
        return ""
    return f"Measured {seconds(trial.measured_ago_s)} earlier, on the same start of the server: “{trial.name}”."


def takes(estimate: Estimate) -> str:
    """How long it will take, such as “About 4 min”."""
    if estimate.total_s is None:
        return "How long it takes is not known: no restart was timed on this machine yet."
    words = roughly(estimate.total_s, estimate.total_s)
    words = words.replace("about", "at least") if estimate.at_least else words
    return f"{words[0].upper()}{words[1:]}."
