"""Other engines as child servers: their commands, and their ends, with a program that only pretends to be one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.compare_peers import context_tokens
from engine.config import CompareConfig, Settings
from engine.environment import detect_hardware
from engine.errors import ConfigError, ServerFailed
from engine.models import ModelOrigin, ModelSource
from engine.peers import launching
from engine.peers.launching import PEERS, Peer, Start, gguf_of
from engine.peers.server import PeerServer
from engine.server.command import Launch
from engine.server.processes import group_members

SOURCE = ModelSource("a/model", Path("/models/a"), ModelOrigin.BUNDLED, "a model", 1)
SECRET = "a-secret"


def pretend(program: str) -> Peer:
    """A peer that runs ``program`` (Python) with its port and key as arguments."""

    def launch(start: Start) -> Launch:
        return Launch((sys.executable, "-c", program, str(start.port), start.api_key), {})

    return replace(PEERS["llamacpp"], missing=lambda: None, launch=launch)


ANSWERS = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_POST(self):
        Handler.asked += 1
        loading = Handler.asked < 3
        body = json.dumps({"error": {"message": "Loading model"}} if loading else {"choices": [{"text": "a"}]}).encode()
        self.send_response(503 if loading else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def settings() -> Settings:
    return Settings.from_env()


def started(peer: Peer, settings: Settings) -> PeerServer:
    return PeerServer(peer, SOURCE, detect_hardware(settings), settings)


def test_it_is_ready_with_its_first_token_and_nothing_is_left_of_it(settings: Settings) -> None:
    with started(pretend(ANSWERS), settings) as server:
        load_s = server.wait_ready()
        pid = server.pid
        assert pid is not None and group_members(pid) and server.memory_bytes()
        assert server.load_s == load_s > 0
    assert group_members(pid) == []


def test_the_key_is_not_in_the_shown_command(settings: Settings) -> None:
    with started(pretend(ANSWERS), settings) as server:
        assert server.endpoint.api_key and server.endpoint.api_key not in server.command


def test_one_that_dies_is_told_with_its_last_words(settings: Settings) -> None:
    with started(pretend("raise SystemExit('no such model')"), settings) as server:
        with pytest.raises(ServerFailed, match=r"llama\.cpp ended with code 1: no such model"):
            server.wait_ready()
        assert str(server.log_path) in server.cause_of(ConfigError("a request failed")).remedy


def test_one_that_was_built_for_another_processor_is_told(settings: Settings) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    with started(pretend(program), settings) as server, pytest.raises(ServerFailed, match="another processor"):
        server.wait_ready()


def test_a_wait_can_be_called_off(settings: Settings) -> None:
    def stop() -> None:
        raise KeyError

    with started(pretend("import time; time.sleep(60)"), settings) as server, pytest.raises(KeyError):
        server.wait_ready(stop)


def test_one_that_never_answers_is_given_up(settings: Settings) -> None:
    late = pytest.raises(ServerFailed, match="did not answer within 0 s")
    with started(pretend("import time; time.sleep(60)"), settings) as server, late:
        server.wait_ready(timeout_s=0.0)


def test_llama_cpp_has_a_slot_for_every_user_and_its_key_in_the_environment(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "llama_program", lambda: Path("/built/llama-server"))
    start = Start(SOURCE, detect_hardware(settings), 1234, SECRET, users=20, context_tokens=512)
    launch = PEERS["llamacpp"].launch(start)
    words = " ".join(launch.argv)
    assert "--parallel 20 --ctx-size 10240" in words and "--host 127.0.0.1 --port 1234" in words
    assert SECRET not in words and launch.env[launching.LLAMA_KEY] == SECRET


def test_where_llama_cpp_is_not_installed_the_way_to_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "llama_program", lambda: None)
    missing = PEERS["llamacpp"].missing()
    assert missing is not None and "make llama" in missing.remedy


def test_only_the_bundled_model_has_a_gguf() -> None:
    assert gguf_of(SOURCE).suffix == ".gguf"
    with pytest.raises(ConfigError, match="llama.cpp needs a GGUF"):
        gguf_of(replace(SOURCE, origin=ModelOrigin.HUB))


def test_transformers_writes_every_token_by_a_shortest_length() -> None:
    fields = PEERS["transformers"].forced(50)
    assert json.loads(fields["generation_config"])["min_new_tokens"] == 50
    assert PEERS["transformers"].model_name(SOURCE) == "/models/a"


@pytest.mark.parametrize(
    ("prompt", "tokens", "room"), [("a" * 40, 50, 512), ("a" * 2000, 100, 2560), ("字" * 500, 100, 2048)]
)
def test_a_slot_has_room_for_prompt_template_and_answer(prompt: str, tokens: int, room: int) -> None:
    assert context_tokens(CompareConfig(prompt=prompt, max_tokens=tokens)) == room
