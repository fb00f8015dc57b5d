"""What to try, as a form that follows the choices: the workshop's set, a grid, or a search, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import streamlit as st

from components import errors, html, tune_draft, tune_load, tune_words
from components.format import plain
from engine.config import LoadTestConfig, ServerConfig
from engine.errors import ConfigError, LabError
from engine.server.state import ServerSnapshot
from engine.services import LabServices
from engine.tuning.grid import combinations
from engine.tuning.knobs import Knob, Value, in_words
from engine.tuning.profiles import WORKSHOP, WORKSHOP_LOAD
from engine.tuning.study import MOST_TRIALS, SHORT_LOAD, Sampler, StudyConfig, StudyKind

KINDS = {"The workshop's": StudyKind.SET, "Grid": StudyKind.GRID, "Search": StudyKind.SEARCH}
WORDS = {
    StudyKind.SET: "Each of these under the same load.",
    StudyKind.GRID: "Every combination of the values that you choose.",
    StudyKind.SEARCH: "Optuna chooses what to try next from what it has seen: fewer trials than the whole grid.",
}
SAMPLERS = {
    Sampler.TPE: "Most throughput within the limits (TPE)",
    Sampler.NSGA2: "Latency against throughput (NSGA-II)",
}
SUGGESTED: Mapping[str, tuple[Value, ...]] = {
    "max_num_seqs": (4, 16, 64),
    "max_num_batched_tokens": (128, 512, 2048),
    "enable_prefix_caching": (True, False),
    "max_model_len": (512, 2048),
}
FIRST_KNOBS = ("max_num_seqs", "max_num_batched_tokens")
# Each is predicted before the start; beyond this many it would make the form slow.
MOST_PREDICTED = 24


def form(services: LabServices) -> None:
    """A fragment of its own, so that a choice redraws this part only."""
    st.fragment(_form)(services)


def _form(services: LabServices) -> None:
    server = services.supervisor.snapshot()
    base = tune_draft.base_of(server)
    with st.container(border=True, key="tune_experiment"):
        chosen = st.segmented_control(
            "Experiment",
            list(KINDS),
            default="The workshop's",
            required=True,
            key="tune_kind",
            persist_state="session",
            label_visibility="collapsed",
        )
        kind = KINDS[chosen or "Grid"]
        st.caption(WORDS[kind])
        try:
            config = _chosen(services, kind, base)
            problem: LabError | None = None
        except LabError as error:
            config, problem = None, error
        _start(services, server, config, problem)


def _chosen(services: LabServices, kind: StudyKind, base: ServerConfig) -> StudyConfig:
    """What the form says; every widget is drawn before anything can be wrong with one of them."""
    if kind == StudyKind.SET:
        names = _presets()
        load = _load(WORKSHOP_LOAD, "tune_set")
        chosen = [one for one in WORKSHOP if one.name in names]
        changes, labels = tuple(dict(one.changes) for one in chosen), tuple(one.name for one in chosen)
        return StudyConfig(kind, base, load, candidates=changes, labels=labels)
    space = _space(services.tuning.knobs(base))
    budget, sampler = _search(space) if kind == StudyKind.SEARCH else (1, Sampler.TPE)
    load = _load(SHORT_LOAD, "tune_space")
    return StudyConfig(kind, base, load, space=space, budget=budget, sampler=sampler)


def _presets() -> list[str]:
    names = [one.name for one in WORKSHOP]
    chosen = st.pills(
        "Configurations",
        names,
        selection_mode="multi",
        default=names,
        key="tune_presets",
        persist_state="session",
        label_visibility="collapsed",
    )
    rows = [(one.name, in_words(one.changes), one.note) for one in WORKSHOP if one.name in chosen]
    if rows:
        html.table(("", "Settings", "What it shows"), rows)
    return list(chosen)


def _space(knobs: Sequence[Knob]) -> dict[str, tuple[Value, ...]]:
    """The values of each chosen knob."""
    offered = {knob.name: knob for knob in knobs if knob.offered}
    names = st.multiselect(
        "Knobs",
        list(offered),
        [name for name in FIRST_KNOBS if name in offered],
        format_func=lambda name: f"{offered[name].label} ({name})",
        key="tune_knobs",
        persist_state="session",
        placeholder="Choose what to vary",
    )
    return {name: _values(offered[name]) for name in names}


def _values(knob: Knob) -> tuple[Value, ...]:
    bare = replace(knob, unit="")  # the label names it once
    by_words = {bare.show(value): value for value in knob.values}
    suggested = SUGGESTED.get(knob.name, knob.values[:2])
    chosen = st.pills(
        f"{knob.label} ({knob.name}{f', {knob.unit}' if knob.unit else ''})",
        list(by_words),
        selection_mode="multi",
        default=[words for words, value in by_words.items() if value in suggested],
        key=f"tune_values_{knob.name}",
        persist_state="session",
        help=plain(knob.trades),
    )
    return tuple(by_words[words] for words in chosen)


def _search(space: Mapping[str, tuple[Value, ...]]) -> tuple[int, Sampler]:
    left, right = st.columns(2, gap="medium")
    budget = left.number_input(
        "Trials",
        1,
        MOST_TRIALS,
        10,
        key="tune_budget",
        persist_state="session",
        help="The budget: so many configurations are restarted and measured.",
    )
    words = right.selectbox("Looks for", list(SAMPLERS.values()), key="tune_sampler", persist_state="session")
    return int(budget), next(sampler for sampler, one in SAMPLERS.items() if one == words)


def _load(defaults: LoadTestConfig, prefix: str) -> LoadTestConfig:
    limits, load = st.columns([3, 1], gap="medium", vertical_alignment="bottom")
    with load:
        chosen = tune_load.choose(defaults, prefix)
    with limits:
        return tune_load.choose_limits(chosen, "tune_slo")


# -- before it starts


def _start(services: LabServices, server: ServerSnapshot, config: StudyConfig | None, problem: LabError | None) -> None:
    blocked = tune_draft.why_not(server) or (problem.cause if problem is not None else "")
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if config is not None:
            st.markdown(plain(_budget(services, config)), width="content")
        st.space("stretch")
        pressed = st.button(
            "Start the experiment",
            type="primary",
            icon=":material/play_arrow:",
            disabled=bool(blocked),
            help=plain(blocked) or None,
            key="tune_start",
        )
    if config is not None:
        st.caption(plain(f"Measured with {tune_load.in_words(config.workload)}. {_refused(services, config)}"))
    elif problem is not None:
        st.caption(plain(f"{problem.cause} {problem.remedy}"))
    if pressed and config is not None:
        with errors.shown():
            services.tuning.start(config)
            st.rerun()


def _budget(services: LabServices, config: StudyConfig) -> str:
    """“6 configurations. About 4 min.”"""
    count = f"{config.trials} {'configuration' if config.trials == 1 else 'configurations'}"
    if config.kind == StudyKind.SEARCH:
        count += f" of {config.combinations:,}"
    try:
        return f"{count}. {tune_words.takes(services.tuning.estimate(config))}"
    except LabError:
        return f"{count}."


def _refused(services: LabServices, config: StudyConfig) -> str:
    """How many are known not to start; they cost no time."""
    if config.combinations > MOST_PREDICTED:
        return ""
    changes = config.candidates or tuple(combinations(config.space))
    try:
        found = [services.tuning.predict(config.base, one) for one in changes]
    except ConfigError:
        return ""
    refused = [one for one in found if not one.starts]
    if not refused:
        return ""
    return f"{len(refused)} of them can't start and will be skipped, such as: {refused[0].refusals[0].cause}"
