"""The services every page shares: opened once per process, whoever asks first.

A plain lock and a module variable instead of ``st.cache_resource``: the launcher opens the services before any
browser connects, where there is no script run, and “Clear cache” in the app menu must not stop a server that
other people are using.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from engine.config import Settings
from engine.services import LabServices, open_lab

Factory = Callable[[], LabServices]

_lock = threading.Lock()
_opened: LabServices | None = None


def _open() -> LabServices:
    settings = Settings.from_env()
    services = open_lab(settings)
    try:
        if settings.autostart and not services.tuning.resume_interrupted():
            services.supervisor.start()
        services.telemetry.start()
    except BaseException:
        services.close()  # else the data folder would stay ours, and the next try would find it taken
        raise
    return services


_factory: Factory = _open


def lab() -> LabServices:
    """The services of this process; raises LabError when they can't be opened (the next call tries again)."""
    global _opened
    with _lock:
        if _opened is None:
            _opened = _factory()
            atexit.register(close)
        return _opened


def close() -> None:
    """Stop what the services run (the server too). Safe to call twice."""
    global _opened
    with _lock:
        services, _opened = _opened, None
    if services is not None:
        services.close()


def set_factory(factory: Factory) -> None:
    """Replace what ``lab()`` opens; for tests."""
    global _factory, _opened
    with _lock:
        _factory, _opened = factory, None
