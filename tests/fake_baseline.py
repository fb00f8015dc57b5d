"""A fake Hugging Face child process: the real one's lines, with known times and any fault.

``python -m tests.fake_baseline [--fail-at load|generate] [--how error|memory|exit|kill|hang]``. A token takes 10 ms by
its own account, for every row of a batch together; nothing really waits.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import Any

TOKEN_S = 0.01
LOADED = {
    "import_s": 0.5,
    "weights_s": 0.25,
    "weights_bytes": 1000,
    "dtype": "bfloat16",
    "threads": 1,
    "attention": "sdpa",
    "max_length": 64,
}


def emit(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def fail(how: str) -> None:
    if how == "exit":
        print("the last words", file=sys.stderr, flush=True)
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        emit("hangs")
        time.sleep(600)
    emit("error", kind="memory" if how == "memory" else "other", text="RuntimeError: it broke\nmore")


def generate(prompts: list[list[int]], new_tokens: int, batch: bool) -> None:
    calls = [prompts] if batch else [[prompt] for prompt in prompts]
    now_s, answers = 0.0, []
    for index, rows in enumerate(calls):
        sent_s = now_s
        times = [sent_s + TOKEN_S * (step + 1) for step in range(new_tokens)]
        for step, at_s in enumerate(times):
            emit("token", index=index, t=at_s, text=f"w{step} ")
        now_s = times[-1]
        pieces = [f"w{step} " for step in range(new_tokens)]
        answers += [{"sent_s": sent_s, "times_s": times, "pieces": pieces, "output_tokens": new_tokens} for _ in rows]
    steps = new_tokens * len(calls)
    emit("generated", wall_s=now_s, steps=steps, answers=answers, memory_bytes=1500, peak_memory_bytes=2000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail-at")
    parser.add_argument("--how")
    arguments = parser.parse_args()
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        if do == arguments.fail_at:
            fail(arguments.how)
        elif do == "load":
            emit("loaded", **LOADED)
        elif do == "tokenize":
            emit("ids", ids=list(range(sum(len(m["content"].split()) for m in command["messages"]))))
        else:
            generate(**command)


if __name__ == "__main__":
    main()
