"""Files that people give in the browser, named by their content; the newest are kept, for runs to read them again."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path

from engine.config import Settings
from engine.errors import LabError

FOLDER = "uploads"
UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST_NAME = 60
KEPT = 20


def keep(settings: Settings, name: str, content: bytes) -> Path:
    """The path of the file; the same content under the same name is one file. Raises LabError."""
    folder = settings.data_dir / FOLDER
    path = folder / f"{hashlib.sha256(content).hexdigest()[:12]}-{UNUSUAL.sub('_', name)[-LONGEST_NAME:]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.touch()  # it is in use
        else:
            part = path.with_name(f"{path.name}.{threading.get_ident()}.part")  # two tabs may give it at once
            part.write_bytes(content)
            part.replace(path)
            _forget_old(folder)
    except OSError as error:
        raise LabError(f"The file can't be kept: {error}.", "Free some space in the data folder.") from error
    return path


def _forget_old(folder: Path) -> None:
    """All but those that were used last: a saved run has its results, and needs its file only to be repeated."""
    found = [(one.stat().st_mtime, one) for one in folder.iterdir()]
    for _, path in sorted(found, reverse=True)[KEPT:]:
        path.unlink(missing_ok=True)


def given_name(path: str) -> str:
    """As the person called it, more or less."""
    return Path(path).name.partition("-")[2]
