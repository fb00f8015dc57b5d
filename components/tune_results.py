"""What a grid, a set or a search found: the recommendation, the table, the charts, and lines to copy."""

from __future__ import annotations

import shlex

import streamlit as st

from components import html, palette, tune_draft, tune_table
from components.format import plain, short, speed
from engine.config import DEFAULT_MODEL, LoadTestConfig, ServerConfig
from engine.load.slo import limits_of
from engine.server.state import ServerSnapshot
from engine.tuning.knobs import Value
from engine.tuning.profiles import WORKSHOP, WORKSHOP_LOAD
from engine.tuning.study import SHORT_LOAD, Recommendation, StudyConfig, StudyKind, Trial, TuneSnapshot

VIEW_BEST, VIEW_TABLE, VIEW_BARS = "Recommendation", "Table", "Bars"
VIEW_FRONT, VIEW_KNOBS = "Pareto front", "What matters"
MOST_BARS = 4


def show(now: TuneSnapshot, server: ServerSnapshot) -> None:
    """One view at a time; the recommendation first, where anything was measured."""
    from components import tune_figures  # Plotly takes a while to import: only where a chart may be drawn

    several = len(tune_figures.measured(now.trials)) > 1
    first = VIEW_BEST if now.recommendation else VIEW_TABLE
    views = [first, *([VIEW_BARS, VIEW_FRONT] if several else []), *([VIEW_KNOBS] if now.importance else [])]
    view = first
    if len(views) > 1:
        view = st.segmented_control(
            "View", views, default=first, required=True, key=f"tune_view_{first}", label_visibility="collapsed"
        )
    if view in (VIEW_BARS, VIEW_FRONT, VIEW_KNOBS):
        _chart(now, view)
        return
    if now.recommendation is not None:
        with st.container(border=True, key="tune_recommended"):
            _recommended(now, now.recommendation, server)
    tune_table.table(now)


def _recommended(now: TuneSnapshot, found: Recommendation, server: ServerSnapshot) -> None:
    chosen = now.trials[found.trial]
    level = chosen.level
    colour = palette.MEASURES["throughput" if found.meets_slo else "ttft"]
    number = short(level.throughput_tok_s if level else None)
    html.hero(number, found.words, "", colour, _bars(now, found))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Use it",
            icon=":material/tune:",
            type="primary",
            key="tune_use",
            help="Sets the knobs to it: you see what the restart will do before you apply it.",
            on_click=tune_draft.load,
            args=(server, found.config, chosen.name),
        )
        if found.yaml:
            st.download_button(
                "YAML for vllm serve",
                found.yaml,
                "vllm-serve.yaml",
                "application/yaml",
                icon=":material/download:",
                key="tune_yaml",
                on_click="ignore",
            )
        if found.command:
            with st.popover("Show the command", icon=":material/terminal:"):
                st.code(found.command, language="bash", wrap_lines=True)
                st.caption("The same as a file for `vllm serve --config`:")
                st.code(found.yaml, language="yaml")


def _bars(now: TuneSnapshot, found: Recommendation) -> list[tuple[str, float | None, str, str]]:
    """The fastest ones, the recommended one among them, in full colour."""
    ranked = sorted(
        (trial for trial in now.trials if trial.level and trial.level.throughput_tok_s is not None),
        key=lambda trial: _speed(trial) or 0.0,
        reverse=True,
    )
    shown = ranked[:MOST_BARS]
    if all(trial.number != found.trial for trial in shown):
        shown = [*shown[:-1], now.trials[found.trial]]
    return [(trial.name, _speed(trial), speed(_speed(trial)), _colour(trial, found)) for trial in shown]


def _speed(trial: Trial) -> float | None:
    return trial.level.throughput_tok_s if trial.level else None


def _colour(trial: Trial, found: Recommendation) -> str:
    return palette.MEASURES["throughput"] if trial.number == found.trial else palette.NEUTRAL


def _chart(now: TuneSnapshot, view: str) -> None:
    from components import tune_figures

    chosen = now.recommendation.trial if now.recommendation else None
    if view == VIEW_BARS:
        _plot(tune_figures.bars_figure(now.trials, chosen), tune_figures.trials_alt(now.trials))
        if len(now.trials) > tune_figures.MOST_BARS:
            st.caption(f"The {tune_figures.MOST_BARS} with the most throughput.")
    elif view == VIEW_FRONT:
        limit_ms = now.study.config.slo.ttft_ms if now.study else None
        figure = tune_figures.pareto_figure(now.trials, now.pareto, chosen, limit_ms)
        _plot(figure, tune_figures.trials_alt(now.trials))
    else:
        _plot(tune_figures.importance_figure(now.importance), tune_figures.importance_alt(now.importance))
        st.caption("Of the settings that were varied, by PED-ANOVA: what the better half has that the others lack.")


def _plot(figure: object, alt: str) -> None:
    st.plotly_chart(figure, key="tune_chart", config={"displayModeBar": False}, alt=alt)


# -- the same from a terminal


def command(config: StudyConfig) -> str:
    """``python -m engine tune …`` for the same study."""
    words = ["python", "-m", "engine", "tune"]
    if config.base.model != DEFAULT_MODEL:
        words += ["--model", config.base.model]
    if config.kind == StudyKind.SET:
        words += ["--workshop"]
    for name, values in config.space.items():
        words += [f"--{name.replace('_', '-')}", ",".join(map(_word, values))]
    if config.kind == StudyKind.SEARCH:
        words += ["--search", str(config.budget), "--sampler", str(config.sampler)]
    return shlex.join(
        words + _load_words(config.workload, WORKSHOP_LOAD if config.kind == StudyKind.SET else SHORT_LOAD)
    )


def _word(value: Value) -> str:
    return "auto" if value is None else {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _load_words(load: LoadTestConfig, usual: LoadTestConfig) -> list[str]:
    words: list[str] = []
    if load.users and load.users != usual.users:
        words += ["--users", str(load.users[0])]
    for name, flag in (("duration_s", "duration"), ("prompt_tokens", "prompt-tokens"), ("max_tokens", "max-tokens")):
        value = getattr(load, name)
        if value is not None and value != getattr(usual, name):
            words += [f"--{flag}", f"{value:g}"]
    limits = [f"{name}={limit:g}" for name, limit in limits_of(load).items()]
    return words + (["--slo", ",".join(limits)] if limits else [])


def has_command(config: StudyConfig) -> bool:
    """Whether the command line can do the same: of sets it knows the workshop's, and no base but the usual one."""
    names = tuple(one.name for one in WORKSHOP)
    usual = ServerConfig(model=config.base.model)
    same = config.base == usual or config.base == ServerConfig(model=config.base.model, port=config.base.port)
    return same and not config.workload.same_prompt and (config.kind != StudyKind.SET or config.labels == names)


def show_command(config: StudyConfig) -> None:
    if not has_command(config):
        return
    with st.expander("Show the command of the experiment", icon=":material/terminal:"):
        st.code(command(config), language="bash", wrap_lines=True)
        st.caption("`--plan` only says what each restart would do; `--json` prints everything as one document.")


def title(now: TuneSnapshot) -> str:
    """Such as “Search, 10 configurations”."""
    kinds = {StudyKind.GRID: "Grid", StudyKind.SET: "Set", StudyKind.SEARCH: "Search"}
    if now.study is None:
        return ""
    kind = kinds.get(StudyKind(str(now.study.config.kind)), "Experiment")
    return plain(f"{kind}, {len(now.trials)} configurations")
