"""Every engine's way of streaming gives the same answer, tokens and end; read from streams made from documentation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.client import CompletionRequest, run_concurrently
from engine.dialects import by_key
from tests.fake_openai import FakeOpenAI, Script

FOLDER = Path(__file__).parents[1] / "fixtures" / "streams"
STREAMS = {path.stem: path.read_bytes() for path in FOLDER.glob("*.sse")}
REQUEST = CompletionRequest(messages=[{"role": "user", "content": "Why?"}], max_tokens=8)


@pytest.mark.parametrize("size", [1 << 20, 7], ids=["whole", "in pieces"])
@pytest.mark.parametrize("engine", sorted(STREAMS))
def test_the_same_answer_from_every_engine(engine: str, size: int) -> None:
    data = STREAMS[engine]
    pieces = [(0.0, data[start : start + size]) for start in range(0, len(data), size)]
    with FakeOpenAI(Script(frames=pieces)) as fake:
        trace = run_concurrently(replace(fake.endpoint(), engine=engine), [REQUEST], timeout_s=20)[0]
    assert trace.ok, trace.error
    assert trace.text == ("Hm. Blue sky" if by_key(engine).reasoning else "Blue sky")
    assert (trace.prompt_tokens, trace.output_tokens) == (9, 4)
    assert trace.ttft_ms is not None and trace.finish_reason in ("stop", "eos_token")


@pytest.mark.parametrize("engine", sorted(STREAMS))
def test_the_table_knows_where_reasoning_is(engine: str) -> None:
    lines = [line.partition(b":")[2] for line in STREAMS[engine].splitlines() if line.startswith(b"data:")]
    deltas = [
        choice["delta"] for line in lines if b"{" in line for choice in json.loads(line)["choices"] if choice["delta"]
    ]
    found = {name for delta in deltas for name in ("reasoning", "reasoning_content") if delta.get(name)}
    assert found <= set(by_key(engine).reasoning)
