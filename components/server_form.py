"""Settings of a server. Only what this machine and its attention backend take is offered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from components import errors
from components.format import plain
from components.server_view import changed_settings
from engine.config import DTYPES, EXECUTOR_BACKENDS, OFFERED_MODELS, Device, ServerConfig
from engine.environment import Hardware
from engine.errors import LabError
from engine.kv.capacity import max_length, read_config
from engine.server.command import block_sizes
from engine.server.state import ServerSnapshot, ServerState
from engine.server.supervisor import Supervisor
from engine.services import LabServices
from engine.tuning.knobs import CPU_MOST_SEQUENCES, LENGTHS, SEQUENCES

AUTO = "auto"
RAY_MOST_WORKERS = 64
THE_MODELS_OWN = 0
MODE_AUTO, MODE_EAGER, MODE_GRAPHS = "Automatic", "Eager", "Compiled, with graphs"
MODES: dict[str, bool | None] = {MODE_AUTO: None, MODE_EAGER: True, MODE_GRAPHS: False}


def configuration(services: LabServices, snapshot: ServerSnapshot) -> None:
    """The form, and Start or Restart with it."""
    current = snapshot.config or ServerConfig()
    with st.form("server_form", border=True, enter_to_submit=False):
        longest = _longest(snapshot)
        values = _fields(current, services.environment.hardware, longest, snapshot.generation)
        running = snapshot.state in (ServerState.STARTING, ServerState.READY) and not snapshot.attached
        blocked = _blocked(snapshot)
        pressed = st.form_submit_button(
            "Restart with these settings" if running else "Start the server",
            type="primary",
            icon=":material/restart_alt:" if running else ":material/play_arrow:",
            disabled=bool(blocked),
            help=blocked,
        )
    if pressed:
        with errors.shown():
            config = replace(current, **values)
            (services.supervisor.restart if running else services.supervisor.start)(config)
            if changes := changed_settings(snapshot.config, config):
                st.toast("Changed " + ", ".join(changes))
            st.rerun()


def _blocked(snapshot: ServerSnapshot) -> str | None:
    """Why no server can be started now; None when one can."""
    if snapshot.reserved:
        return plain(snapshot.reserved)
    if snapshot.attached:
        return "Detach from the other server first."
    return "Waits until the stop is over." if snapshot.state == ServerState.STOPPING else None


def _not_attachable(snapshot: ServerSnapshot) -> str | None:
    """Why no other server can be attached now; None when one can."""
    if snapshot.reserved:
        return plain(snapshot.reserved)
    if snapshot.ready and not snapshot.attached:
        return "Stop the lab's own server first."
    return "Waits until the start or the stop is over." if snapshot.busy else None


def _fields(config: ServerConfig, hardware: Hardware, longest: int | None, generation: int) -> dict[str, Any]:
    """Keyed by the start they belong to: after a start, by whomever, the form shows what it started with."""
    values: dict[str, Any] = {"model": _model(config.model, generation)}
    values.update(_sizes(config, hardware, longest, generation))
    columns = st.columns(4, gap="medium")
    with columns[0]:
        values["dtype"] = st.selectbox(
            "Number format (dtype)",
            DTYPES,
            DTYPES.index(config.dtype),
            key=f"server_dtype_{generation}",
            help="auto: what fits this hardware (half on a GPU older than compute capability 8.0).",
        )
    with columns[1]:
        sizes = [AUTO, *map(str, block_sizes(hardware))]
        chosen = str(config.block_size or AUTO)
        block = st.selectbox(
            "KV block size (tokens)",
            sizes,
            sizes.index(chosen) if chosen in sizes else 0,
            key=f"server_block_size_{generation}",
            help="Only the sizes that this machine's attention backend takes.",
        )
        values["block_size"] = None if block == AUTO else int(block)
    with columns[2]:
        values.update(_memory(config, hardware, generation))
    with columns[3]:
        mode = next(name for name, eager in MODES.items() if eager == config.enforce_eager)
        picked = st.selectbox(
            "Execution",
            list(MODES),
            list(MODES).index(mode),
            key=f"server_mode_{generation}",
            help="Automatic: eager on a CPU, CUDA graphs on a GPU. On a CPU compiled answers faster, and needs a "
            "minute more at its first start, a quarter of that later.",
        )
        values["enforce_eager"] = MODES[picked]
    values["enable_prefix_caching"] = st.toggle(
        "Reuse the KV cache of equal prompt beginnings (prefix caching)",
        config.enable_prefix_caching,
        key=f"server_prefix_caching_{generation}",
    )
    if len(hardware.gpus) > 1 or hardware.ray_cluster:
        values.update(_parallel(config, hardware, generation))
    return values


def _sizes(config: ServerConfig, hardware: Hardware, longest: int | None, generation: int) -> dict[str, Any]:
    """The two knobs that decide how the KV cache is shared out: how long, and how many."""
    lengths = sorted({*(n for n in LENGTHS if longest is None or n <= longest), config.max_model_len or LENGTHS[0]})
    most = CPU_MOST_SEQUENCES if hardware.device == Device.CPU else SEQUENCES[-1]
    left, right = st.columns(2, gap="large")
    length = left.select_slider(
        "Context length (max_model_len)",
        [*lengths, THE_MODELS_OWN],
        config.max_model_len or THE_MODELS_OWN,
        format_func=lambda tokens: f"{tokens:,} tokens" if tokens else "the model's own",
        key=f"server_max_model_len_{generation}",
        help="Tokens of prompt and answer together that one request may have.",
    )
    sequences = right.select_slider(
        "Requests at once (max_num_seqs)",
        sorted({*(n for n in SEQUENCES if n <= most), config.max_num_seqs}),
        config.max_num_seqs,
        key=f"server_max_num_seqs_{generation}",
        help="How many requests may run in one batch; more of them wait.",
    )
    return {"max_model_len": length or None, "max_num_seqs": sequences}


def _longest(snapshot: ServerSnapshot) -> int | None:
    """The longest context of the model that was prepared last; None where it isn't known."""
    if snapshot.source is None:
        return None
    try:
        return max_length(read_config(snapshot.source.path / "config.json"))
    except LabError:
        return None


def _number_or_empty(
    label: str, low: int, high: int, value: int | None, step: int, key: str, **texts: str
) -> int | None:
    """A number that may be left empty. Its value comes in as state, because a default can't be cleared again."""
    st.session_state.setdefault(key, value)
    return st.number_input(label, low, high, None, step, key=key, **texts)


def _model(current: str, generation: int) -> str:
    options = list(dict.fromkeys((*OFFERED_MODELS, current)))
    chosen = st.selectbox(
        "Model",
        options,
        options.index(current),
        key=f"server_model_{generation}",
        accept_new_options=True,
        help="Choose one, or type any hub id (owner/name) or a local folder.",
    )
    return (chosen or "").strip()


def _memory(config: ServerConfig, hardware: Hardware, generation: int) -> dict[str, Any]:
    if hardware.device == Device.CPU:
        gib = _number_or_empty(
            "KV cache (GiB)",
            1,
            4096,
            config.kv_cache_gib,
            1,
            key=f"server_kv_gib_{generation}",
            placeholder="sized by the lab",
            help="Empty: enough for every request at full length, within half of the free RAM.",
        )
        return {"kv_cache_gib": gib}
    share = st.slider(
        "GPU memory share",
        0.05,
        1.0,
        config.gpu_memory_utilization,
        0.01,
        key=f"server_gpu_share_{generation}",
        help="Share of the GPU's memory for weights, KV cache and workspace (gpu_memory_utilization).",
    )
    return {"gpu_memory_utilization": share}


def _parallel(config: ServerConfig, hardware: Hardware, generation: int) -> dict[str, Any]:
    """Several GPUs: those of this machine, or with Ray those of its cluster (how many, only the cluster knows)."""
    most = RAY_MOST_WORKERS if hardware.ray_cluster else len(hardware.gpus)
    values: dict[str, Any] = {}
    columns = st.columns(4, gap="medium")
    for column, name, label in zip(
        columns,
        ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
        ("Tensor parallel", "Pipeline parallel", "Data parallel"),
        strict=False,
    ):
        values[name] = column.number_input(
            label, 1, most, min(getattr(config, name), most), key=f"server_{name}_{generation}"
        )
    backends = [AUTO, *(name for name in EXECUTOR_BACKENDS if name != "ray" or hardware.ray_cluster)]
    chosen = config.distributed_executor_backend
    backend = columns[3].selectbox(
        "Executor",
        backends,
        backends.index(chosen) if chosen in backends else 0,
        key=f"server_executor_{generation}",
    )
    values["distributed_executor_backend"] = None if backend == AUTO else backend
    return values


def attach(supervisor: Supervisor, snapshot: ServerSnapshot) -> None:
    """Use any OpenAI-compatible server instead of starting one."""
    blocked = _not_attachable(snapshot)
    if blocked:
        st.caption(blocked)
    with st.form("server_attach", border=True):
        url = st.text_input("Base URL", placeholder="http://127.0.0.1:8000/v1", key="server_attach_url")
        left, right = st.columns(2, gap="medium")
        key = left.text_input("API key", type="password", key="server_attach_key", placeholder="only if it wants one")
        model = right.text_input("Model", key="server_attach_model", placeholder="only if it serves several")
        pressed = st.form_submit_button("Attach", icon=":material/link:", disabled=bool(blocked), help=blocked)
    if pressed:
        with errors.shown():
            supervisor.attach(url.strip(), key.strip() or None, model.strip() or None)
            st.rerun()
