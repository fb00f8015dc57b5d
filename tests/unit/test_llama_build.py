"""``make llama`` without the building: what is taken out of the package, and what is said where it can't be built."""

from __future__ import annotations

import importlib.util
import io
import shutil
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from engine.config import PROJECT_ROOT
from engine.peers import launching


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("llama_build", PROJECT_ROOT / "scripts" / "llama.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TARGET", tmp_path / ".llama")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".llama" / "stamp")
    return module


def test_it_is_put_where_the_lab_looks(llama: ModuleType) -> None:
    assert (llama.ROOT / ".llama", llama.PROGRAM) == (launching.LLAMA_FOLDER, launching.LLAMA_PROGRAM)


def test_without_cmake_the_way_to_it_is_said(
    llama: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "cmake" else f"/usr/bin/{name}")
    assert llama.main() == 1
    assert "apt install cmake" in capsys.readouterr().err


def test_what_is_built_already_is_not_built_again(llama: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "_build", lambda _: pytest.fail("built again"))
    llama.TARGET.mkdir()
    (llama.TARGET / llama.PROGRAM).touch()
    llama.STAMP.write_text(llama._digest())
    assert llama.main() == 0


def test_only_llama_cpp_is_taken_out_of_the_package(llama: ModuleType, tmp_path: Path) -> None:
    archive = tmp_path / "package.tar.gz"
    with tarfile.open(archive, "w:gz") as package:
        for name in ("p-1/setup.py", "p-1/vendor/llama.cpp/CMakeLists.txt", "p-1/vendor/other/a.c"):
            package.addfile(tarfile.TarInfo(name), io.BytesIO())
    folder = llama._unpack(archive, tmp_path / "source")
    assert [file.name for file in folder.iterdir()] == ["CMakeLists.txt"]
    assert not (tmp_path / "source" / "p-1" / "setup.py").exists()
