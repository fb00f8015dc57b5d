"""What one process measures, the others know: nobody chats with a server, or measures it, meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import cli
from engine.config import ServerConfig, Settings
from engine.errors import AlreadyRunning
from engine.server import measuring
from engine.server.processes import start_ticks
from engine.server.record import ServerRecord, write_record
from engine.services import open_beside
from tests.fake_openai import FakeOpenAI

REASON = "A load test is running."
HOLDER = """
import sys
from pathlib import Path
from engine.locks import FileLock
from engine.server.measuring import claimed
state = Path(sys.argv[1])
FileLock(state / "owner.lock").acquire()
with claimed(state, sys.argv[2]):
    print("holds it", flush=True)
    sys.stdin.readline()
print("let it go", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """The command line takes signals for itself; the test run wants them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("LAB_DATA_DIR", str(tmp_path))
    return Settings.from_env()


@pytest.fixture
def other(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """A lab that owns the data folder and measures, until it is told to go on."""
    command = [sys.executable, "-c", HOLDER, str(settings.state_dir), REASON]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "holds it\n"
        yield process
        process.kill()


def go_on(other: subprocess.Popen[str]) -> None:
    assert other.stdin is not None and other.stdout is not None
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.stdout.readline() == "let it go\n"


@pytest.fixture
def served(settings: Settings, other: subprocess.Popen[str]) -> Iterator[FakeOpenAI]:
    """The server of that lab, as another process finds it."""
    with FakeOpenAI() as fake:
        record = ServerRecord(
            pid=other.pid,
            ticks=start_ticks(other.pid) or 0,
            base_url=fake.base_url,
            api_key="",
            model="fake-model",
            ready=True,
            config=ServerConfig().to_dict(),
            source={
                "model_id": "fake-model",
                "path": str(settings.data_dir),
                "origin": "local",
                "detail": "",
                "weights_bytes": None,
            },
            command="",
            log_path="",
        )
        write_record(settings.state_dir, record)
        yield fake


def test_a_claim_is_seen_while_it_is_held(settings: Settings, other: subprocess.Popen[str]) -> None:
    assert measuring.elsewhere(settings.state_dir) == REASON
    with pytest.raises(AlreadyRunning, match=REASON), measuring.claimed(settings.state_dir, "Mine."):
        pass
    go_on(other)
    assert measuring.elsewhere(settings.state_dir) == ""
    with measuring.claimed(settings.state_dir, "Mine."):
        assert measuring.elsewhere(settings.state_dir) == ""  # it is not another process


def test_the_claim_of_a_process_that_was_killed_is_none(settings: Settings, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    assert measuring.elsewhere(settings.state_dir) == ""
    with measuring.claimed(settings.state_dir, "Mine."):
        pass


@pytest.mark.parametrize("note", ["", "{", "[]", '{"pid": "many"}', '{"pid": 1, "ticks": null}'])
def test_a_note_that_says_nothing_is_no_claim(tmp_path: Path, note: str) -> None:
    (tmp_path / measuring.FILE_NAME).write_text(note)
    assert measuring.elsewhere(tmp_path) == ""


def test_a_note_without_a_reason_still_says_that_somebody_measures(tmp_path: Path) -> None:
    parent = os.getppid()
    note = {"pid": parent, "ticks": start_ticks(parent)}
    (tmp_path / measuring.FILE_NAME).write_text(json.dumps(note))
    assert measuring.elsewhere(tmp_path) == measuring.UNKNOWN


@pytest.mark.parametrize("words", [["chat", "hello"], ["load", "--users", "1"], ["compare", "--engines", "vllm"]])
def test_the_command_line_leaves_a_measured_server_alone(
    words: list[str], served: FakeOpenAI, capfd: pytest.CaptureFixture[str]
) -> None:
    code = cli.main([*words, "--json"])
    answer = json.loads(capfd.readouterr().out)
    assert (code, answer["error"], answer["remedy"]) == (1, REASON, answer["remedy"])
    assert "cancel it" in answer["remedy"]
    assert served.sent == []


def test_another_server_is_nobodys_business(
    settings: Settings, served: FakeOpenAI, other: subprocess.Popen[str]
) -> None:
    services, _ = open_beside(settings)
    try:
        assert services.supervisor.taken_by() == REASON
        services.supervisor.attach(served.base_url, None, None)
        assert services.supervisor.taken_by() == ""
        with services.supervisor.reserved("Mine."):
            assert services.supervisor.taken_by() == "Mine."
    finally:
        services.close()
    go_on(other)


def test_it_goes_on_when_the_other_is_done(
    served: FakeOpenAI, other: subprocess.Popen[str], capfd: pytest.CaptureFixture[str]
) -> None:
    go_on(other)
    assert cli.main(["chat", "hello", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["text"]
