"""Turn a knob: what a restart would do while a slider moves, then the restart, and the same load before and after."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from components import errors, tune_draft, tune_knobs, tune_load, tune_prediction, tune_profiles, tune_words
from components.format import plain
from engine.config import ServerConfig
from engine.errors import LabError
from engine.server.state import ServerSnapshot
from engine.services import LabServices
from engine.tuning.knobs import Value, changed, in_words
from engine.tuning.prediction import Prediction
from engine.tuning.study import SHORT_LOAD, StudyConfig, StudyKind


def form(services: LabServices) -> None:
    """A fragment of its own: a slider redraws this part only."""
    st.fragment(_form)(services)


def _form(services: LabServices) -> None:
    server = services.supervisor.snapshot()
    base, draft = tune_draft.base_of(server), tune_draft.current(server)
    start = draft.config or base
    left, right = st.columns([11, 9], gap="large")
    with left:
        _origin(draft, base)
        try:
            chosen = tune_knobs.choose(services.tuning.knobs(start), start, draft.suffix)
        except LabError as error:
            errors.show(error)
            return
    changes = changed(base, chosen)
    with right, st.container(key="tune_prediction"):
        prediction = services.tuning.predict(base, changes)
        with st.container(border=True, key="tune_card"):
            st.caption(_title(server, changes))
            tune_prediction.card(prediction, server)
        _apply(services, server, base, changes, prediction)
        _beside(server, chosen, changes, services)


def _origin(draft: tune_draft.Draft, base: ServerConfig) -> None:
    if draft.config is None:
        return
    other = "" if draft.config.model == base.model else f" It serves another model: {draft.config.model}."
    st.caption(plain(f"From the profile “{draft.name}”.{other}"))


def _title(server: ServerSnapshot, changes: Mapping[str, Value]) -> str:
    if not server.ready:
        return "What a start will do"
    return plain(f"What a restart will do: {in_words(changes)}") if changes else "What runs now"


def _apply(
    services: LabServices,
    server: ServerSnapshot,
    base: ServerConfig,
    changes: Mapping[str, Value],
    prediction: Prediction,
) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        load = tune_load.choose(SHORT_LOAD, "tune_apply")
        measure = st.toggle(
            "Measure",
            True,
            key="tune_measure",
            persist_state="session",
            help="The same load before and after, so that the difference can be told. Off: only restart.",
        )
    config = StudyConfig(StudyKind.APPLY, base, load, candidates=(dict(changes),), measure=measure)
    blocked = why_not(server, changes, prediction)
    st.caption(_expected(services, config, blocked if prediction.starts else " "))
    pressed = st.button(
        _label(server, measure),
        type="primary",
        icon=":material/restart_alt:",
        disabled=bool(blocked),
        help=plain(blocked) or None,
        key="tune_apply",
        width="stretch",
    )
    if pressed:
        with errors.shown():
            services.tuning.start(config)
            st.rerun()


def _label(server: ServerSnapshot, measure: bool) -> str:
    return f"{'Apply' if server.ready else 'Start'}{' and measure' if measure else ''}"


def why_not(server: ServerSnapshot, changes: Mapping[str, Value], prediction: Prediction) -> str:
    """Why these settings can't be applied now; empty when they can."""
    if blocked := tune_draft.why_not(server):
        return blocked
    if not prediction.starts:
        return prediction.refusals[0].cause
    return "Nothing is changed: turn a knob first." if server.ready and not changes else ""


def _expected(services: LabServices, config: StudyConfig, blocked: str) -> str:
    """How it will be measured, and how long that takes."""
    load = f"Measured with {tune_load.in_words(config.workload)}. " if config.measure else ""
    try:
        time = tune_words.takes(services.tuning.estimate(config))
    except LabError:
        time = ""
    return plain(f"{load}{blocked or time}")


def _beside(server: ServerSnapshot, chosen: ServerConfig, changes: Mapping[str, Value], services: LabServices) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        if changes:
            st.button(
                "As it runs",
                icon=":material/undo:",
                type="tertiary",
                key="tune_reset",
                help="Put every knob back to what runs now.",
                on_click=tune_draft.load,
                args=(server, None),
            )
        tune_profiles.save_button(services, chosen)
