"""Benchmarks of the lane `spec_decode`; collected wherever a project's `benchmarks` are."""
