"""How an apply ended: before → after in big numbers, why, how right the prediction was, and the way back."""

from __future__ import annotations

import streamlit as st

from components import errors, html, tune_draft, tune_markup, tune_prediction, tune_words
from components.format import plain
from components.tune_markup import Change
from engine.config import ServerConfig
from engine.server.state import ServerSnapshot
from engine.services import LabServices
from engine.tuning.explain import Delta, Difference
from engine.tuning.knobs import changed, in_words
from engine.tuning.study import Study, StudyState, Trial, TuneSnapshot

BIG = ("throughput_tok_s", "ttft_p95_ms", "tpot_p50_ms", "server_queue_mean_ms")


def show(services: LabServices, now: TuneSnapshot) -> None:
    """Nothing where nothing was applied yet."""
    study = now.study
    if study is None:
        return
    trial = study.trials[-1]
    cause, remedy = (now.error, now.remedy) if now.error else (_cause(trial), trial.remedy)
    if cause:
        words = " ".join(filter(None, (remedy, now.went_back)))
        st.error(f"**{plain(cause)}**\n\n{plain(words)}", icon=":material/error:")
    elif now.state == StudyState.CANCELLED:
        st.info(plain(now.went_back or "Cancelled before it was applied."), icon=":material/undo:")
    if trial.done:
        with st.container(border=True, key="tune_outcome"):
            _done(now, study, trial)


def _cause(trial: Trial) -> str:
    return f"{trial.name}: {trial.error}" if trial.error else ""


def _done(now: TuneSnapshot, study: Study, trial: Trial) -> None:
    st.caption(plain(title(trial, study)))
    if now.difference is not None:
        _difference(now.difference)
    elif trial.level is not None:
        _alone(trial)
    for words in filter(None, map(tune_words.age, study.measured)):
        st.caption(plain(words))
    left, right = st.columns([1, 1], gap="large") if now.difference is not None else (st.container(), st.container())
    with left:
        if words := tune_prediction.verdict(trial):
            st.markdown(f"**{plain(words)}**")
        tune_prediction.against_actual(trial)
    with right:
        if now.difference is not None:
            _why(now.difference)


def title(trial: Trial, study: Study) -> str:
    return f"Applied: {in_words(trial.changes)}" if trial.changes else f"Measured as it runs: {study.config.base.model}"


def _difference(found: Difference) -> None:
    by_name = {delta.name: delta for delta in found.deltas}
    st.markdown(f"### {plain(found.headline)}")
    tune_markup.changes(map(change_of, (by_name[name] for name in BIG if name in by_name)))


def change_of(delta: Delta) -> Change:
    before, after = (tune_words.amount(value, delta.unit) for value in (delta.before, delta.after))
    return Change(
        delta.label,
        before.removesuffix(f" {delta.unit}") if after.endswith(f" {delta.unit}") else before,
        after,
        tune_words.change(delta),
        delta.better,
    )


def _why(found: Difference) -> None:
    """Causes, doubts, and every other measure."""
    st.markdown("**Why**" if found.causes else "**The server's own numbers name no cause.**")
    for cause in found.causes:
        st.markdown(plain(cause))
    for caveat in found.caveats:
        st.caption(f":material/warning: {plain(caveat)}")
    with st.popover("All measures", icon=":material/table_rows:"):
        rows = [
            (
                one.label,
                tune_words.amount(one.before, one.unit),
                tune_words.amount(one.after, one.unit),
                tune_words.change(one),
            )
            for one in found.deltas
        ]
        html.table(("", "Before", "After", "Change"), rows)


def _alone(trial: Trial) -> None:
    """There was nothing to compare with: what ran before was not measured."""
    level = trial.level
    assert level is not None
    ttft, tpot = level.ttft_ms, level.tpot_ms
    html.facts(
        [
            ("Throughput", tune_words.amount(level.throughput_tok_s, "tok/s"), level.label),
            ("TTFT p95", tune_words.amount(ttft.p95 if ttft else None, "ms"), ""),
            ("TPOT p50", tune_words.amount(tpot.p50 if tpot else None, "ms"), ""),
        ],
        big=True,
    )


def back_button(services: LabServices, now: TuneSnapshot, server: ServerSnapshot) -> None:
    """One click to what ran before the last apply; nothing where there is no way back."""
    if now.previous is None or now.running:
        return
    blocked = tune_draft.why_not(server)
    if st.button(
        "Back to the last configuration",
        icon=":material/undo:",
        key="tune_back",
        disabled=bool(blocked),
        help=plain(blocked or f"Restarts with {_way_back(server.config, now.previous)}."),
    ):
        with errors.shown():
            services.tuning.go_back()
            st.rerun()


def _way_back(now: ServerConfig | None, previous: ServerConfig) -> str:
    return in_words(changed(now, previous)) if now is not None else "what ran before"
