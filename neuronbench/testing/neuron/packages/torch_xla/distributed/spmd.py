"""Imported by transformers and accelerate where torch_xla is; not used here."""
