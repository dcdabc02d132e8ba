"""Write a GGUF model in Hugging Face format: `gguf_to_hf.py FILE.gguf FOLDER`, with weights in bfloat16.

Runs in an environment that has torch, transformers, gguf and accelerate. The weights are those of the
quantized file, dequantized: the same model, not the one that was quantized.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def main(gguf: Path, out: Path) -> None:
    """Convert. `out` is complete once this returns; nothing is fetched."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    where: dict[str, Any] = {
        "pretrained_model_name_or_path": str(gguf.parent),
        "gguf_file": gguf.name,
    }
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    # a model that is still quantized cannot be saved
    plain = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.bfloat16, quantization_config=plain
    )
    # what it was quantized with would be taken for how it is stored
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
