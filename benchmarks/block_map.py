"""Frames per second of the block map in a real Chromium, at the largest size that it promises.

    python -m benchmarks.block_map

4,096 slots, 200 requests, 2,000 steps; the map plays at 40 and at 160 steps a second, with and without a selected
request, with pages of 16 tokens and of 1 (every slot a block). The rate is that of ``requestAnimationFrame`` over
``SECONDS``; ``draw_ms`` is the mean time of a jump to a random step, when everything is drawn anew. One JSON document
on stdout.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from playwright.sync_api import Page, sync_playwright

from engine.config import SimulationConfig
from engine.kv.recording import record
from tests import browser
from tests.block_map_page import page

TARGET_FPS = 30
TARGET_BYTES = 2_000_000
SECONDS = 4
SPEEDS = (40, 160)
CONFIG = SimulationConfig(
    requests=200, memory_tokens=4096, arrivals_per_100_steps=10, allocators=("contiguous_max", "paged")
)
PLAY = """async ([map, speed, seconds]) => {
  const [choice, toggle, range] = ['select', '.control.main', 'input'].map((name) => map.querySelector(name));
  range.value = '0'; range.dispatchEvent(new Event('input'));
  choice.value = String(speed); choice.dispatchEvent(new Event('change'));
  toggle.click();
  const gaps = []; let before = null;
  await new Promise((done) => {
    const began = performance.now();
    const next = (now) => {
      if (before !== null) gaps.push(now - before);
      before = now;
      if (now - began < seconds * 1000) requestAnimationFrame(next); else done();
    };
    requestAnimationFrame(next);
  });
  gaps.sort((a, b) => a - b);
  const total_ms = gaps.reduce((sum, gap) => sum + gap, 0);
  return { fps: 1000 * gaps.length / total_ms, gap_p99_ms: gaps[Math.floor(gaps.length * 0.99)] };
}"""
JUMP = """([map, times]) => {
  const range = map.querySelector('input'), began = performance.now();
  for (let i = 0; i < times; i += 1) {
    range.value = String((i * 7919) % (Number(range.max) + 1));
    range.dispatchEvent(new Event('input'));
  }
  return (performance.now() - began) / times;
}"""


def measure(chromium: Any, block_size: int) -> dict[str, Any]:
    payload = record(replace(CONFIG, block_size=block_size))
    opened: Page = chromium.new_page(viewport={"width": 1280, "height": 720})
    opened.set_content(page(payload))
    found = opened.locator(".block-map[data-frame]").element_handle(timeout=10_000)
    played = []
    for selected in (False, True):
        if selected:
            opened.locator(".paged .chip").first.click()
        for speed in SPEEDS:
            played.append(
                {"selected": selected, "steps_per_s": speed, **opened.evaluate(PLAY, [found, speed, SECONDS])}
            )
    result = {
        "block_size": block_size,
        "steps": payload["steps"],
        "requests": len(payload["requests"]["arrival"]),
        "payload_bytes": len(json.dumps(payload, separators=(",", ":"))),
        "played": played,
        "draw_ms": opened.evaluate(JUMP, [found, 300]),
    }
    opened.close()
    return result


def main() -> int:
    found = browser.find()
    if found.path is None:
        print(found.reason, file=sys.stderr)
        return 1
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found.path, args=list(browser.FLAGS))
        results = [measure(chromium, block_size) for block_size in (16, 1)]
        chromium.close()
    slowest = min(play["fps"] for result in results for play in result["played"])
    largest = max(result["payload_bytes"] for result in results)
    ok = slowest >= TARGET_FPS and largest < TARGET_BYTES
    print(
        json.dumps({"slowest_fps": slowest, "largest_payload_bytes": largest, "ok": ok, "results": results}, indent=2)
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
