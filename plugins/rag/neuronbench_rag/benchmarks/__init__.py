"""Benchmarks of the lane `rag`; collected wherever a project's `benchmarks` are."""
