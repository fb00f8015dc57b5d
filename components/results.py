"""Numbers of a comparison, live or from a saved run: the ratio, the bars, the facts, the levels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import streamlit as st

from components import compare_lesson, html, palette
from components.format import millis, number, plain, ratio, seconds, short, size, speed
from engine.compare_results import CompareResults, EngineResult, Level
from engine.config import PEER_ENGINES
from engine.environment import Environment
from engine.store import Run, RunStore

NO_NUMBERS = frozenset({"engine", "mode", "spread", "repeats"})
UNSTEADY = 1.5
ORDER = ("hf", *PEER_ENGINES, "vllm_eager", "vllm")
RECENT = 20
MEMORY_NOTES = {
    "cpu": "Memory is what all processes of an engine occupy; vLLM's includes the KV cache that it reserves.",
    "cuda": "Memory is what torch had allocated on the GPU at most; vLLM doesn't tell.",
}
CONTEXT_WORDS = {
    "model": "model {}",
    "weights": "weights {}",
    "dtype": "dtype {}",
    "device": "on {}",
    "threads": "{} threads",
}


def last_ratio(store: RunStore) -> tuple[Run, CompareResults] | None:
    """The newest finished comparison that has a ratio; raises StoreError."""
    for summary in store.summaries(kind="compare", limit=RECENT):
        run = store.get(summary.id) if summary.status == "done" and summary.ratio is not None else None
        saved = saved_results(run) if run else None
        if run and saved and saved.ratio is not None:
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


def context_of(results: CompareResults) -> Mapping[str, Any]:
    return results.context if isinstance(results.context, Mapping) else {}


def is_of_attached_server(results: CompareResults) -> bool:
    """Somebody else's server was measured: how it runs isn't known."""
    context = context_of(results)
    return bool(context.get("model")) and context.get("vllm_eager") is None


def name_in(results: CompareResults) -> Callable[[str], str]:
    """Name of an engine in these results."""
    foreign = is_of_attached_server(results)
    return lambda engine: "Attached server" if foreign and engine == "vllm" else palette.name(engine)


def engines_of(results: CompareResults) -> list[tuple[str, EngineResult]]:
    """Engines with results, Hugging Face first, vLLM last."""
    return [(name, results.engines[name]) for name in ORDER if name in results.engines]


def speed_rows(results: CompareResults) -> list[tuple[str, float | None, str, str]]:
    """Rows for ``html.bars``: tokens per second of each engine, with the spread over the repeats."""
    name_of = name_in(results)
    return [
        (name_of(engine), values.throughput_tok_s, _speed_text(values), palette.colour(engine))
        for engine, values in engines_of(results)
    ]


def _speed_text(values: EngineResult) -> str:
    if values.throughput_tok_s is None or values.spread is None or values.spread[0] == values.spread[1]:
        return speed(values.throughput_tok_s)
    low, high = values.spread
    return f"{speed(values.throughput_tok_s)}   ({short(low)} to {short(high)})"


def headline(results: CompareResults, note: str) -> None:
    """The ratio as big as a room needs it, the bars it comes from, and what speaks against them."""
    if results.ratio is None:
        html.bars(speed_rows(results))
    else:
        _hero(results, note)
    for warning in results.warnings:
        st.warning(plain(warning), icon=":material/speed:")


def _hero(results: CompareResults, note: str) -> None:
    who = "one request to the attached server" if is_of_attached_server(results) else "one request"
    claim = f"the tokens per second of plain Hugging Face, {who}"
    doubt = (
        " · The ranges overlap: measure again while nothing else runs."
        if ranges_overlap(results)
        else _unsteady(results)
    )
    html.hero(ratio(results.ratio), claim, note + doubt, palette.colour("vllm"), speed_rows(results))


def _unsteady(results: CompareResults) -> str:
    """What to say where the repeats of one engine differ more than the engines often do."""
    spreads = [values.spread for values in results.engines.values() if values.spread]
    if all(high <= UNSTEADY * low for low, high in spreads):
        return ""
    return " · The repeats differ widely: measure again while nothing else runs."


def ranges_overlap(results: CompareResults) -> bool:
    """The slowest repeat of one engine was no faster than the fastest of the other."""
    spreads = [values.spread for name, values in results.engines.items() if name in ("hf", "vllm")]
    if len(spreads) < 2 or not all(spreads):
        return False
    (low_a, high_a), (low_b, high_b) = (spread for spread in spreads if spread)
    return low_a <= high_b and low_b <= high_a


def details(results: CompareResults, key: str) -> None:
    """Everything under the headline."""
    for sentence in compare_lesson.sentences(results):
        st.markdown(f"**{plain(sentence)}**")
    levels(results, key)
    numbers, words = st.columns([3, 2], gap="large")
    with numbers:
        table(results)
    with words:
        notes(results)


def table(results: CompareResults) -> None:
    """Every number of the single request, one column an engine."""
    engines, name_of = engines_of(results), name_in(results)
    if not engines:
        return
    rows = (
        ("Throughput", lambda values: speed(values.throughput_tok_s)),
        ("Generation", lambda values: seconds(values.generate_s)),
        ("Output", lambda values: f"{number(values.output_tokens)} tokens"),
        ("TTFT", lambda values: millis(values.ttft_ms)),
        ("TPOT", lambda values: millis(values.tpot_ms)),
        ("Load", lambda values: seconds(values.load_s)),
        ("Memory, all processes", lambda values: size(values.memory_bytes)),
        ("Weights read per token (computed)", lambda values: size(values.weights_bytes_per_token)),
    )
    html.table(
        ("One request", *(name_of(engine) for engine, _ in engines)),
        [(label, *(shown(values) for _, values in engines)) for label, shown in rows],
    )


def levels(results: CompareResults, key: str) -> None:
    """Throughput against users, where more than one was measured: the ratios, and the chart."""
    if all(level.users == 1 for level in results.levels):
        return
    from components import figures  # Plotly takes a while to import: only where a chart is drawn

    st.subheader("More users", anchor=False)
    left, right = st.columns([2, 5], gap="medium")
    with left:
        html.facts(_level_facts(results), big=True)
    name_of = name_in(results)
    right.plotly_chart(
        figures.levels_figure(results.levels, name_of),
        key=key,
        config={"displayModeBar": False},
        alt=figures.levels_alt(results.levels, name_of),
    )


def _level_facts(results: CompareResults) -> list[tuple[str, str, str]]:
    """What the largest number of users gave, as multiples of Hugging Face."""
    many = [found for found in results.level_ratios if found.users > 1]
    if not many:
        return []
    top, who = many[-1], name_in(results)("vllm")
    against = (
        ("against one after another", top.against_sequential, f"same prompts, {who} all at once"),
        ("against a static batch", top.against_static_batch, "Hugging Face, one batch of all"),
    )
    return [(f"{top.users} users, {what}", ratio(value), note) for what, value, note in against if value is not None]


def notes(results: CompareResults) -> None:
    """What a reader needs to judge the numbers."""
    memory = any(values.memory_bytes is not None for values in results.engines.values())
    memory_note = MEMORY_NOTES.get(str(context_of(results).get("device", "cpu")), "") if memory else ""
    lines = [line for line in (*results.notes, memory_note, *_context(results)) if line]
    if lines:
        st.caption("  \n".join(plain(line) for line in lines))


def _context(results: CompareResults) -> list[str]:
    """What was measured, in words: the same for both engines, or of Hugging Face only."""
    context = context_of(results)
    shared = [words.format(context[name]) for name, words in CONTEXT_WORDS.items() if context.get(name) is not None]
    both = "Same for all" if len(results.engines) > 2 else "Same for both" if len(results.engines) > 1 else "Measured"
    if "llamacpp" in results.engines:
        both = "Same for all, but llama.cpp keeps the weights quantised"
    who = "Hugging Face ran" if "hf" in results.engines and is_of_attached_server(results) else both
    lines = [f"{who}: {', '.join(shared)}."] if shared else []
    if context.get("hf_attention"):
        lines.append(f"Hugging Face's attention: {context['hf_attention']}.")
    eager = context.get("vllm_eager")
    if eager is not None:
        lines.append("vLLM ran eagerly, without compilation." if eager else "vLLM ran compiled, with graphs.")
    return lines
