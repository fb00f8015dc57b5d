"""Contiguous vs paged: the same requests in two memories, side by side. A simulation."""

from __future__ import annotations

import streamlit as st

st.title("Contiguous vs paged", anchor=False)
