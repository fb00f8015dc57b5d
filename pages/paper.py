"""The paper's figure: what PagedAttention's authors published, and what our simulation gives."""

from __future__ import annotations

import streamlit as st

st.title("The paper's figure", anchor=False)
