"""Commands that start boxes on AWS, run benchmarks on them and bring the receipts home."""
