"""What to compare, as a form, and how to do it without the lab."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import streamlit as st

from components import errors, palette
from components.format import plain, roughly
from engine.config import DEFAULT_MODEL, PEER_ENGINES, CompareConfig, Device
from engine.errors import ConfigError, LabError
from engine.peers.launching import PEERS, Peer
from engine.server.state import ServerSnapshot
from engine.services import LabServices

USERS = (1, 5, 10, 20)
PEER_HELP = {
    "llamacpp": "Its own server, with the quantised weights (GGUF) that the other engines' checkpoint was made from.",
    "transformers": "Hugging Face's server, with the same checkpoint. It answers one request after the other.",
}
DEFAULTS = CompareConfig(users=(1, 5))
BOTH = "Both"
ENGINES: dict[str, tuple[str, ...]] = {
    BOTH: ("hf", "vllm"),
    palette.name("hf"): ("hf",),
    palette.name("vllm"): ("vllm",),
}


def introduction(server: ServerSnapshot) -> None:
    """What will be compared, and of an attached server, what isn't known."""
    if server.attached and not server.adopted:
        st.markdown(
            "The attached server is measured as it is: its weights, number format and threads are not known here. "
            "Hugging Face can run beside it where the model's weights are on this machine."
        )
    else:
        st.markdown(
            "Same weights, same prompt, same number of tokens, same threads. "
            "Plain Hugging Face `generate()` runs first, then vLLM; then both race."
        )


def form(services: LabServices) -> None:
    """Prompt, engines, length, repeats, users. Start is off, with the reason, while the server is reserved."""
    cuda = services.environment.hardware.device == Device.CUDA
    server = services.supervisor.snapshot()
    foreign = server.attached and not server.adopted
    with st.container(border=True, key="compare_form"):  # no st.form: the estimate follows the choices
        prompt = st.text_area("Prompt", DEFAULTS.prompt, height=68, key="compare_prompt", persist_state="session")
        columns = st.columns([6, 5, 4, 4], gap="medium", vertical_alignment="bottom")
        engines = columns[0].segmented_control(
            "Engines",
            list(ENGINES),
            default=palette.name("vllm") if foreign else BOTH,
            required=True,
            key=f"compare_engines_{foreign}",
            persist_state="session",
            help="Hugging Face can only run weights that are on this machine.",
        )
        tokens = columns[2].number_input(
            "Output tokens",
            2,
            4096,
            DEFAULTS.max_tokens,
            10,
            key="compare_tokens",
            bind="query-params",
            help="Both engines write exactly this many, so that the times compare.",
        )
        repeats = columns[3].number_input(
            "Repeats",
            1,
            50,
            DEFAULTS.repeats,
            key="compare_repeats",
            bind="query-params",
            help="Measured runs after a warm-up; the middle one counts, the spread is shown.",
        )
        users = columns[1].pills(
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
            peers = () if foreign else peer_choice(server)
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            st.space("stretch")

            def chosen() -> CompareConfig:
                return CompareConfig(
                    prompt=prompt,
                    max_tokens=int(tokens),
                    repeats=int(repeats),
                    users=tuple(sorted(users)),
                    engines=(*ENGINES[engines or BOTH], *peers),
                    static_batch=static,
                    eager_against_graphs=bool(graphs),
                )

            if not server.reserved:
                expected_time(services, chosen)
            pressed = st.button(
                "Start the race",
                type="primary",
                icon=":material/play_arrow:",
                disabled=bool(server.reserved),
                help=plain(server.reserved) or None,
                key="compare_start",
            )
    if pressed:
        with errors.shown():
            services.compare.start(chosen())
            st.rerun()


def peer_choice(server: ServerSnapshot) -> tuple[str, ...]:
    """A toggle for every other engine that can run this model here; else one line that says how to get it."""
    return tuple(name for name in PEER_ENGINES if _offered(PEERS[name], server) and _chosen(name))


def _offered(peer: Peer, server: ServerSnapshot) -> bool:
    missing = peer.missing()
    if missing is not None:
        st.caption(f"{peer.label} can race too. {missing.remedy}", width="content")
        return False
    try:
        return server.source is None or bool(peer.weights(server.source))
    except ConfigError:  # another model than the bundled one: llama.cpp has no file of it
        return False


def _chosen(name: str) -> bool:
    return st.toggle(f"Also {palette.name(name)}", False, key=f"compare_{name}", help=PEER_HELP[name])


def expected_time(services: LabServices, chosen: Callable[[], CompareConfig]) -> None:
    """How long these choices will take; nothing where no earlier run tells, or where they can't be started."""
    try:
        expected = services.compare.estimate(chosen())
    except LabError:
        return
    if expected is not None:
        origin = "from the last run" if expected.runs == 1 else f"from {expected.runs} earlier runs"
        time = roughly(expected.total.low_s, expected.total.high_s)
        st.caption(f"{time[0].upper()}{time[1:]} on this machine ({origin})", width="content")


def time_left(left_s: tuple[float, float] | None) -> str:
    """“ · about 40 s left”; empty where nothing is known, and when it should be over already."""
    return f" · {roughly(*left_s)} left" if left_s is not None and left_s[1] > 0 else ""


def command(config: CompareConfig, model: str = DEFAULT_MODEL, base_url: str | None = None) -> str:
    """The same comparison from a terminal; ``base_url`` is that of an attached server."""
    words = ["python", "-m", "engine", "compare"]
    words += ["--base-url", base_url] if base_url else []
    words += ["--model", model] if model != DEFAULT_MODEL or base_url else []
    words += ["--engines", ",".join(config.engines), "--prompt", config.prompt]
    words += ["--max-tokens", str(config.max_tokens), "--repeats", str(config.repeats)]
    words += ["--users", ",".join(map(str, config.users))]
    words += [] if config.static_batch else ["--no-static-batch"]
    words += ["--eager"] if config.eager_against_graphs else []
    return shlex.join(words)


def sdk_snippet(config: CompareConfig, model: str) -> str:
    """The vLLM half with the OpenAI SDK, for any server."""
    return f"""import time
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="your key")
start = time.perf_counter()
stream = client.chat.completions.create(
    model={model!r},
    messages=[{{"role": "user", "content": {config.prompt!r}}}],
    max_tokens={config.max_tokens},
    temperature=0,
    stream=True,
    stream_options={{"include_usage": True}},
    extra_body={{"ignore_eos": True}},
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    elif chunk.usage:
        tokens = chunk.usage.completion_tokens
        print(f"\\n{{tokens / (time.perf_counter() - start):.1f}} tok/s")
"""


def show_commands(config: CompareConfig, server: ServerSnapshot) -> None:
    """For the model that is served, by this lab or by the attached server."""
    model = server.endpoint.model if server.endpoint else server.config.model if server.config else DEFAULT_MODEL
    foreign = server.attached and not server.adopted
    base_url = server.endpoint.base_url if foreign and server.endpoint else None
    with st.expander("Show the command", icon=":material/terminal:"):
        st.code(command(config, model, base_url), language="bash", wrap_lines=True)
        st.caption(
            "Give the server's key as OPENAI_API_KEY."
            if foreign
            else "While this lab is open it measures the lab's server, else one of its own."
        )
        st.code(sdk_snippet(config, model), language="python")
