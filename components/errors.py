"""How an error looks: cause first, then what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from components.format import plain
from engine.errors import LabError


def show(error: LabError) -> None:
    remedy = f"\n\n{plain(error.remedy)}" if error.remedy else ""
    st.error(f"**{plain(error.cause)}**{remedy}", icon=":material/error:")


@contextmanager
def shown() -> Iterator[None]:
    """Show a LabError of the block on the page; anything else is a fault of ours and stays visible as one."""
    try:
        yield
    except LabError as error:
        show(error)
