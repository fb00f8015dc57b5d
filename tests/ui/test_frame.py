"""The router and the shared frame: the badge in every state, and services that can't be opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from components import frame, services
from engine.dialects import Detected, by_key
from engine.errors import ConfigError, DataFolderInUse, DiskFull, LabError
from engine.server.state import Diagnosis, PhaseProgress, ServerSnapshot, ServerState
from engine.server.supervisor import Supervisor
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import HOSTILE, ROOT, TIMEOUT_S, assert_no_live_markup, errors, labels, links, nodes, read, said

STATES = {
    "stopped": fakes.STOPPED,
    "starting": fakes.STARTING,
    "ready": fakes.READY,
    "stopping": replace(fakes.READY, state=ServerState.STOPPING, endpoint=None),
    "failed": fakes.FAILED,
    "attached": fakes.ATTACHED,
}


def badge(at: AppTest) -> str:
    return "\n".join(read(node) for node in nodes(at.sidebar))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("stopped", ["Server stopped"]),
        ("starting", ["Server starting", fakes.MODEL, "Load the weights", "16 s of about 25 s"]),
        ("ready", ["Server ready", fakes.MODEL, "Bundled weights"]),
        ("stopping", ["Server stopping", fakes.MODEL]),
        ("failed", ["Server failed", "The KV cache is too small for one request of the full length."]),
        ("attached", ["Attached", "Qwen/Qwen2.5-0.5B-Instruct", "http://127.0.0.1:9/v1"]),
    ],
)
def test_badge_says_state_and_model(open_page: OpenPage, state: str, words: list[str]) -> None:
    at = open_page(fakes.make_lab(STATES[state]), "runs")
    assert not at.exception
    assert [word for word in words if word not in badge(at)] == []
    assert "Server settings" in links(at)


def test_badge_and_server_page_name_the_engine_and_its_proof(open_page: OpenPage) -> None:
    proof = "/v1/models has data.0.owned_by = sglang"
    known = replace(fakes.ATTACHED, detected=Detected(by_key("sglang"), "0.5.3", proof))
    at = open_page(fakes.make_lab(known), "server")
    assert "SGLang 0.5.3" in badge(at)
    assert "SGLang 0.5.3" in said(at) and proof in said(at)
    unknown = open_page(fakes.make_lab(replace(fakes.ATTACHED, detected=Detected())), "server")
    assert "Unknown engine" in badge(unknown) and "only the client's figures" in said(unknown)


@pytest.mark.parametrize("page", ["home", "compare", "chat", "server", "runs"])
@pytest.mark.parametrize("state", STATES)
def test_every_page_draws_in_every_state(open_page: OpenPage, page: str, state: str) -> None:
    at = open_page(fakes.make_lab(STATES[state]), page)
    assert not at.exception
    assert not at.error or state == "failed"
    assert at.title


@pytest.mark.parametrize("state", STATES)
def test_only_a_start_has_a_progress_bar(open_page: OpenPage, state: str) -> None:
    at = open_page(fakes.make_lab(STATES[state]), "runs")
    assert len(at.sidebar.get("progress")) == (1 if state == "starting" else 0)


def test_stopped_server_is_not_given_a_model(open_page: OpenPage) -> None:
    """After a stop the last configuration is still known, but nothing serves it."""
    at = open_page(fakes.make_lab(ServerSnapshot(config=fakes.READY.config)), "runs")
    assert fakes.MODEL not in badge(at)


def test_first_start_promises_no_duration(open_page: OpenPage) -> None:
    unknown = tuple(PhaseProgress(p.phase, p.elapsed_s, None, p.done) for p in fakes.STARTING.phases)
    at = open_page(fakes.make_lab(replace(fakes.STARTING, expected_s=None, phases=unknown)), "runs")
    assert "16 s" in badge(at)
    assert "about" not in badge(at)


def test_start_progress_is_time_against_expected_else_phases_done() -> None:
    assert frame.start_progress(fakes.STARTING) == pytest.approx(15.5 / 24.8)
    assert frame.start_progress(replace(fakes.STARTING, elapsed_s=500.0)) == 0.98
    assert frame.start_progress(replace(fakes.STARTING, expected_s=None)) == pytest.approx(2 / 6)
    assert frame.start_progress(ServerSnapshot(state=ServerState.STARTING)) == 0.0


def test_badge_looks_often_at_what_changes_and_sometimes_at_what_another_viewer_may_start() -> None:
    assert {name: frame.poll_interval(state) for name, state in STATES.items()} == {
        "stopped": frame.POLL_IDLE_S,
        "failed": frame.POLL_IDLE_S,
        "starting": frame.POLL_BUSY_S,
        "stopping": frame.POLL_BUSY_S,
        "ready": frame.POLL_READY_S,
        "attached": frame.POLL_READY_S,
    }


def test_badge_follows_the_servers_that_a_comparison_starts_and_stops() -> None:
    assert all(frame.poll_interval(state, comparing=True) <= frame.POLL_READY_S for state in STATES.values())


def test_a_lost_server_of_somebody_else_is_said_to_be_lost(open_page: OpenPage) -> None:
    lost = replace(fakes.ATTACHED, state=ServerState.FAILED, diagnosis=Diagnosis("unreachable", "It's gone.", "Wait."))
    shown = badge(open_page(fakes.make_lab(lost), "runs"))
    assert "Attached server lost" in shown and "It's gone." in shown


def test_a_reservation_redraws_the_page() -> None:
    assert frame._identity(fakes.READY) != frame._identity(fakes.READY_RESERVED)


def test_names_from_outside_are_text_in_the_badge(open_page: OpenPage) -> None:
    endpoint = replace(fakes.ENDPOINT, model=HOSTILE)
    at = open_page(fakes.make_lab(replace(fakes.READY, endpoint=endpoint)), "runs")
    assert HOSTILE in badge(at)
    assert_no_live_markup(at)


def test_notice_about_a_damaged_database_is_shown(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(notice=f"Kept as runs.db.corrupt. {HOSTILE}"), "runs")
    assert [read(warning) for warning in at.sidebar.get("warning") if "runs.db.corrupt" in read(warning)]
    assert_no_live_markup(at)


@pytest.mark.parametrize(
    "error",
    [
        DataFolderInUse("Another vLLM Lab (process 7) uses the data folder.", "Use that one, or set LAB_DATA_DIR."),
        ConfigError("LAB_DEVICE is 'tpu'.", "Use cpu or cuda, or leave it unset."),
        DiskFull("No room on the disk for runs.db.", "Free some space."),
    ],
)
def test_services_that_cannot_be_opened_are_a_message_with_a_remedy(error: LabError) -> None:
    def fail() -> fakes.FakeLab:
        raise error

    services.set_factory(fail)
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=TIMEOUT_S).run()
    assert not at.exception
    assert [message for message in errors(at) if error.cause in message and error.remedy in message]
    assert labels(at) == {"Try again"}
    assert "Is this machine ready?" not in said(at)


def test_try_again_opens_the_lab_once_it_can_be() -> None:
    problems = [DataFolderInUse("Another vLLM Lab uses the folder.", "End it.")]

    def fail_once() -> fakes.FakeLab:
        if problems:
            raise problems.pop()
        return fakes.make_lab()

    services.set_factory(fail_once)
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=TIMEOUT_S).run()
    at.button(key="frame_retry").click().run()
    assert not at.exception and not at.error
    assert "Is this machine ready?" in said(at)


def test_a_lab_that_fails_to_start_its_server_gives_the_data_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("No start today.", "Come back tomorrow.")

    monkeypatch.setenv("LAB_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("LAB_AUTOSTART", "1")
    monkeypatch.setattr(Supervisor, "start", refuse)
    for _ in range(2):
        with pytest.raises(ConfigError, match="No start today"):
            services._open()


def test_services_are_opened_once_for_all_viewers() -> None:
    opened = []

    def count() -> fakes.FakeLab:
        opened.append(fakes.make_lab())
        return opened[-1]

    services.set_factory(count)
    for _ in range(2):
        AppTest.from_file(str(ROOT / "app.py"), default_timeout=TIMEOUT_S).run()
    assert len(opened) == 1


def test_closing_ends_the_services_and_the_next_viewer_opens_new_ones() -> None:
    labs = [fakes.make_lab(), fakes.make_lab()]
    services.set_factory(iter(labs).__next__)
    assert services.lab() is labs[0]
    services.close()
    services.close()
    assert labs[0].supervisor.names() == ["close"]
    assert services.lab() is labs[1]
