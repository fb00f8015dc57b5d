"""Server: its state, the settings form, attaching, the diagnosis and the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from components.server_view import changed_settings, phases_html
from engine.config import Device, ServerConfig
from engine.errors import AlreadyRunning, ServerNotReady
from engine.server.state import Diagnosis, Fix, KvCapacity, ServerSnapshot, ServerState
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import (
    ESCAPED,
    HOSTILE,
    assert_no_live_markup,
    errors,
    has_a_lone_zero,
    keys,
    labels,
    part,
    press,
    said,
)

START, RESTART, STOP, ATTACH, DETACH = (
    "Start the server",
    "Restart with these settings",
    "Stop the server",
    "Attach",
    "Detach",
)
FIX = "Set max_model_len to 20480 and start"
STOPPING = replace(fakes.READY, state=ServerState.STOPPING, endpoint=None)
REFUSED = AlreadyRunning(f"The server is starting. {HOSTILE}", "There is only one at a time.")


def type_model(at: AppTest, text: str) -> None:
    """Type a model of one's own: AppTest only knows the options that were offered."""
    box = at.selectbox(key="server_model_0")
    box.options = [*box.options, text]
    box.set_value(text)


@pytest.mark.parametrize(
    ("server", "words", "buttons"),
    [
        (fakes.STOPPED, "Nothing runs. Choose settings below and press Start.", {START, ATTACH}),
        (fakes.STARTING, "Starting: 16 s of about 25 s", {STOP, RESTART}),
        (fakes.READY, "from Start to a first token", {STOP, RESTART}),
        (STOPPING, "Stopping, and making sure that no process stays behind.", set()),
        (fakes.FAILED, "The lines that prove it", {FIX, START, ATTACH}),
        (fakes.ATTACHED, "not started by the lab", {DETACH, ATTACH}),
    ],
)
def test_every_state_says_what_it_is_and_offers_what_can_be_done(
    run_page: OpenPage, server: ServerSnapshot, words: str, buttons: set[str]
) -> None:
    at = run_page(fakes.make_lab(server), "server")
    assert not at.exception
    assert words in said(at)
    assert labels(at) == buttons


def test_a_start_shows_its_phases_with_the_present_one(run_page: OpenPage) -> None:
    status = part(run_page(fakes.make_lab(fakes.STARTING), "server"), "server_status")
    for words in ("✓  Prepare the model", "Load the weights", "4.2 s of about 6.0 s", "Answer a first token"):
        assert words in status


def test_ready_server_shows_its_capacity(run_page: OpenPage) -> None:
    status = part(run_page(fakes.make_lab(fakes.READY), "server"), "server_status")
    for words in ("26 s", "2,048", "93,184", "728 blocks of 128 tokens", "45.5"):
        assert words in status


@pytest.mark.parametrize(
    "server",
    [
        replace(fakes.READY, capacity=KvCapacity(), ready_after_s=None),
        replace(fakes.ATTACHED, endpoint=replace(fakes.ENDPOINT, max_model_len=None)),
        replace(fakes.STARTING, elapsed_s=None, expected_s=None, phases=()),
    ],
)
def test_what_the_server_does_not_tell_is_a_dash_and_never_a_zero(run_page: OpenPage, server: ServerSnapshot) -> None:
    status = part(run_page(fakes.make_lab(server), "server"), "server_status")
    assert "—" in status
    assert not has_a_lone_zero(status)


def test_start_sends_the_settings_of_the_form(run_page: OpenPage) -> None:
    lab = fakes.make_lab()
    at = run_page(lab, "server")
    at.selectbox(key="server_model_0").set_value("Qwen/Qwen2.5-0.5B-Instruct")
    at.select_slider(key="server_max_model_len_0").set_value(1024)
    at.select_slider(key="server_max_num_seqs_0").set_value(8)
    at.selectbox(key="server_dtype_0").set_value("bfloat16")
    at.selectbox(key="server_block_size_0").set_value("64")
    at.number_input(key="server_kv_gib_0").set_value(3)
    at.selectbox(key="server_mode_0").set_value("Compiled, with graphs")
    at.toggle(key="server_prefix_caching_0").set_value(False)
    press(at, START)
    wanted = ServerConfig(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        max_model_len=1024,
        max_num_seqs=8,
        dtype="bfloat16",
        block_size=64,
        kv_cache_gib=3,
        enforce_eager=False,
        enable_prefix_caching=False,
    )
    assert not at.exception and not at.error
    assert lab.supervisor.made == [("start", wanted)]


def test_start_without_a_change_sends_the_defaults(run_page: OpenPage) -> None:
    lab = fakes.make_lab()
    press(run_page(lab, "server"), START)
    assert lab.supervisor.made == [("start", ServerConfig())]


def test_a_number_that_may_be_empty_can_be_cleared_in_a_browser(run_page: OpenPage) -> None:
    """A browser puts a number input's default back when it is cleared, so this has none."""
    lab = fakes.make_lab(ServerSnapshot(config=ServerConfig(kv_cache_gib=4)))
    at = run_page(lab, "server")
    field = at.number_input(key="server_kv_gib_0")
    assert field.value == 4
    assert not field.proto.HasField("default")
    field.set_value(None)
    press(at, START)
    assert lab.supervisor.made == [("start", ServerConfig(kv_cache_gib=None))]


def test_the_sliders_show_what_the_server_has_even_between_their_steps(run_page: OpenPage) -> None:
    lab = fakes.make_lab(ServerSnapshot(config=ServerConfig(max_model_len=20480, max_num_seqs=33)))
    at = run_page(lab, "server")
    assert at.select_slider(key="server_max_model_len_0").value == 20480
    assert at.select_slider(key="server_max_num_seqs_0").value == 33
    press(at, START)
    assert lab.supervisor.made == [("start", ServerConfig(max_model_len=20480, max_num_seqs=33))]


@pytest.mark.parametrize("before", [2048, None])
def test_the_context_can_be_left_to_the_model(run_page: OpenPage, before: int | None) -> None:
    lab = fakes.make_lab(ServerSnapshot(config=ServerConfig(max_model_len=before)))
    at = run_page(lab, "server")
    if before is not None:
        at.select_slider(key="server_max_model_len_0").set_value(0)
    press(at, START)
    assert lab.supervisor.made == [("start", ServerConfig(max_model_len=None))]


def test_no_longer_context_is_offered_than_the_model_takes(run_page: OpenPage, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 8192}')
    lab = fakes.make_lab(replace(fakes.READY, source=replace(fakes.SOURCE, path=tmp_path)))
    options = run_page(lab, "server").select_slider(key="server_max_model_len_1").options
    assert options[-2:] == ["8,192 tokens", "the model's own"]
    (tmp_path / "config.json").write_text("{")
    assert not run_page(lab, "server").exception


def test_a_model_of_ones_own_can_be_typed(run_page: OpenPage) -> None:
    lab = fakes.make_lab()
    at = run_page(lab, "server")
    type_model(at, "  /models/mine ")
    press(at, START)
    assert lab.supervisor.made == [("start", ServerConfig(model="/models/mine"))]


def test_settings_that_cannot_work_are_a_message_and_start_nothing(run_page: OpenPage) -> None:
    lab = fakes.make_lab()
    at = run_page(lab, "server")
    type_model(at, "--trust-remote-code")
    press(at, START)
    assert not at.exception
    assert "is not a model name" in errors(at)[0]
    assert lab.supervisor.made == []


def test_restart_keeps_what_the_form_does_not_show_and_says_what_changed(run_page: OpenPage) -> None:
    running = ServerConfig(port=8123, seed=7, max_num_batched_tokens=4096)
    lab = fakes.make_lab(replace(fakes.READY, config=running))
    at = run_page(lab, "server")
    at.select_slider(key="server_max_model_len_1").set_value(4096)
    press(at, RESTART)
    assert lab.supervisor.made == [("restart", replace(running, max_model_len=4096))]
    assert [toast.value.replace("\\", "") for toast in at.toast] == ["Changed max_model_len: 2048 → 4096"]
    assert not at.run().toast


def test_form_shows_what_the_newest_start_was_made_with(run_page: OpenPage) -> None:
    """Also when the settings were changed by the diagnosis' button or from another tab."""
    lab = fakes.make_lab(fakes.FAILED)
    at = run_page(lab, "server")
    assert at.select_slider(key="server_max_model_len_2").value == 65536
    press(at, FIX)
    fixed = replace(fakes.READY, generation=3, config=lab.supervisor.made[0][1])
    lab.supervisor.current = fixed
    press(at.run(), RESTART)
    assert [value.max_model_len for _, value in lab.supervisor.made] == [20480, 20480]


def test_diagnosis_shows_cause_remedy_proof_and_the_log(run_page: OpenPage) -> None:
    found = part(run_page(fakes.make_lab(fakes.FAILED), "server"), "server_diagnosis")
    for words in (
        "The KV cache is too small for one request of the full length.",
        "Lower max_model_len to 20,480, or give the KV cache more memory.",
        "the estimated maximum model length is 20480",
        "Whole log: data/logs/server-2.log",
    ):
        assert words in found


def test_fix_of_the_diagnosis_starts_with_the_change(run_page: OpenPage) -> None:
    lab = fakes.make_lab(fakes.FAILED)
    at = press(run_page(lab, "server"), FIX)
    assert not at.exception
    assert lab.supervisor.made == [("start", ServerConfig(max_model_len=20480))]


def test_fix_that_is_no_setting_that_works_is_a_message(run_page: OpenPage) -> None:
    wrong = replace(fakes.FAILED.diagnosis, fix=Fix("Set it to 0", {"max_model_len": 0}))
    lab = fakes.make_lab(replace(fakes.FAILED, diagnosis=wrong))
    at = press(run_page(lab, "server"), "Set it to 0 and start")
    assert not at.exception
    assert "max_model_len is 0." in errors(at)[-2] + errors(at)[-1]
    assert lab.supervisor.made == []


def test_diagnosis_without_a_fix_has_no_button(run_page: OpenPage) -> None:
    bare = Diagnosis("unknown", "The server ended.", "Look at the log.")
    at = run_page(fakes.make_lab(replace(fakes.FAILED, diagnosis=bare)), "server")
    assert "server_fix" not in keys(at)
    assert "The lines that prove it" not in said(at)
    assert labels(at) == {START, ATTACH}


def test_failure_without_a_diagnosis_says_its_message(run_page: OpenPage) -> None:
    failed = ServerSnapshot(state=ServerState.FAILED, message=f"Ended with code 9. {HOSTILE}")
    at = run_page(fakes.make_lab(failed), "server")
    assert f"Ended with code 9. {HOSTILE}" in part(at, "server_status")
    assert_no_live_markup(at)


def test_markup_in_log_and_diagnosis_is_text(run_page: OpenPage) -> None:
    hostile = Diagnosis("x", f"Cause {HOSTILE}", f"Remedy {HOSTILE}", (f"Proof {HOSTILE}",), Fix(f"Do {HOSTILE}", {}))
    lab = fakes.make_lab(replace(fakes.FAILED, diagnosis=hostile, log_path=f"/tmp/{HOSTILE}"))
    lab.supervisor.log = [f"Line {HOSTILE}"]
    at = run_page(lab, "server")
    for name in ("Cause", "Remedy", "Proof", "Line", "Do"):
        assert f"{name} {HOSTILE}" in said(at)
    assert_no_live_markup(at)


@pytest.mark.parametrize(
    ("server", "label", "call"),
    [
        (fakes.READY, STOP, ("stop", None)),
        (fakes.STARTING, STOP, ("stop", None)),
        (fakes.ATTACHED, DETACH, ("detach", None)),
    ],
)
def test_what_runs_can_be_ended(
    run_page: OpenPage, server: ServerSnapshot, label: str, call: tuple[str, object]
) -> None:
    lab = fakes.make_lab(server)
    at = press(run_page(lab, "server"), label)
    assert not at.exception and not at.error
    assert lab.supervisor.made == [call]


@pytest.mark.parametrize(
    ("server", "label"),
    [
        (fakes.STOPPED, START),
        (fakes.READY, RESTART),
        (fakes.READY, STOP),
        (fakes.FAILED, FIX),
        (fakes.ATTACHED, DETACH),
        (fakes.STOPPED, ATTACH),
    ],
)
def test_a_refused_action_is_a_message_with_its_remedy(run_page: OpenPage, server: ServerSnapshot, label: str) -> None:
    lab = fakes.make_lab(server)
    lab.supervisor.error = REFUSED
    at = press(run_page(lab, "server"), label)
    assert not at.exception
    assert [text for text in errors(at) if REFUSED.cause in text and REFUSED.remedy in text]
    assert len(lab.supervisor.made) == 1
    assert_no_live_markup(at)


def test_attach_sends_address_and_key(run_page: OpenPage) -> None:
    lab = fakes.make_lab()
    at = run_page(lab, "server")
    at.text_input(key="server_attach_url").set_value(" http://gpu:8000/v1 ")
    at.text_input(key="server_attach_key").set_value(" secret ")
    press(at, ATTACH)
    assert lab.supervisor.made == [("attach", ("http://gpu:8000/v1", "secret", None))]


def test_attach_names_one_of_several_models(run_page: OpenPage) -> None:
    lab = fakes.make_lab()
    at = run_page(lab, "server")
    at.text_input(key="server_attach_url").set_value("http://gpu:8000/v1")
    at.text_input(key="server_attach_model").set_value(" owner/name ")
    press(at, ATTACH)
    assert lab.supervisor.made == [("attach", ("http://gpu:8000/v1", None, "owner/name"))]


def test_attach_without_a_key_sends_none(run_page: OpenPage) -> None:
    lab = fakes.make_lab()
    at = run_page(lab, "server")
    at.text_input(key="server_attach_url").set_value("http://gpu:8000")
    press(at, ATTACH)
    assert lab.supervisor.made == [("attach", ("http://gpu:8000", None, None))]


def test_attach_to_nothing_is_a_message(run_page: OpenPage) -> None:
    lab = fakes.make_lab()
    lab.supervisor.error = ServerNotReady("http://gpu:8000/v1 can't be reached.", "Is it running?")
    at = press(run_page(lab, "server"), ATTACH)
    assert not at.exception
    assert errors(at) == ["**http://gpu:8000/v1 can't be reached.**\n\nIs it running?"]


@pytest.mark.parametrize(
    ("server", "compare", "words"),
    [
        (STOPPING, None, "Waits until the stop is over."),
        (fakes.STARTING, None, "Waits until the start or the stop is over."),
        (fakes.ATTACHED, None, "Detach from the other server first."),
        (fakes.READY, None, "Stop the lab's own server first."),
    ],
)
def test_a_control_that_is_off_says_why(
    run_page: OpenPage, server: ServerSnapshot, compare: object, words: str
) -> None:
    assert words in said(run_page(fakes.make_lab(server, compare=compare), "server"))


@pytest.mark.parametrize(
    ("server", "buttons"),
    [
        (fakes.STOPPED_RESERVED, {START, ATTACH}),
        (fakes.READY_RESERVED, {STOP, RESTART, ATTACH}),
        (fakes.FAILED_RESERVED, {FIX, START, ATTACH}),
        (fakes.ATTACHED_RESERVED, {DETACH, START, ATTACH}),
    ],
)
def test_nothing_can_be_pressed_while_the_server_is_reserved(
    run_page: OpenPage, server: ServerSnapshot, buttons: set[str]
) -> None:
    at = run_page(fakes.make_lab(server), "server")
    assert labels(at) == set()
    assert {ESCAPED.sub(r"\1", button.label) for button in at.button} == buttons
    assert all(fakes.MEASURING[:-1] in button.help for button in at.button)


def test_of_an_attached_server_it_says_what_is_not_known(run_page: OpenPage) -> None:
    words = said(run_page(fakes.make_lab(fakes.ATTACHED), "server"))
    assert "its weights, dtype and threads are not known" in words
    adopted = replace(fakes.READY, attached=True, adopted=True)
    assert "not known" not in part(run_page(fakes.make_lab(adopted), "server"), "server_status")


def test_gpu_has_a_memory_share_and_parallel_settings(run_page: OpenPage) -> None:
    lab = fakes.make_lab(device=Device.CUDA)
    at = run_page(lab, "server")
    assert not at.exception
    assert "server_kv_gib_0" not in keys(at)
    at.slider(key="server_gpu_share_0").set_value(0.5)
    at.number_input(key="server_tensor_parallel_size_0").set_value(2)
    at.selectbox(key="server_executor_0").set_value("mp")
    press(at, START)
    wanted = ServerConfig(gpu_memory_utilization=0.5, tensor_parallel_size=2, distributed_executor_backend="mp")
    assert lab.supervisor.made == [("start", wanted)]


def test_ray_is_offered_where_a_cluster_is(run_page: OpenPage) -> None:
    lab = fakes.make_lab(device=Device.CUDA)
    assert "ray" not in run_page(lab, "server").selectbox(key="server_executor_0").options
    hardware = replace(lab.environment.hardware, ray_cluster=True, gpus=lab.environment.hardware.gpus[:1])
    lab.environment = replace(lab.environment, hardware=hardware)
    at = run_page(lab, "server")
    at.number_input(key="server_pipeline_parallel_size_0").set_value(4)
    at.selectbox(key="server_executor_0").set_value("ray")
    press(at, START)
    assert lab.supervisor.made == [
        ("start", ServerConfig(pipeline_parallel_size=4, distributed_executor_backend="ray"))
    ]


def test_one_processor_has_no_parallel_settings(run_page: OpenPage) -> None:
    assert "server_tensor_parallel_size_0" not in keys(run_page(fakes.make_lab(), "server"))


def test_command_is_shown_for_the_labs_own_server_only(run_page: OpenPage) -> None:
    own = run_page(fakes.make_lab(fakes.READY), "server")
    assert fakes.COMMAND in [code.value for code in own.code]
    attached = run_page(fakes.make_lab(fakes.ATTACHED), "server")
    assert "Show the command" not in said(attached)
    assert not attached.code


def test_log_is_shown_and_searched(run_page: OpenPage) -> None:
    at = run_page(fakes.make_lab(fakes.READY), "server")
    assert "line 0 of the log" in part(at, "server_log") and "line 39 of the log" in part(at, "server_log")
    at.text_input(key="server_log_needle").set_value("core.py:117").run()
    assert "line 17 of the log" in part(at, "server_log") and "line 18" not in part(at, "server_log")
    at.text_input(key="server_log_needle").set_value("nowhere").run()
    assert "No line of the log has that." in part(at, "server_log")


def test_empty_log_says_so(run_page: OpenPage) -> None:
    lab = fakes.make_lab(fakes.STARTING)
    lab.supervisor.log = []
    assert "The log is empty so far." in part(run_page(lab, "server"), "server_log")


def test_key_of_the_server_is_nowhere_on_the_page(open_page: OpenPage) -> None:
    assert fakes.ENDPOINT.api_key
    for page in ("home", "server", "chat", "compare"):
        assert fakes.ENDPOINT.api_key not in said(open_page(fakes.make_lab(fakes.READY), page))


def test_phase_bar_never_claims_to_be_full_before_its_end() -> None:
    late = fakes.phases(2, now_s=600.0)
    assert "width:97.0%" in phases_html(late)
    assert phases_html(fakes.phases(6)).count("width:100.0%") == 6
    assert 'class="lab-phase now"' not in phases_html(fakes.phases(6))


def test_changed_settings_are_named_with_both_values() -> None:
    before = ServerConfig()
    assert changed_settings(before, replace(before, max_num_seqs=4)) == ["max_num_seqs: 32 → 4"]
    assert changed_settings(before, before) == []
    assert changed_settings(None, before) == []
