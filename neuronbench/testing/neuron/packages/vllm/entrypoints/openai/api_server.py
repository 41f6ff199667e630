"""`python -m vllm.entrypoints.openai.api_server`: a made-up server on made-up cores."""

from __future__ import annotations

import sys

from ...fake.boot import main

if __name__ == "__main__":
    main(sys.argv[1:])
