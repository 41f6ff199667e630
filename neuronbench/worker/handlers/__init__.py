"""Handlers that fit any stack: a tokenizer, and what the host can do at best. Loaded by workers, never imported."""
