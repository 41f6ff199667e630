"""Turn a GGUF file into a folder that transformers and vLLM load: run by file path in a stack, never imported.

    <stack python> convert_gguf.py --gguf model.gguf --out FOLDER [--dtype bfloat16]

Needs torch, transformers, gguf and accelerate, which stacks have and the harness has not. Writes `config.json`,
`model.safetensors` and the tokenizer into FOLDER, which must exist; the caller makes the result appear atomically.
The last line on standard output is a JSON object: `{"parameters": int, "dtype": str, "architecture": str}`.

The tensors are what the quantised file decodes to, so they are not the original weights.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path


def convert(gguf: Path, out: Path, dtype_name: str) -> dict[str, object]:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from transformers import (  # type: ignore[import-not-found,unused-ignore]
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
    )

    dtype = getattr(torch, dtype_name)
    print(f"reading {gguf.name}", file=sys.stderr, flush=True)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    decoded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=dtype)
    # A model read from GGUF still says that it is quantised, and saving refuses that; the tensors no longer are.
    # So the same architecture is built from a configuration that does not say so, and given the tensors.
    config = copy.deepcopy(decoded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = dtype
    plain = type(decoded)(config).to(dtype)
    plain.load_state_dict(decoded.state_dict())
    plain.tie_weights()
    ends = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else None
    plain.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id
    )
    print(f"writing {out}", file=sys.stderr, flush=True)
    plain.save_pretrained(str(out), safe_serialization=True)
    tokenizer.save_pretrained(str(out))
    return {
        "parameters": sum(p.numel() for p in plain.parameters()),
        "dtype": dtype_name,
        "architecture": type(plain).__name__,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="GGUF to safetensors")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args(argv)
    print(json.dumps(convert(arguments.gguf, arguments.out, arguments.dtype)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
