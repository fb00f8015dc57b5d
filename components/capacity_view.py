"""The answer of “How many fit?”: users, the numbers they come from, and every card beside each other."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from components import html, palette
from components.capacity_figures import Users, users_alt, users_figure
from components.capacity_form import Subject
from components.format import UNKNOWN, number, plain, ratio
from engine.environment import GIB
from engine.kv.capacity_command import cli_command, serve_command
from engine.kv.fit import Fit, Question, formula
from engine.kv.proof import Proof

PAGED, CONTIGUOUS = "Paged", "Contiguous"
HELP = {
    "token": "What all layers keep of one token, on one device. Exact: from the model's config.json.",
    "block": "What vLLM hands out at a time: so many tokens, in every layer of a group. Exact.",
    "blocks": "The KV cache's memory divided by the size of a block; one of them, the null block, holds nothing.",
    "tokens": "vLLM says this at its start: “KV cache size”.",
    "concurrency": "vLLM says this at its start: how many requests of the full length fit.",
    "memory": "What the KV cache gets, on one device.",
}


def answer(fit: Fit, question: Question, subject: Subject) -> None:
    """The one number, or why there is none."""
    if fit.refused:
        st.warning(plain(fit.refused), icon=":material/block:")
    elif fit.capacity is None:
        st.info("How much memory the weights take is not known: give it under Assumptions.", icon=":material/help:")
    elif not fit.capacity.num_blocks:
        st.warning(plain(_too_large(fit)), icon=":material/memory_alt:")
    else:
        _hero(fit, question)


def _hero(fit: Fit, question: Question) -> None:
    who = "user" if fit.paged_users == 1 else "users"
    claim = f"{who} of {question.tokens_each:,} tokens at once, paged"
    if fit.ratio is not None:
        claim += f": {ratio(fit.ratio)} as many as contiguous"
    rows = [
        (name, users, f"{number(users)} {'user' if users == 1 else 'users'}", colour)
        for name, users, colour in (
            (PAGED, fit.paged_users, palette.PAGED),
            (CONTIGUOUS, fit.contiguous_users, palette.NEUTRAL),
        )
    ]
    html.hero(number(fit.paged_users), claim, _note(fit, question), palette.PAGED, rows)


def _note(fit: Fit, question: Question) -> str:
    """What each side takes for a user, and where the memory is from."""
    setup = fit.plan.setup
    sides = (
        f"Paged: blocks of {setup.block_size} tokens for prompt and answer. "
        f"Contiguous: {setup.max_model_len:,} tokens reserved for each. "
    )
    if fit.budget is None or fit.card is None:
        return f"{sides}KV cache: {fit.memory_source}."
    total, weights, reserve, left = (
        f"{size / GIB:,.1f}" for size in (fit.card.memory_bytes, fit.budget.weights, fit.budget.reserve, fit.budget.kv)
    )
    return (
        f"{sides}Estimated: {total} GiB × {question.gpu_memory_utilization:g} − {weights} weights − {reserve} "
        f"workspace (assumed) = {left} GiB for the KV cache."
    )


def _too_large(fit: Fit) -> str:
    if fit.budget is None or fit.card is None:
        return "Nobody fits: this memory holds not one block. Give the KV cache more, or choose a smaller model."
    weights, reserve, share = (
        f"{size / GIB:.1f} GiB" for size in (fit.budget.weights, fit.budget.reserve, fit.budget.requested)
    )
    return (
        f"Nobody fits: weights ({weights}) and workspace ({reserve}) leave nothing of the {share} that vLLM may take "
        f"of one {fit.card.name}. Take a larger GPU, more of them, or a smaller model."
    )


def numbers(fit: Fit) -> None:
    """What the answer comes from, each number with its meaning on hover."""
    found, plan = fit.capacity, fit.plan
    columns = st.columns(5, gap="small")
    columns[0].metric("KV cache per token", _bytes(plan.kv_bytes_per_token), help=HELP["token"])
    columns[1].metric(
        f"Block of {plan.setup.block_size} tokens", _bytes(plan.block_bytes), help=HELP["block"] + _groups(fit)
    )
    memory = UNKNOWN if found is None else f"{found.memory_bytes / GIB:,.1f} GiB"
    columns[2].metric("KV cache", memory, help=HELP["memory"])
    columns[3].metric("Tokens", number(found.tokens if found else None), help=HELP["tokens"] + _blocks(fit))
    concurrency = UNKNOWN if found is None else f"{number(found.max_concurrency, 2)}×"
    columns[4].metric("Maximum concurrency", concurrency, help=HELP["concurrency"])
    st.caption(plain(_spelled_out(fit)))
    if found is not None and found.num_blocks and not found.starts:
        longest = f"{found.longest_len:,} would" if found.longest_len else "no length would"
        st.warning(
            f"vLLM would not start: one request of {plan.setup.max_model_len:,} tokens does not fit, {longest}.",
            icon=":material/warning:",
        )
    elif fit.paged_users is not None and fit.paged_users > fit.max_num_seqs:
        st.caption(
            f"vLLM runs {fit.max_num_seqs:,} requests at once here by default; the rest wait. "
            "`--max-num-seqs` raises that."
        )


def _spelled_out(fit: Fit) -> str:
    """Bytes per token with the model's own numbers, and which layers forget."""
    shape = fit.plan.shape
    text = f"{shape.kind[0].upper()}{shape.kind[1:]}: {formula(fit.plan)}"
    if shape.window is None:
        return text
    which = "All layers" if shape.window_layers == shape.layers else f"{shape.window_layers} of {shape.layers} layers"
    return f"{text}. {which} keep only the last {shape.window:,} tokens (sliding window)."


def _groups(fit: Fit) -> str:
    groups = fit.plan.groups
    if len(groups) == 1:
        return ""
    return f" {len(groups)} groups of layers, with and without a sliding window, share the blocks."


def _blocks(fit: Fit) -> str:
    return f" {fit.capacity.num_blocks:,} blocks. {HELP['blocks']}" if fit.capacity else ""


def _bytes(size: int) -> str:
    """Bytes as memory is counted: KiB and MiB."""
    if size >= 1024**2:
        return f"{size / 1024**2:,.4g} MiB"
    return f"{size / 1024:,.4g} KiB" if size >= 1024 else f"{size} B"


def every_card(fits: Sequence[Fit], chosen: str) -> None:
    """Users on each card, as a chart and as the numbers behind it."""
    users = [
        Users(fit.card.name, fit.paged_users, fit.contiguous_users, fit.card.key == chosen) for fit in fits if fit.card
    ]
    st.plotly_chart(users_figure(users), key="capacity_users", config={"displayModeBar": False}, alt=users_alt(users))
    html.table(
        ("One GPU", "vLLM's share", "Weights", "Workspace", "KV cache", "Blocks", PAGED, CONTIGUOUS),
        [(fit.card.name, *_cells(fit)) for fit in fits if fit.card],
    )


def _cells(fit: Fit) -> tuple[str, ...]:
    left, found = fit.budget, fit.capacity
    sizes = (left.requested, left.weights, left.reserve) if left else (None, None, None)
    memory = found.memory_bytes if found else None
    return (
        *(UNKNOWN if size is None else f"{size / GIB:,.1f} GiB" for size in (*sizes, memory)),
        number(found.num_blocks if found else None),
        number(fit.paged_users),
        number(fit.contiguous_users),
    )


def proof(found: Proof) -> None:
    """What the running server says, and what this page reckons from its blocks."""
    said, mine, setup = found.reported, found.reckoned, found.plan.setup
    text = (
        f"The running server ({plain(found.model)}, {setup.max_model_len:,} tokens, {number(said.num_blocks)} blocks "
        f"of {setup.block_size}) reports {number(said.tokens)} tokens{_times(said.max_concurrency)}. "
        f"Reckoned here from its blocks: {mine.tokens:,}{_times(mine.max_concurrency)}."
    )
    if found.agrees:
        st.caption(f":material/check_circle: {text}")
    else:
        st.warning(text, icon=":material/warning:")


def _times(concurrency: float | None) -> str:
    return "" if concurrency is None else f" and {concurrency:,.2f}×"


RULES = """
**Exact**, by vLLM 0.32's own arithmetic and tested against its classes and its start-up log:
- Bytes per token and per block, from the model's config.
- Blocks, tokens and maximum concurrency for a KV cache of a given memory.

**Estimated**
- The memory left for the KV cache on a GPU that is not here: its total as `nvidia-smi` shows it, times
  `gpu_memory_utilization`, less the weights ({weights}) and less a workspace that you choose.
- Held against a real start once, SmolLM2-135M on an H200 with vLLM 0.25.1: vLLM measured 127.8 GiB left for the KV
  cache, this page estimates 126.9 GiB.

**How users are counted**
- Paged: every user holds whole blocks for prompt and answer, at their full length. One block, the null block, holds
  nothing. Prompts that are shared would make room for more.
- Contiguous: every user reserves the longest request in one piece; a layer with a sliding window reserves its window.
  No gaps between pieces are counted, so this is the best that contiguous memory can do.
"""


def rules(subject: Subject) -> None:
    with st.expander("What is exact, what is estimated", icon=":material/rule:"):
        st.markdown(RULES.format(weights=plain(subject.weights.words)))
        st.caption(f"Config: {plain(subject.origin)}.")


def show_commands(question: Question, subject: Subject, fit: Fit) -> None:
    with st.expander("Show the command", icon=":material/terminal:"):
        own = question.weights_bytes != subject.weights.total_bytes
        st.code(cli_command(question, subject.model, fit.card, weights_given=own), language="bash", wrap_lines=True)
        st.caption("The same answer in a terminal. Add `--json` for all of its numbers.")
        st.code(serve_command(question, subject.model, fit.card), language="bash", wrap_lines=True)
        st.caption("The server it is about. Its log says “KV cache size” and “Maximum concurrency”: compare.")
