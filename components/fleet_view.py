"""Several servers on one page: sums on top, a row for each, one chart."""

from __future__ import annotations

import streamlit as st

from components import errors, fleet_figures, html
from components.format import number, plain
from engine.fleet import Fleet, FleetSnapshot, TargetView, Totals

HEAD = ("Target", "Engine", "Running", "Waiting", "KV cache", "Generated", "Prompt", "Preemptions")
HELPS = {
    "KV cache": "Share of the KV cache in use.",
    "Generated": "Tokens per second over the last 5 seconds.",
    "Prompt": "Tokens per second over the last 5 seconds.",
    "Preemptions": "Since that server's start.",
}
CHARTS = {
    "Generated tok/s": lambda moment: moment.generation_tok_s,
    "Requests running": lambda moment: moment.metrics and moment.metrics.running,
    "Requests waiting": lambda moment: moment.metrics and moment.metrics.waiting,
    "KV cache, %": lambda moment: fleet_figures.percent(moment.metrics and moment.metrics.kv_cache_usage),
}
WHERE = """
**vLLM production stack.** Every engine pod has its metrics on the port of its API:
`kubectl port-forward pod/NAME 8001:8000`, then add `http://127.0.0.1:8001`. The router's own metrics know requests, but
no tokens: add the pods.

**Ray Serve.** Ray collects the engines' metrics on a port of each node: start Ray with `--metrics-export-port=8080`,
then add `http://NODE:8080`. Names begin with `ray_vllm` there; the lab knows them.

**llm-d.** The model server pods are vLLM (or SGLang) with their own `/metrics`: forward a port of each, as above. The
inference gateway has none of them.

**Anything else** that answers with vLLM's, SGLang's, llama.cpp's, TGI's, LMDeploy's or TensorRT-LLM's metrics works.
For weeks of history, use Prometheus: `docs/prometheus.md`.
"""


def add_form(fleet: Fleet) -> None:
    """Base URL, name and key of one more target."""
    with st.form("fleet_add", clear_on_submit=True, border=False):
        url, name, key, button = st.columns([4, 2, 2, 1], vertical_alignment="bottom")
        base_url = url.text_input("Base URL", placeholder="http://10.0.0.5:8000", key="fleet_url")
        words = name.text_input("Name (optional)", key="fleet_name")
        secret = key.text_input("API key (optional)", type="password", key="fleet_key", help="Kept in memory only.")
        added = button.form_submit_button("Add", icon=":material/add:", type="primary", width="stretch")
    if added:
        with errors.shown():
            fleet.add(base_url, words, secret)


def add_own(fleet: Fleet, base_url: str, api_key: str | None) -> None:
    """The lab's server is a good first target."""
    if st.button("Add the lab's server", icon=":material/add:", key="fleet_own"):
        with errors.shown():
            fleet.add(base_url, "This lab", api_key or "")
            st.rerun()


def where() -> None:
    with st.expander("Where a fleet's metrics are", icon=":material/help:"):
        st.markdown(WHERE)


def live(fleet: Fleet) -> None:
    now = fleet.look()
    if not now.targets:
        st.info("Add the address of a server. Its metrics are read once a second while this page is open.")
        return
    _sums(now.totals, len(now.targets))
    html.table(HEAD, [_row(target) for target in now.targets], HELPS)
    for target in now.targets:
        if target.problem:
            st.caption(f"**{plain(target.name)}**: {plain(target.problem)}")
    _chart(now)


def remove(fleet: Fleet) -> None:
    names = [target.name for target in fleet.look().targets]
    if not names:
        return
    with st.popover("Remove", icon=":material/remove:"):
        for name in names:
            if st.button(plain(name), key=f"fleet_remove_{name}", width="stretch"):
                fleet.remove(name)
                st.rerun()


def _sums(totals: Totals, targets: int) -> None:
    cells = st.columns(5)
    cells[0].metric("Targets answering", f"{totals.answering} of {targets}")
    cells[1].metric("Generated tok/s, sum", number(totals.generation_tok_s))
    cells[2].metric("Running, sum", number(totals.running))
    cells[3].metric("Waiting, sum", number(totals.waiting))
    cells[4].metric("Fullest KV cache", _share(totals.kv_cache_usage))


def _row(target: TargetView) -> tuple[str, ...]:
    moment, metrics = target.now, target.now.metrics if target.now else None
    engine = target.detected.words if target.detected else "—"
    if moment is None or metrics is None:
        return (target.name, engine, *["—"] * (len(HEAD) - 2))
    return (
        target.name,
        engine,
        number(metrics.running),
        number(metrics.waiting),
        _share(metrics.kv_cache_usage),
        number(moment.generation_tok_s),
        number(moment.prompt_tok_s),
        number(metrics.preemptions),
    )


def _chart(now: FleetSnapshot) -> None:
    choice = st.segmented_control("Chart", list(CHARTS), default=next(iter(CHARTS)), key="fleet_chart")
    title = choice or next(iter(CHARTS))
    st.plotly_chart(
        fleet_figures.lines(now.targets, title, CHARTS[title]), key="fleet_figure", alt=f"{title} by target"
    )


def _share(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.1f}%"
