"""The environment check with one real generation: by the running server, or by Hugging Face."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import baseline, checks
from engine.config import Endpoint, Settings
from engine.environment import Check
from engine.errors import ModelOffline
from engine.models import ModelOrigin, ModelSource
from engine.server import record
from engine.server.processes import start_ticks
from tests.fake_openai import DONE, MODEL, FakeOpenAI, Script, text_event


@pytest.fixture
def settings() -> Settings:
    return Settings.from_env()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A living process that stands for the server's."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as made:
        yield made
        made.kill()


def write_running(settings: Settings, process: subprocess.Popen[bytes], endpoint: Endpoint, *, ready: bool) -> None:
    ticks = start_ticks(process.pid)
    assert ticks is not None and endpoint.api_key is not None
    source = ModelSource(MODEL, Path("."), ModelOrigin.LOCAL, "", None).to_dict()
    running = record.ServerRecord(
        process.pid, ticks, endpoint.base_url, endpoint.api_key, MODEL, ready, {}, source, "", ""
    )
    record.write_record(settings.state_dir, running)


def run(settings: Settings, *, generate: bool = True) -> tuple[checks.Report, list[str]]:
    said: list[str] = []
    return checks.run_checks(settings, generate=generate, progress=said.append), said


def generation(report: checks.Report) -> Check:
    (found,) = [check for check in report.checks if check.name == checks.NAME]
    return found


def refuse_model(*_: Any) -> ModelSource:
    raise ModelOffline("The model is not here.", "Connect to the network.")


# -- the report


def test_without_a_generation_only_what_can_be_looked_up_is_listed(settings: Settings) -> None:
    report, said = run(settings, generate=False)
    assert said == []
    assert checks.NAME not in [check.name for check in report.checks]
    assert {"Python", "vLLM", "Disk free", "Model"} <= {check.name for check in report.checks}


def test_a_report_is_ready_when_every_line_is(settings: Settings) -> None:
    environment = run(settings, generate=False)[0].environment
    good, bad = Check("a", True, "1"), Check("b", False, "2", "Mend it.")
    assert checks.Report((good, good), environment).ready
    assert not checks.Report((good, bad), environment).ready
    values = json.loads(json.dumps(checks.Report((good, bad), environment).to_dict()))
    assert values["ready"] is False
    assert values["checks"][1] == {"name": "b", "ok": False, "value": "2", "remedy": "Mend it."}
    assert values["environment"]["summary"]


# -- by the running server


def test_the_running_server_generates(settings: Settings, process: subprocess.Popen[bytes]) -> None:
    with FakeOpenAI(Script(tokens=checks.TOKENS)) as fake:
        write_running(settings, process, fake.endpoint("its-key"), ready=True)
        report, said = run(settings)
        (sent,) = fake.sent
    found = generation(report)
    assert found.ok and found.value.startswith("5 tokens from vLLM in ") and found.remedy == ""
    assert said
    assert sent.headers["Authorization"] == "Bearer its-key"
    assert (sent.body["max_tokens"], sent.body["ignore_eos"]) == (checks.TOKENS, True)


BROKEN = {
    "an error": Script(status=500, body=b'{"error": {"message": "out of memory"}}', content_type="application/json"),
    "a cut connection": Script(frames=[(0.0, text_event("a", chat=False))], end="cut"),
    "no text": Script(frames=[(0.0, DONE)]),
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_a_server_that_can_not_generate_is_found(
    settings: Settings, process: subprocess.Popen[bytes], script: Script
) -> None:
    with FakeOpenAI(script) as fake:
        write_running(settings, process, fake.endpoint(), ready=True)
        found = generation(run(settings)[0])
    assert not found.ok
    assert found.value and found.remedy


# -- by Hugging Face


@pytest.mark.parametrize("state", ["none", "starting", "gone"])
def test_without_a_ready_server_hugging_face_is_asked(
    settings: Settings, process: subprocess.Popen[bytes], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "prepare", refuse_model)
    with FakeOpenAI() as fake:
        if state != "none":
            write_running(settings, process, fake.endpoint(), ready=state == "gone")
        if state == "gone":
            process.kill()
            process.wait()
        report, _ = run(settings)
        assert fake.sent == []
    assert generation(report) == Check(checks.NAME, False, "The model is not here.", "Connect to the network.")
    assert not report.ready


def test_a_child_that_dies_is_a_line_with_a_remedy(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ModelSource("m", tmp_path, ModelOrigin.LOCAL, "", None)
    monkeypatch.setattr(checks, "prepare", lambda *_: source)
    monkeypatch.setattr(baseline, "CHILD_COMMAND", (sys.executable, "-c", "import sys; sys.exit(3)"))
    found = generation(run(settings)[0])
    assert not found.ok
    assert found.value and found.remedy
