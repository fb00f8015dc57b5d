"""How a server is put under load, as a form that follows the choices, and how long that will take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from components import errors, load_prompts
from components.format import plain, roughly
from components.load_prompts import DEFAULTS
from engine.config import DEFAULT_MODEL, LENGTH_SHAPES, LOAD_LIMITS, LoadTestConfig
from engine.errors import ConfigError, LabError
from engine.load.estimate import LoadEstimate, estimate
from engine.server.state import ServerSnapshot
from engine.services import LabServices
from engine.units import counted


@dataclass(frozen=True)
class Profile:
    title: str
    caption: str
    words: str


PROFILES = {
    "closed": Profile("Users", "1, 5, 10, 20", "Each user asks again as soon as the answer is there: a closed loop."),
    "ramp": Profile("Ramp", "Until it is full", "Doubles the users until more of them bring nothing more."),
    "constant": Profile(
        "Constant rate", "Evenly spaced", "Requests come by the clock, whatever the server does: an open loop."
    ),
    "poisson": Profile("Poisson", "Random", "Requests come independently of each other, in clusters and with holes."),
    "burst": Profile("Burst", "All at once", "All requests come at the same moment; then nothing more."),
    "trace": Profile("Trace", "Real arrivals", "Arrival times and lengths of a recorded service."),
}
DEFAULT_TEXTS = {"closed": "1, 5, 10, 20", "burst": "8, 16, 32", "constant": "1, 2, 4", "poisson": "1, 2, 4"}
NUMBERS_RULE = (r"^\s*\d+(\.\d+)?(\s*[,; ]\s*\d+(\.\d+)?)*\s*$", "Numbers, like 1, 5, 10, 20")
RECENT = 10


def form(services: LabServices) -> LoadTestConfig | None:
    """Profile, prompts, lengths, SLO. Start is off, with the reason, while the server is reserved.

    Returns the test as it is chosen; None where the choices are none yet.
    """
    server = services.supervisor.snapshot()
    with st.container(border=True, key="load_form"):  # no st.form: the estimate follows the choices
        profile = _choose_profile()
        chosen = _chosen(services, profile)
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            config = _complete(chosen, _more_settings(chosen["prompts"]))
            if isinstance(config, LabError):
                st.caption(plain(config.cause), width="content")
            elif not server.reserved:
                _expected(services, server, config)
            st.space("stretch")
            pressed = st.button(
                "Start the load test",
                type="primary",
                icon=":material/play_arrow:",
                disabled=bool(server.reserved),
                help=plain(server.reserved) or None,
                key="load_start",
            )
    if pressed:
        with errors.shown():
            if isinstance(config, LabError):
                raise config
            services.load.start(config)
            st.rerun()
    return config if isinstance(config, LoadTestConfig) else None


def _choose_profile() -> str:
    chosen = st.radio(
        "Profile",
        list(PROFILES),
        format_func=lambda name: PROFILES[name].title,
        captions=[profile.caption for profile in PROFILES.values()],
        horizontal=True,
        label_visibility="collapsed",
        key="load_profile",
        bind="query-params",
        width="stretch",
    )
    st.caption(PROFILES[chosen or "closed"].words)
    return chosen or "closed"


def _chosen(services: LabServices, profile: str) -> dict[str, Any]:
    """What the form says, as it was typed: nothing is wrong before every widget is drawn."""
    pressure, prompts, lengths = st.columns([5, 4, 5], gap="medium")
    with pressure:
        typed = _pressure(profile)
    with prompts:
        source = load_prompts.source(services, profile)
    with lengths:
        wanted = load_prompts.lengths(profile, source["prompts"])
    return {"profile": profile} | typed | source | wanted | _good_enough()


def _complete(chosen: dict[str, Any], more: dict[str, Any]) -> LoadTestConfig | LabError:
    """The settings of a load test, or why these are none."""
    chosen = chosen | more
    problem = chosen.pop("problem", None)
    if isinstance(problem, LabError):
        return problem
    try:
        return LoadTestConfig(**_numbers(chosen))
    except LabError as error:
        return error


# -- how many, how often, how long


def _pressure(profile: str) -> dict[str, Any]:
    left, right = st.columns([3, 2], gap="small", vertical_alignment="bottom")
    with left:
        typed = _ramp() if profile == "ramp" else _trace_speed() if profile == "trace" else _levels(profile)
    if profile == "burst":
        return typed
    with right:
        typed["duration_s"] = st.number_input(
            "Seconds each" if profile != "trace" else "Seconds",
            1.0,
            3600.0,
            None if profile in ("closed", "ramp") else 30.0,
            5.0,
            format="%.0f",
            placeholder="automatic",
            key=f"load_seconds_{profile}",
            persist_state="session",
            help="How long a level takes new requests. Automatic: at least 20 requests, and three of every user.",
        )
    return typed


def _levels(profile: str) -> dict[str, Any]:
    label = {"closed": "Users at the same time", "burst": "Requests at once"}.get(profile, "Requests per second")
    text = st.text_input(
        label,
        DEFAULT_TEXTS[profile],
        max_chars=200,
        validate=NUMBERS_RULE,
        key=f"load_levels_{profile}",
        bind="query-params",
        help="A level for each number, one after the other.",
    )
    return {"levels": text or ""}


def _ramp() -> dict[str, Any]:
    low, high = st.columns(2, gap="small")
    first = low.number_input("From users", 1, 10_000, 1, key="load_ramp_from", bind="query-params")
    last = high.number_input("To users", 1, 10_000, 64, key="load_ramp_to", bind="query-params")
    return {"levels": f"{first}, {last}"}


def _trace_speed() -> dict[str, Any]:
    speed = st.number_input(
        "Speed (× recorded)",
        *map(float, LOAD_LIMITS["trace_speed"]),
        1.0,
        0.5,
        format="%g",
        key="load_trace_speed",
        persist_state="session",
        help="2: requests come twice as fast as they were recorded.",
    )
    return {"trace_speed": float(speed or 1.0)}


def _numbers(chosen: dict[str, Any]) -> dict[str, Any]:
    """With the list of loads as numbers; raises ConfigError."""
    text = chosen.pop("levels", None)
    if text is None:
        return chosen
    name, kind = ("rates", float) if chosen["profile"] in ("constant", "poisson") else ("users", int)
    try:
        loads = tuple(kind(word) for word in text.replace(",", " ").replace(";", " ").split())
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{text!r} is not a list of {what}.", "Write it like 1, 5, 10, 20.") from None
    return chosen | {name: tuple(sorted(set(loads)))}


# -- what is good enough, and the rest


def _good_enough() -> dict[str, Any]:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        return {
            "slo_ttft_ms": _limit("TTFT at most (ms)", "load_slo_ttft", DEFAULTS.slo_ttft_ms, 50.0),
            "slo_tpot_ms": _limit("TPOT at most (ms)", "load_slo_tpot", DEFAULTS.slo_tpot_ms, 10.0),
            "slo_e2e_ms": _limit("E2E at most (ms)", "load_slo_e2e", None, 500.0),
            "same_prompt": st.toggle(
                "Same prompt for all",
                key="load_same",
                persist_state="session",
                help="The prefix cache then answers for most of the prompt: TTFT looks better than for real users.",
            ),
        }


def _limit(label: str, key: str, value: float | None, step: float) -> float | None:
    st.session_state.setdefault(key, value)  # a number given as the widget's own default could not be cleared
    return st.number_input(
        label,
        0.1,
        86_400_000.0,
        None,
        step,
        format="%g",
        placeholder="no limit",
        key=key,
        persist_state="session",
        width=150,
        help="A request that meets every limit counts for goodput (the SLO).",
    )


def _more_settings(prompts: str) -> dict[str, Any]:
    with st.popover("More settings", icon=":material/tune:"):
        return _more(prompts)


def _more(prompts: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "requests": st.number_input(
            "Requests in a level",
            1,
            100_000,
            None,
            placeholder="automatic",
            key="load_requests",
            persist_state="session",
        ),
        "nonce": st.toggle(
            "Begin every prompt with something of its own",
            True,
            key="load_nonce",
            persist_state="session",
            help="A nonce, so that the prefix cache has nothing to answer with.",
        ),
        "force_length": st.toggle(
            "Force the length of answers", True, key="load_force", persist_state="session", help="`ignore_eos`"
        ),
        "warm_up": st.toggle("Warm up before every level, not counted", True, key="load_warm", persist_state="session"),
    }
    if prompts == "synthetic":
        found |= _shape("prompt", "Prompt lengths")
    if prompts not in ("sharegpt", "file"):
        found |= _shape("output", "Output lengths")
    found["timeout_s"] = float(
        st.number_input("Give up a request after (s)", 1, 86_400, 300, key="load_timeout", persist_state="session")
    )
    found["seed"] = int(
        st.number_input(
            "Seed",
            0,
            1_000_000,
            0,
            key="load_seed",
            persist_state="session",
            help="The same seed gives the same lengths and arrivals.",
        )
    )
    return found


def _shape(which: str, label: str) -> dict[str, Any]:
    left, right = st.columns(2, gap="small")
    shape = left.selectbox(label, LENGTH_SHAPES, key=f"load_{which}_shape", persist_state="session")
    spread = right.number_input(
        "Spread",
        0.0,
        1.0,
        0.5,
        0.1,
        disabled=shape == "fixed",
        key=f"load_{which}_spread",
        persist_state="session",
        help="Half the width (uniform) or the standard deviation, as a share of the mean.",
    )
    return {f"{which}_shape": shape, f"{which}_spread": 0.0 if shape == "fixed" else float(spread)}


# -- how long it will take


def _expected(services: LabServices, server: ServerSnapshot, config: LoadTestConfig) -> None:
    """Levels, requests and time of these choices; nothing where they can't be sent."""
    model = server.endpoint.model if server.endpoint else server.config.model if server.config else DEFAULT_MODEL
    try:
        runs = services.store.list(kind="load", limit=RECENT)
        found = estimate(runs, config, machine=services.environment.summary(), model=model)
    except LabError:
        return
    st.caption(plain(expected_words(found, server.ready, config.profile)), width="content")


def expected_words(found: LoadEstimate, ready: bool, profile: str = "closed") -> str:
    """“4 levels · 140 requests · about 40 s (from 2 earlier runs)”."""
    most = "up to " if profile == "ramp" else ""
    parts = [f"{most}{counted(found.levels, 'level')}"]
    if found.requests is not None:
        parts.append(f"{most}{counted(found.requests, 'request')}")
    if found.span is not None:
        origin = {0: "", 1: " (from the last run)"}.get(found.runs, f" (from {found.runs} earlier runs)")
        parts.append(roughly(found.span.low_s, found.span.high_s) + origin)
    if not ready:
        parts.append("starts the server first")
    words = " · ".join(parts)
    return words[0].upper() + words[1:]
