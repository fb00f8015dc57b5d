"""A GGUF file → an ordinary bfloat16 checkpoint. Only for child processes: it imports torch and transformers.

The result appears in one step: it is written beside the target and renamed, so that a kill half-way leaves
nothing that looks finished.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path


def convert(gguf: Path, target: Path, version: str) -> None:
    """Load, de-quantise, save, rename."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    folder, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        trust_remote_code=False,
    )
    model.config.quantization_config = None
    del model.config.quantization_config
    model.save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    quantization = gguf.stem.rpartition(".")[2]
    (fresh / "lab.json").write_text(
        json.dumps({"source": gguf.name, "version": version, "quantization": quantization, "dtype": "bfloat16"})
    )
    fresh.chmod(0o755)
    os.sync()
    fresh.rename(target)
