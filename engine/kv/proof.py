"""The arithmetic held against a server that runs: from its blocks to the tokens and concurrency it reports."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from engine.environment import Hardware
from engine.errors import LabError
from engine.kv.capacity import Capacity, KvPlan, KvSetup
from engine.kv.cards import default_batched_tokens, this_machine
from engine.kv.shape import ModelShape
from engine.server.command import DTYPE_BYTES
from engine.server.state import KvCapacity, ServerSnapshot


@dataclass(frozen=True)
class Proof:
    """What the server reports, and what follows from its blocks here."""

    model: str
    plan: KvPlan
    reported: KvCapacity
    reckoned: Capacity

    @property
    def agrees(self) -> bool:
        """Tokens to the last one; concurrency as exactly as logs give it, two places."""
        said = self.reported.max_concurrency
        close = said is None or abs(said - self.reckoned.max_concurrency) <= 0.005
        return self.reported.tokens == self.reckoned.tokens and close


def against_server(snapshot: ServerSnapshot, hardware: Hardware) -> Proof | None:
    """None while nothing runs, for a server of which too little is known, and for a model that is not understood."""
    reported, config, source, endpoint = snapshot.capacity, snapshot.config, snapshot.source, snapshot.endpoint
    if not snapshot.ready or config is None or source is None or endpoint is None or endpoint.max_model_len is None:
        return None
    if reported.num_blocks is None or reported.block_size is None or reported.tokens is None:
        return None
    with contextlib.suppress(LabError):
        card = this_machine(hardware)
        shape = ModelShape.from_config_file(source.path / "config.json", DTYPE_BYTES.get(config.dtype, 2))
        setup = KvSetup(
            max_model_len=endpoint.max_model_len,
            block_size=reported.block_size,
            kv_dtype=config.kv_cache_dtype,
            tensor_parallel_size=config.tensor_parallel_size,
            max_num_batched_tokens=config.max_num_batched_tokens
            or default_batched_tokens(
                card,
                config.max_num_seqs,
                endpoint.max_model_len,
                devices=config.tensor_parallel_size * config.pipeline_parallel_size,
                chunked=config.enable_chunked_prefill is not False,
            ),
            concurrent_batches=card.concurrent_batches if card else KvSetup.concurrent_batches,
        )
        plan = KvPlan(shape, setup)
        return Proof(endpoint.model, plan, reported, plan.capacity(reported.num_blocks * plan.block_bytes))
    return None
