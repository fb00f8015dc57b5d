"""Numbers of a comparison, live or from a saved run: the ratio, the bars, the facts, the levels."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import streamlit as st

from components import html, palette
from components.format import millis, number, plain, ratio, seconds, short, size, speed
from engine.compare_results import CompareResults, EngineResult, Level
from engine.environment import Environment
from engine.store import Run, RunStore

NO_NUMBERS = frozenset({"engine", "mode", "spread", "repeats"})
ORDER = ("hf", "vllm_eager", "vllm")


def last_ratio(store: RunStore) -> tuple[Run, CompareResults] | None:
    """The newest finished comparison that has a ratio."""
    for run in store.list(kind="compare", limit=20):
        saved = saved_results(run)
        if run.status == "done" and saved is not None and saved.ratio is not None:
            return run, saved
    return None


def saved_results(run: Run) -> CompareResults | None:
    """Results of a saved comparison; None for another kind of run, or one that another version wrote."""
    try:
        saved = CompareResults.from_dict(run.results)
        measured = [*saved.engines.values(), *saved.levels]
        return saved if all(_is_number(value) for one in measured for value in _numbers(one)) else None
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _numbers(measured: EngineResult | Level) -> list[Any]:
    names = [field.name for field in fields(measured) if field.name not in NO_NUMBERS]
    return [getattr(measured, name) for name in names]


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def as_dict(saved: object) -> dict[str, Any]:
    """One part of a saved run; empty when it is damaged."""
    return saved if isinstance(saved, dict) else {}


def summary_of(run: Run) -> str:
    """Hardware and software of a run in one line."""
    saved = as_dict(run.environment)
    return str(saved.get("summary") or saved.get("platform") or "")


def same_machine(run: Run, environment: Environment) -> bool:
    return summary_of(run) == environment.summary()


def engines_of(results: CompareResults) -> list[tuple[str, EngineResult]]:
    """Engines with results, Hugging Face first, vLLM last."""
    return [(name, results.engines[name]) for name in ORDER if name in results.engines]


def speed_rows(results: CompareResults) -> list[tuple[str, float | None, str, str]]:
    """Rows for ``html.bars``: tokens per second of each engine, with the spread over the repeats."""
    return [
        (palette.name(engine), values.throughput_tok_s, _speed_text(values), palette.colour(engine))
        for engine, values in engines_of(results)
    ]


def _speed_text(values: EngineResult) -> str:
    if values.throughput_tok_s is None or values.spread is None or values.spread[0] == values.spread[1]:
        return speed(values.throughput_tok_s)
    low, high = values.spread
    return f"{speed(values.throughput_tok_s)}   ({short(low)} to {short(high)})"


def headline(results: CompareResults, note: str) -> None:
    """The ratio as big as a room needs it, and the bars it comes from."""
    if results.ratio is not None:
        claim = "the tokens per second of plain Hugging Face, with vLLM, for one request"
        html.hero(ratio(results.ratio), claim, note, palette.colour("vllm"))
        st.space("xsmall")
    html.bars(speed_rows(results))


def table(results: CompareResults) -> None:
    """Every number of the single request, engine by engine."""
    rows = [
        {
            "": palette.name(engine),
            "Load": seconds(values.load_s),
            "Generation": seconds(values.generate_s),
            "Output": f"{number(values.output_tokens)} tokens",
            "Throughput": speed(values.throughput_tok_s),
            "TTFT": millis(values.ttft_ms),
            "TPOT": millis(values.tpot_ms),
            "Peak memory": size(values.peak_memory_bytes),
            "Weights read per token (computed)": size(values.weights_bytes_per_token),
        }
        for engine, values in engines_of(results)
    ]
    st.table({key: [row[key] for row in rows] for key in rows[0]} if rows else {})


def levels(results: CompareResults, key: str) -> None:
    """Throughput against users: chart, and the ratios in one line each."""
    if not results.levels:
        return
    from components import figures  # Plotly takes a while to import: only where a chart is drawn

    many = [found for found in results.level_ratios if found.against_sequential or found.against_static_batch]
    if many:
        top = many[-1]
        html.facts(
            [
                (
                    f"{top.users} users, against one after another",
                    ratio(top.against_sequential),
                    "same prompts, vLLM all at once",
                ),
                (
                    f"{top.users} users, against a static batch",
                    ratio(top.against_static_batch),
                    "Hugging Face, one batch of all",
                ),
            ],
            big=True,
        )
    st.plotly_chart(
        figures.levels_figure(results.levels),
        key=key,
        config={"displayModeBar": False},
        alt=figures.levels_alt(results.levels),
    )


def notes(results: CompareResults) -> None:
    """What a reader needs to judge the numbers."""
    lines = [*results.notes, *_context(results.context or {})]
    if lines:
        st.caption("  \n".join(plain(line) for line in lines))


def _context(context: Any) -> list[str]:
    shared = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in context.items() if value is not None)
    return [f"Same for all: {shared}"] if shared else []
