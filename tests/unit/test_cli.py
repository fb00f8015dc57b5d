"""The command line: exit codes, and with ``--json`` exactly one document on standard output whatever happens."""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine import cli, services
from engine.config import PROJECT_ROOT, ServerConfig, Settings
from engine.locks import FileLock
from engine.models import ModelOrigin, ModelSource
from engine.server import record
from engine.server.command import Launch
from engine.server.processes import start_ticks
from engine.server.supervisor import Supervisor
from engine.store import RunStore, new_run
from tests.fake_openai import FakeOpenAI, Script

TIMEOUT_S = 30.0
UNREACHABLE = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """The command line takes signals for itself; the test run wants them back."""
    taken = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in taken]
    yield
    for number, handler in zip(taken, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a verb; returns exit code, standard output and standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(list(words))
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def run_json(run: Any) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run a verb with ``--json``; its output has to be one document and nothing else."""

    def run_json(*words: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = run(*words, "--json")
        return code, json.loads(out)

    return run_json


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A checkpoint folder as far as a command needs one."""
    folder = tmp_path / "my model"
    folder.mkdir()
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(shape))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


# -- words that make no command


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["chat"],
        ["serve", "--port", "eighty"],
        ["serve", "--dtype", "int3"],
        ["serve", "--distributed-executor-backend", "uni"],
        ["compare", "--repeats", "many"],
        ["compare", "--no-such-option"],
        ["runs", "--limit", "few"],
        ["stop", "now"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_ends_with_two_and_a_usage(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    out, err = capfd.readouterr()
    assert out == "" and "usage: python -m engine" in err and "error: " in err


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ([], "required"),
        (["nonsense"], "invalid choice"),
        (["chat"], "required: message"),
        (["serve", "--port", "eighty"], "eighty"),
        (["load", "--requests", "many"], "many"),
        (["tune", "--sampler", "guess"], "guess"),
        (["runs", "--limit", "few"], "few"),
        *(
            ([verb, "--no-such-option"], "no-such-option")
            for verb in ("compare", "scrape", "stop", "simulate", "check")
        ),
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_one_document_too(words: list[str], cause: str, run_json: Any) -> None:
    code, answer = run_json(*words)
    assert code == 2 and cause in answer["error"] and "--help" in answer["remedy"]


@pytest.mark.parametrize("verb", ["check", "serve", "compare", "chat", "runs", "stop"])
def test_every_verb_has_help_and_takes_json(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([verb, "--help"])
    assert caught.value.code == 0
    assert "--json" in capfd.readouterr().out


def test_every_option_of_a_server_can_be_given() -> None:
    words = (
        "serve --model a/b --max-model-len 64 --max-num-seqs 2 --max-num-batched-tokens 128 --block-size 32 "
        "--kv-cache-gib 3 --port 8123 --tensor-parallel-size 2 --pipeline-parallel-size 3 --data-parallel-size 4 "
        "--distributed-executor-backend ray --dtype half --kv-cache-dtype fp8 --attention-backend X "
        "--gpu-memory-utilization 0.5 --no-enforce-eager --no-enable-prefix-caching"
    )
    assert cli.serve.server_config(cli.build_parser().parse_args(words.split())) == ServerConfig(
        model="a/b",
        max_model_len=64,
        max_num_seqs=2,
        max_num_batched_tokens=128,
        block_size=32,
        kv_cache_gib=3,
        port=8123,
        tensor_parallel_size=2,
        pipeline_parallel_size=3,
        data_parallel_size=4,
        distributed_executor_backend="ray",
        dtype="half",
        kv_cache_dtype="fp8",
        attention_backend="X",
        gpu_memory_utilization=0.5,
        enforce_eager=False,
        enable_prefix_caching=False,
    )
    assert cli.serve.server_config(cli.build_parser().parse_args(["serve"])) == ServerConfig()


# -- errors

VERBS = [["check", "--no-generation"], ["serve"], ["compare"], ["chat", "hello"], ["runs"], ["stop"]]
ERRORS = [
    (["serve", "--max-num-seqs", "0"], "max_num_seqs"),
    (["serve", "--print-command", "--model", "not a model"], "not a model"),
    (["serve", "--print-command", "--model", "/no/such/folder"], "/no/such/folder"),
    (["compare", "--users", "one"], "list of numbers"),
    (["compare", "--users", "0"], "users"),
    (["compare", "--engines", "sglang"], "sglang"),
    (["compare", "--base-url", UNREACHABLE], "127.0.0.1:9"),
    (["chat", "hello", "--base-url", UNREACHABLE], "127.0.0.1:9"),
    (["chat", "hello", "--base-url", "ftp://x"], "ftp://x"),
    (["runs", "missing"], "missing"),
]


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_every_verb_tells_a_wrong_environment_as_one_document(
    run_json: Any, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_DEVICE", "abacus")
    code, answer = run_json(*words)
    assert code == 1
    assert "abacus" in answer["error"] and answer["remedy"]


@pytest.mark.parametrize("words", [words for words in VERBS if words[0] != "check"], ids=lambda words: words[0])
def test_every_verb_tells_a_data_folder_that_can_not_be_used(run_json: Any, words: list[str], data_dir: Path) -> None:
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    data_dir.write_text("a file, not a folder")
    code, answer = run_json(*words)
    assert code == 1
    assert str(data_dir) in answer["error"] and "LAB_DATA_DIR" in answer["remedy"]


@pytest.mark.parametrize(
    ("words", "cause"), ERRORS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_an_error_is_one_document_and_exit_code_one(run_json: Any, words: list[str], cause: str) -> None:
    code, answer = run_json(*words)
    assert code == 1
    assert cause in answer["error"] and answer["remedy"]


@pytest.mark.parametrize(
    ("words", "cause"), ERRORS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_without_json_an_error_goes_to_standard_error(run: Any, words: list[str], cause: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert cause in err


def test_the_module_can_be_run(data_dir: Path) -> None:
    command = [sys.executable, "-m", "engine", "runs", "missing", "--json"]
    done = subprocess.run(command, cwd=PROJECT_ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert "missing" in json.loads(done.stdout)["error"]


# -- runs


def test_no_runs_yet(run: Any, run_json: Any) -> None:
    assert run_json("runs") == (0, {"runs": []})
    code, out, _ = run("runs")
    assert code == 0 and "No runs yet" in out


def test_runs_are_listed_newest_first_and_one_can_be_shown(run: Any, run_json: Any) -> None:
    store = RunStore(Settings.from_env().database)
    runs = [new_run("compare", f"run {number}", results={"ratio": number + 0.5}) for number in range(3)]
    for item in runs:
        store.add(item)
    code, answer = run_json("runs", "--limit", "2")
    assert code == 0
    assert [item["title"] for item in answer["runs"]] == ["run 2", "run 1"]
    assert run_json("runs", runs[0].id) == (0, runs[0].to_dict())
    _, out, _ = run("runs")
    assert [line.split()[0] for line in out.splitlines()] == [item.id for item in reversed(runs)]


def test_a_damaged_database_is_kept_aside_and_the_list_says_so(run: Any, run_json: Any) -> None:
    path = Settings.from_env().database
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"this was never a database" * 400)
    code, out, err = run("runs")
    assert code == 0 and "No runs yet" in out
    assert "damaged" in err and ".corrupt-" in err
    assert run_json("runs") == (0, {"runs": []})


# -- stop


@pytest.fixture
def state_dir() -> Path:
    folder = Settings.from_env().state_dir
    folder.mkdir(parents=True)
    return folder


def write_leftover(state_dir: Path, pid: int) -> None:
    ticks = start_ticks(pid)
    assert ticks is not None
    source = ModelSource("m", Path("."), ModelOrigin.LOCAL, "", None).to_dict()
    left = record.ServerRecord(pid, ticks, "http://127.0.0.1:1/v1", "k", "m", True, {}, source, "", "")
    record.write_record(state_dir, left)


def test_stopping_nothing_is_no_error(run: Any, run_json: Any) -> None:
    assert run_json("stop") == (0, {"found": False, "ended_processes": [], "owner": None})
    code, out, _ = run("stop")
    assert (code, out) == (0, "Nothing was left over.\n")


def test_a_leftover_server_is_ended(run_json: Any, state_dir: Path) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as left:
        write_leftover(state_dir, left.pid)
        assert run_json("stop") == (0, {"found": True, "ended_processes": [left.pid], "owner": None})
        assert left.wait(TIMEOUT_S) == -signal.SIGKILL
    assert run_json("stop")[1]["found"] is False


OWNER = """
import signal, sys
from pathlib import Path
from engine.locks import FileLock
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(FileLock(Path(sys.argv[1])).acquire(), flush=True)
signal.pause()
"""


@pytest.fixture
def owner(state_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the data folder."""
    command = [sys.executable, "-c", OWNER, str(state_dir / services.OWNER_LOCK)]
    with subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_the_server_of_an_open_lab_is_left_alone(run_json: Any, owner: Any, state_dir: Path) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as server:
        write_leftover(state_dir, server.pid)
        code, answer = run_json("stop")
        assert code == 1
        assert str(owner.pid) in answer["error"] and "--owner" in answer["remedy"]
        assert server.poll() is None and owner.poll() is None
        server.kill()


def test_the_open_lab_can_be_ended_on_request(run_json: Any, owner: Any, state_dir: Path) -> None:
    code, answer = run_json("stop", "--owner")
    assert (code, answer["found"], answer["owner"]) == (0, True, owner.pid)
    assert owner.wait(TIMEOUT_S) == 0
    lock = FileLock(state_dir / services.OWNER_LOCK)
    assert lock.acquire()
    lock.release()


# -- check


def test_the_check_without_a_generation_lists_what_is_missing(run: Any, run_json: Any) -> None:
    code, answer = run_json("check", "--no-generation")
    by_name = {item["name"]: item for item in answer["checks"]}
    assert (code, answer["ready"]) == (1, False)
    assert not by_name["Model"]["ok"] and by_name["Model"]["remedy"]
    assert "Real generation" not in by_name
    code, out, _ = run("check", "--no-generation")
    assert code == 1 and out.splitlines()[-1].startswith("Not ready")
    assert len(out.splitlines()) == len(by_name) + 1


# -- serve


def test_the_command_of_a_server_is_shown_and_nothing_is_started(run: Any, run_json: Any, model_folder: Path) -> None:
    words = ["serve", "--print-command", "--model", str(model_folder), "--port", "8123", "--max-num-seqs", "4"]
    code, answer = run_json(*words)
    assert code == 0
    assert answer["model"]["path"] == str(model_folder)
    assert answer["argv"][1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert answer["argv"][answer["argv"].index("--port") + 1] == "8123"
    assert answer["env"]["VLLM_API_KEY"] == "…"
    code, out, _ = run(*words)
    assert (code, out.strip()) == (0, answer["command"])
    assert shlex.split(out)[-len(answer["argv"]) :] == answer["argv"]
    assert record.read_record(Settings.from_env().state_dir) is None


def test_the_command_can_be_shown_beside_an_open_lab(run_json: Any, owner: Any, model_folder: Path) -> None:
    assert run_json("serve", "--print-command", "--model", str(model_folder))[0] == 0
    assert owner.poll() is None


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the lab starts is the fake server."""

    def build(*_: Any, port: int, api_key: str, **__: Any) -> Launch:
        env = {"VLLM_API_KEY": api_key, "PYTHONPATH": str(PROJECT_ROOT)}
        return Launch((sys.executable, "-m", "tests.fake_server", "--port", str(port)), env)

    def prepare(model: str, *_: Any) -> ModelSource:
        return ModelSource(model, tmp_path, ModelOrigin.LOCAL, "a folder", 1)

    monkeypatch.setattr(services, "Supervisor", functools.partial(Supervisor, build=build, prepare_model=prepare))


def when_served(action: Callable[[record.ServerRecord], None]) -> threading.Thread:
    """Do something as soon as the server is told of and waited for: the wait has a SIGTERM handler of its own."""
    earlier = (signal.getsignal(signal.SIGTERM), cli.common.interrupt)

    def wait() -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while signal.getsignal(signal.SIGTERM) in earlier and time.monotonic() < deadline:
            time.sleep(0.01)
        found = record.read_record(Settings.from_env().state_dir)
        assert found is not None
        action(found)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("fake_server")
def test_a_served_model_is_told_in_one_document_and_ends_with_sigterm(run_json: Any) -> None:
    seen: list[record.ServerRecord] = []

    def end(found: record.ServerRecord) -> None:
        seen.append(found)
        os.kill(os.getpid(), signal.SIGTERM)

    when_served(end)
    code, answer = run_json("serve", "--model", "owner/name")
    assert (code, answer["base_url"], answer["api_key"]) == (0, seen[0].base_url, seen[0].api_key)
    assert not psutil.pid_exists(seen[0].pid)


@pytest.mark.usefixtures("fake_server")
def test_serving_ends_with_sigterm_and_leaves_nothing(run: Any) -> None:
    seen: list[record.ServerRecord] = []

    def end(found: record.ServerRecord) -> None:
        seen.append(found)
        os.kill(os.getpid(), signal.SIGTERM)

    when_served(end)
    code, out, err = run("serve", "--model", "owner/name")
    assert code == 0
    assert f"export OPENAI_BASE_URL={seen[0].base_url} OPENAI_API_KEY={seen[0].api_key}" in out
    assert seen[0].api_key not in err
    assert not psutil.pid_exists(seen[0].pid)
    assert record.read_record(Settings.from_env().state_dir) is None


@pytest.mark.usefixtures("fake_server")
def test_serving_ends_with_sigint_also_where_a_shell_began_it_in_the_background(run: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a shell without job control does to a background job
    when_served(lambda _: os.kill(os.getpid(), signal.SIGINT))
    code, _, err = run("serve", "--model", "owner/name")
    assert code == 0 and "Stopped." in err


@pytest.mark.usefixtures("fake_server")
def test_serving_under_nohup_takes_no_sigint_only_sigterm(run: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def end(_: record.ServerRecord) -> None:
        ignored.append(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGTERM)

    ignored: list[bool] = []
    when_served(end)
    code, _, err = run("serve", "--model", "owner/name")
    assert (code, ignored) == (0, [True]) and "Stopped." in err


@pytest.mark.usefixtures("fake_server")
def test_a_server_that_dies_while_it_is_served_is_an_error(run: Any) -> None:
    when_served(lambda found: os.kill(found.pid, signal.SIGKILL))
    code, _, err = run("serve", "--model", "owner/name")
    assert code == 1
    assert "SIGKILL" in err


# -- chat with another server


def test_a_chat_turn_is_one_document_with_its_times(run_json: Any) -> None:
    with FakeOpenAI(Script(tokens=3)) as fake:
        code, answer = run_json("chat", "hello", "--base-url", fake.base_url, "--api-key", "their-key")
        sent = fake.sent[-1]
    assert code == 0
    assert (answer["text"], answer["output_tokens"], answer["prompt_tokens"]) == ("t0 t1 t2 ", 3, 7)
    assert answer["ttft_ms"] > 0 and answer["e2e_ms"] >= answer["ttft_ms"]
    assert sent.headers["Authorization"] == "Bearer their-key"


def test_the_key_may_come_from_the_environment(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    with FakeOpenAI(Script(tokens=2)) as fake:
        code, out, err = run("chat", "hello", "--base-url", fake.base_url)
        assert fake.sent[-1].headers["Authorization"] == "Bearer from-the-environment"
    assert code == 0 and out.startswith("t0 t1 ")
    assert "from-the-environment" not in out + err


def test_a_chat_turn_that_fails_is_one_document_with_its_error(run_json: Any) -> None:
    body = json.dumps({"error": {"message": "the model is on holiday"}}).encode()
    with FakeOpenAI(Script(status=500, body=body, content_type="application/json")) as fake:
        code, answer = run_json("chat", "hello", "--base-url", fake.base_url)
    assert code == 1
    assert "the model is on holiday" in answer["error"]
