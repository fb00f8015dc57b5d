"""``python -m components.launch``: the app, with its services opened before any browser connects.

The lifespan opens the services (which starts the server) and closes them again at shutdown, also after Ctrl-C or
SIGTERM. ``LAB_PORT`` moves the app from port 8501.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from components import services
from engine.config import PROJECT_ROOT, Settings
from engine.errors import ConfigError, LabError
from engine.server.life import port_is_free

ADDRESS = "127.0.0.1"
# Half a second here, once: two pages importing them at the same time can find them half made, and an import in
# the middle of a chat delays the tokens that are being timed.
PRELOADED = (
    "pandas",
    "plotly.graph_objects",
    "openai",
    "streamlit.elements.arrow",
    "components.kv_figures",
    "components.load_figures",
    "components.tune_figures",
)


def require_free(port: int) -> None:
    """Raise ConfigError when something listens on the port already."""
    if not port_is_free(port):
        raise ConfigError(
            f"Port {port} is taken, perhaps by a vLLM Lab that is open already (http://{ADDRESS}:{port}).",
            f"Use that one, end it, or choose another port: LAB_PORT={port + 1} make run",
        )


@asynccontextmanager
async def lifespan(_app: Any) -> AsyncIterator[dict[str, Any]]:
    """Services from process start to process end."""
    for module in PRELOADED:
        importlib.import_module(module)
    # Streamlit collects all garbage after every script run, each fragment's too: with everything above in the heap
    # that took half a core of those that are being measured. What is imported never becomes garbage.
    gc.collect()
    gc.freeze()
    open_browser()
    try:
        await asyncio.to_thread(services.lab)
    except LabError as error:  # the pages show it too, and try again
        print(f"vLLM Lab: {error}", file=sys.stderr)
    try:
        yield {}
    finally:
        await asyncio.to_thread(services.close)


def open_browser() -> None:
    """Open the app in a browser where there is a display, a moment after the port answers."""
    from streamlit import config

    if not config.get_option("server.headless"):
        timer = threading.Timer(1.0, webbrowser.open, [f"http://{ADDRESS}:{config.get_option('server.port')}"])
        timer.daemon = True
        timer.start()


def main() -> int:
    try:
        port = Settings.from_env().port
        require_free(port)
    except ConfigError as error:
        print(f"vLLM Lab: {error}", file=sys.stderr)
        return 2
    import streamlit as st
    from streamlit.runtime.pages_manager import PagesManager

    # Until st.navigation has run once, Streamlit takes the folder pages/ for its old kind of multipage app, and the
    # first visitor of /chat gets that script without app.py: no frame, and a traceback where the lab can't be opened.
    PagesManager.uses_pages_directory = False
    # The browser is opened from the lifespan: whoever asks for a setting before run() makes Streamlit read them all
    # without this port, and then warn that they changed.
    st.App(PROJECT_ROOT / "app.py", lifespan=lifespan).run(config={"server.port": port})
    return 0


if __name__ == "__main__":
    sys.exit(main())
