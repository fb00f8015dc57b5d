"""What to compare, as a form, and how to do it without the lab."""

from __future__ import annotations

import shlex

import streamlit as st

from components import errors
from engine.config import CompareConfig, Device
from engine.services import LabServices

USERS = (1, 5, 10, 20)
DEFAULTS = CompareConfig(users=(1, 5))


def form(services: LabServices, running: bool) -> None:
    """Prompt, length, repeats, users. Start is off while a comparison runs."""
    cuda = services.environment.hardware.device == Device.CUDA
    with st.form("compare_form", border=True, enter_to_submit=False):
        prompt = st.text_area("Prompt", DEFAULTS.prompt, height=68, key="compare_prompt", persist_state="session")
        columns = st.columns([1, 1, 2], gap="medium", vertical_alignment="bottom")
        tokens = columns[0].number_input(
            "Output tokens",
            2,
            4096,
            DEFAULTS.max_tokens,
            10,
            key="compare_tokens",
            bind="query-params",
            help="Both engines write exactly this many, so that the times compare.",
        )
        repeats = columns[1].number_input(
            "Repeats",
            1,
            50,
            DEFAULTS.repeats,
            key="compare_repeats",
            bind="query-params",
            help="Measured runs after a warm-up; the middle one counts, the spread is shown.",
        )
        users = columns[2].pills(
            "Users at the same time",
            USERS,
            selection_mode="multi",
            default=DEFAULTS.users,
            key="compare_users",
            persist_state="session",
            help="One after another with Hugging Face, all at once with vLLM.",
        )
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            static = st.toggle("Also Hugging Face's own static batch", True, key="compare_static")
            graphs = cuda and st.toggle("Also eager against CUDA graphs", False, key="compare_graphs")
            st.space("stretch")
            pressed = st.form_submit_button(
                "Start the race", type="primary", icon=":material/play_arrow:", disabled=running
            )
    if pressed:
        with errors.shown():
            services.compare.start(
                CompareConfig(
                    prompt=prompt,
                    max_tokens=int(tokens),
                    repeats=int(repeats),
                    users=tuple(sorted(users)),
                    static_batch=static,
                    eager_against_graphs=bool(graphs),
                )
            )
            st.rerun()


def command(config: CompareConfig) -> str:
    """The same comparison from a terminal."""
    users = ",".join(map(str, config.users))
    line = (
        f"python -m engine compare --engines {','.join(config.engines)} --prompt {shlex.quote(config.prompt)} "
        f"--max-tokens {config.max_tokens} --repeats {config.repeats} --users {users}"
    )
    return (
        line
        + ("" if config.static_batch else " --no-static-batch")
        + (" --eager" if config.eager_against_graphs else "")
    )


def sdk_snippet(config: CompareConfig, model: str) -> str:
    """The vLLM half with the OpenAI SDK, for any server."""
    return f"""import time
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="your key")
start = time.perf_counter()
stream = client.completions.create(
    model={model!r},
    prompt={config.prompt!r},
    max_tokens={config.max_tokens},
    temperature=0,
    stream=True,
    stream_options={{"include_usage": True}},
    extra_body={{"ignore_eos": True}},
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].text, end="", flush=True)
    elif chunk.usage:
        tokens = chunk.usage.completion_tokens
        print(f"\\n{{tokens / (time.perf_counter() - start):.1f}} tok/s")
"""


def show_commands(config: CompareConfig, model: str) -> None:
    with st.expander("Show the command", icon=":material/terminal:"):
        st.code(command(config), language="bash", wrap_lines=True)
        st.code(sdk_snippet(config, model), language="python")
