"""Benchmarks of the lane `moe`, and its grids."""
