"""What a restart will do, before it; and how right that was, after it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from components import html, palette, tune_markup
from components.format import UNKNOWN, number, plain, seconds
from components.tune_words import amount, gib, off
from engine.server.state import KvCapacity, ServerSnapshot
from engine.tuning.prediction import Outcome, Prediction, outcomes
from engine.tuning.study import Trial

HEAD = ("", "Predicted", "Actual", "Off by")


def card(prediction: Prediction, server: ServerSnapshot) -> None:
    """Beside the knobs: a refusal with its reason, or one big number and those that it comes from."""
    if not prediction.starts:
        for refusal in prediction.refusals:
            st.error(f"**{plain(refusal.cause)}**\n\n{plain(refusal.remedy)}", icon=":material/block:")
        return
    tune_markup.number(number(prediction.requests_at_once), _claim(prediction), palette.COLOURS["vllm"])
    html.facts(_facts(prediction, server))
    notes = [plain(note) for note in (*prediction.warnings, _memory(prediction), prediction.warm_up_words) if note]
    if notes:
        st.caption("  \n".join(notes))


def _claim(prediction: Prediction) -> str:
    length, most = prediction.max_model_len, prediction.config.max_num_seqs if prediction.config else None
    if prediction.max_concurrency is None or length is None:
        return "requests of full length at once"
    words = f"requests of {length:,} tokens at once"
    if most is not None and prediction.max_concurrency > most:
        return f"{words}: max_num_seqs allows no more, {prediction.max_concurrency:,.1f} would fit"
    return f"{words}: that is what the KV cache holds ({prediction.max_concurrency:,.1f})"


def _memory(prediction: Prediction) -> str:
    if not prediction.memory_words:
        return ""
    how = "Exact" if prediction.exact else "Not exact"
    return f"{how}. KV cache: {prediction.memory_words}."


def _facts(prediction: Prediction, server: ServerSnapshot) -> list[tuple[str, str, str]]:
    now = server.capacity if server.ready else KvCapacity()
    block = f"of {prediction.block_size} tokens" if prediction.block_size else ""
    return [
        ("KV cache", gib(prediction.kv_bytes), _each(prediction)),
        ("Blocks", number(prediction.num_blocks), _now(block, prediction.num_blocks, now.num_blocks)),
        ("Tokens", number(prediction.tokens), _now("", prediction.tokens, now.tokens)),
        (
            "Restart",
            seconds(prediction.restart_s),
            "median of earlier restarts" if prediction.restart_s else "no restart was timed yet",
        ),
    ]


def _each(prediction: Prediction) -> str:
    each = prediction.kv_bytes_per_token
    return f"{each:,} bytes a token" if each else ""


def _now(note: str, then: int | None, now: int | None) -> str:
    """What it is now, where that is something else."""
    return ", ".join(filter(None, (note, f"now {number(now)}" if now is not None and now != then else "")))


# -- after it


def against_actual(trial: Trial) -> None:
    """A table: predicted, actual, and by how much the first was off."""
    if found := rows(trial):
        html.table(HEAD, found)


def rows(trial: Trial) -> list[tuple[str, str, str, str]]:
    """Empty where there is nothing to compare."""
    if trial.prediction is None or trial.actual is None:
        return []
    found = [
        (one.label, amount(one.predicted, one.unit), amount(one.actual, one.unit), off(one))
        for one in outcomes(trial.prediction, trial.actual)
    ]
    return [*found, ("Restart", seconds(trial.prediction.restart_s), seconds(trial.restart_s), UNKNOWN)]


def verdict(trial: Trial) -> str:
    """The table in one sentence; empty where there is nothing to compare."""
    if trial.prediction is None or trial.actual is None:
        return ""
    return verdict_of(outcomes(trial.prediction, trial.actual))


def verdict_of(found: Sequence[Outcome]) -> str:
    errors = [abs(one.off_pct) for one in found if one.off_pct is not None]
    if not errors:
        return ""
    if max(errors) == 0:
        return "The server has exactly the KV cache that was predicted."
    return f"The prediction of the KV cache was off by {max(errors):.1f}% at most."
