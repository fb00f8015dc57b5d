"""Settings of a server. Only what this machine and its attention backend take is offered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from components import errors
from components.server_view import changed_settings
from engine.config import DTYPES, EXECUTOR_BACKENDS, OFFERED_MODELS, Device, ServerConfig
from engine.environment import Hardware
from engine.server.command import block_sizes
from engine.server.state import ServerSnapshot, ServerState
from engine.server.supervisor import Supervisor
from engine.services import LabServices

AUTO = "auto"
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
MODE_AUTO, MODE_EAGER, MODE_GRAPHS = "Automatic", "Eager", "Compiled, with graphs"
MODES: dict[str, bool | None] = {MODE_AUTO: None, MODE_EAGER: True, MODE_GRAPHS: False}


def configuration(services: LabServices, snapshot: ServerSnapshot) -> None:
    """The form, and Start or Restart with it."""
    current = snapshot.config or ServerConfig()
    with st.form("server_form", border=True, enter_to_submit=False):
        values = _fields(current, services.environment.hardware)
        running = snapshot.state in (ServerState.STARTING, ServerState.READY) and not snapshot.attached
        blocked = snapshot.state == ServerState.STOPPING or services.compare.snapshot().state == "running"
        pressed = st.form_submit_button(
            "Restart with these settings" if running else "Start the server",
            type="primary",
            icon=":material/restart_alt:" if running else ":material/play_arrow:",
            disabled=blocked,
            help="Waits until the comparison or the stop is over." if blocked else None,
        )
    if pressed:
        with errors.shown():
            config = replace(current, **values)
            (services.supervisor.restart if running else services.supervisor.start)(config)
            if changes := changed_settings(snapshot.config, config):
                st.toast("Changed " + ", ".join(changes))
            st.rerun()


def _fields(config: ServerConfig, hardware: Hardware) -> dict[str, Any]:
    values: dict[str, Any] = {"model": _model(config.model)}
    left, middle, right = st.columns(3, gap="medium")
    with left:
        values["max_model_len"] = st.number_input(
            "Context length (max_model_len)",
            16,
            1_048_576,
            config.max_model_len,
            256,
            key="server_max_model_len",
            help="Tokens of prompt and answer together that one request may have. Empty: what the model allows.",
            placeholder="what the model allows",
        )
        values["max_num_seqs"] = st.number_input(
            "Requests at once (max_num_seqs)",
            1,
            4096,
            config.max_num_seqs,
            8,
            key="server_max_num_seqs",
            help="How many requests may run in one batch; more of them wait.",
        )
    with middle:
        values["dtype"] = st.selectbox(
            "Number format (dtype)",
            DTYPES,
            DTYPES.index(config.dtype),
            key="server_dtype",
            help="auto: what fits this hardware (half on a GPU older than compute capability 8.0).",
        )
        sizes = [AUTO, *map(str, block_sizes(hardware))]
        chosen = str(config.block_size or AUTO)
        block = st.selectbox(
            "KV block size (tokens)",
            sizes,
            sizes.index(chosen) if chosen in sizes else 0,
            key="server_block_size",
            help="Only the sizes that this machine's attention backend takes.",
        )
        values["block_size"] = None if block == AUTO else int(block)
    with right:
        values.update(_memory(config, hardware))
        mode = next(name for name, eager in MODES.items() if eager == config.enforce_eager)
        picked = st.selectbox(
            "Execution",
            list(MODES),
            list(MODES).index(mode),
            key="server_mode",
            help="Automatic: eager on a CPU (starts a minute sooner, as fast), CUDA graphs on a GPU.",
        )
        values["enforce_eager"] = MODES[picked]
    values["enable_prefix_caching"] = st.toggle(
        "Reuse the KV cache of equal prompt beginnings (prefix caching)",
        config.enable_prefix_caching,
        key="server_prefix_caching",
    )
    if len(hardware.gpus) > 1:
        values.update(_parallel(config, len(hardware.gpus)))
    return values


def _model(current: str) -> str:
    options = list(dict.fromkeys((*OFFERED_MODELS, current)))
    chosen = st.selectbox(
        "Model",
        options,
        options.index(current),
        key="server_model",
        accept_new_options=True,
        help="Choose one, or type any hub id (owner/name) or a local folder.",
    )
    return (chosen or "").strip()


def _memory(config: ServerConfig, hardware: Hardware) -> dict[str, Any]:
    if hardware.device == Device.CPU:
        gib = st.number_input(
            "KV cache (GiB)",
            1,
            4096,
            config.kv_cache_gib,
            1,
            key="server_kv_gib",
            placeholder="sized for the settings",
            help="Empty: enough for every request at full length, within half of the free RAM.",
        )
        return {"kv_cache_gib": gib}
    share = st.slider(
        "GPU memory share",
        0.05,
        1.0,
        config.gpu_memory_utilization,
        0.01,
        key="server_gpu_share",
        help="Share of the GPU's memory for weights, KV cache and workspace (gpu_memory_utilization).",
    )
    return {"gpu_memory_utilization": share}


def _parallel(config: ServerConfig, gpus: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    columns = st.columns(4, gap="medium")
    for column, name, label in zip(
        columns,
        ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
        ("Tensor parallel", "Pipeline parallel", "Data parallel"),
        strict=False,
    ):
        values[name] = column.number_input(label, 1, gpus, min(getattr(config, name), gpus), key=f"server_{name}")
    backends = [AUTO, *EXECUTOR_BACKENDS]
    backend = columns[3].selectbox(
        "Executor", backends, backends.index(config.distributed_executor_backend or AUTO), key="server_executor"
    )
    values["distributed_executor_backend"] = None if backend == AUTO else backend
    return values


def attach(supervisor: Supervisor, snapshot: ServerSnapshot) -> None:
    """Use any OpenAI-compatible server instead of starting one."""
    with st.form("server_attach", border=True):
        url = st.text_input("Base URL", placeholder="http://127.0.0.1:8000/v1", key="server_attach_url")
        key = st.text_input("API key", type="password", key="server_attach_key", placeholder="only if it wants one")
        pressed = st.form_submit_button(
            "Attach",
            icon=":material/link:",
            disabled=snapshot.busy,
            help="A server that the lab started is stopped first."
            if snapshot.ready and not snapshot.attached
            else None,
        )
    if pressed:
        with errors.shown():
            supervisor.attach(url.strip(), key.strip() or None)
            st.rerun()
