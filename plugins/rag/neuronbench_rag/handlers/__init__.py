"""Handlers that run in a worker, in the accelerator's stack; never imported by the harness."""
