"""The rules of the simulation in plain words, so that nobody has to take the picture on trust."""

from __future__ import annotations

import streamlit as st

from engine.config import SimulationConfig

KINDS = """
- **Token states**: slots that hold keys and values of a token. The only memory that does work.
- **Reserved**: this request will fill it before it ends, and nobody else may use it until then.
- **Internal fragmentation**: this request holds it and will never fill it.
- **External fragmentation**: the allocator can give it to nobody: a chunk rounded up to a power of two, or what is left
  beyond whole chunks or blocks.
- **Free**: held by nobody. In contiguous memory it may still lie in holes that are too small. The paper counts it as
  “external fragmentation & others”; here it is drawn apart.
- **Utilisation**: token states of the slots that requests hold.
"""
CONTIGUOUS = """
- A buddy allocator, as in the paper's Orca baselines: pieces of {buddy_unit} tokens, rounded up to a power of two.
- **Max length** keeps {max_model_len} tokens for every request; **power of two** rounds the answer's length up;
  **oracle** knows it, which no real server can.
"""
PAGED = """
- Blocks of {block_size} tokens, taken one by one as a request grows, anywhere in memory.
- When no block is left, the request that came last loses all of its blocks and is computed again later (recompute).
- **Shared prefixes**: full blocks with the same tokens since the beginning are held once; freed ones stay findable
  until they are needed (least recently used first).
- **Copy on write**: answers to one prompt share its blocks; who writes into a shared block copies it first.
"""
SCHEDULER = """
- First come, first served, and continuous batching: whoever fits joins at the next step, and who does not fit blocks
  those behind.
- One step gives every request in memory one token. A prompt is computed in one step, whatever its length. Steps have
  no duration here, so nothing on this page is a speed.
- Arrivals and lengths are random with a seed; both sides get exactly the same requests.
"""


def show(config: SimulationConfig) -> None:
    with st.expander("The rules of this simulation", icon=":material/rule:"):
        left, right = st.columns(2, gap="large")
        left.markdown(f"**What the colours mean**\n{KINDS}")
        left.markdown(f"**Who gets memory when**\n{SCHEDULER}")
        right.markdown(f"**Contiguous memory**\n{CONTIGUOUS.format(**config.to_dict())}")
        right.markdown(f"**Paged memory, as in vLLM**\n{PAGED.format(**config.to_dict())}")
        right.markdown(
            "The words and the baselines are those of the PagedAttention paper: Kwon et al., SOSP 2023, "
            "[arXiv 2309.06180](https://arxiv.org/abs/2309.06180)."
        )
