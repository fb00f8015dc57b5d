"""The workshop's summary: the newest comparison, load test and tuning, each with its date and hardware."""

from __future__ import annotations

import streamlit as st

from components import html, results
from components.format import UNKNOWN, millis, moment, plain, ratio, short
from components.load_values import saved_load
from engine.store import Run, RunStore
from engine.tuning.study import Trial

MOST_LEVELS, MOST_TRIALS = 6, 6


def summary(store: RunStore) -> None:
    """Three boxes; what was not measured says how to measure it. Raises StoreError."""
    st.subheader("Measured so far", anchor=False)
    with st.container(border=True, key="monitor_compare"):
        _compare(store)
    load, tune = st.columns(2, gap="medium")
    with load.container(border=True, height="stretch", key="monitor_load"):
        _load(store)
    with tune.container(border=True, height="stretch", key="monitor_tune"):
        _tune(store)


def _compare(store: RunStore) -> None:
    found = results.last_ratio(store)
    if found is None:
        _nothing("HF vs vLLM", "pages/compare.py", "Measure HF against vLLM")
        return
    run, saved = found
    st.markdown(f"**vLLM is {plain(ratio(saved.ratio))} as fast as Hugging Face**")
    html.bars(results.speed_rows(saved))
    _origin(run)


def _load(store: RunStore) -> None:
    run = _newest(store, "load")
    saved = saved_load(run) if run else None
    if run is None or saved is None or not saved.levels:
        _nothing("Load test", "pages/load.py", "Run a load test")
        return
    st.markdown("**Load test**")
    rows = [
        (level.label, short(level.throughput_tok_s), millis(level.ttft_ms.p95 if level.ttft_ms else None))
        for level in saved.levels[:MOST_LEVELS]
    ]
    html.table(("Level", "tok/s", "TTFT p95"), rows)
    _origin(run)


def _tune(store: RunStore) -> None:
    runs = [
        run for one in store.summaries(kind="tune", limit=MOST_TRIALS) if (run := store.get(one.id)) and _trial(run)
    ]
    if not runs:
        _nothing("Tuning", "pages/tune.py", "Try other settings")
        return
    st.markdown("**Tuning, newest first**")
    html.table(("Setting", "tok/s", "TTFT p95"), [_trial_row(run) for run in runs])
    _origin(runs[0])


def _trial(run: Run) -> Trial | None:
    """None for one that another version wrote."""
    try:
        return Trial.from_dict(run.results["trial"])
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _trial_row(run: Run) -> tuple[str, str, str]:
    trial = _trial(run)
    level = trial.level if trial else None
    if trial is None or level is None:
        return (trial.name if trial else run.title, UNKNOWN, UNKNOWN)
    return trial.name, short(level.throughput_tok_s), millis(level.ttft_ms.p95 if level.ttft_ms else None)


def _newest(store: RunStore, kind: str) -> Run | None:
    found = [one for one in store.summaries(kind=kind, limit=results.RECENT) if one.status == "done"]
    return store.get(found[0].id) if found else None


def _nothing(title: str, page: str, label: str) -> None:
    st.markdown(f"**{title}**")
    st.caption("Nothing measured yet.")
    st.page_link(page, label=label, icon=":material/play_arrow:")


def _origin(run: Run) -> None:
    st.caption(plain(f"{moment(run.created_at)} · {results.summary_of(run)}"))
