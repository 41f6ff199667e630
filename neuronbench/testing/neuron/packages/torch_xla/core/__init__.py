"""See `torch_xla`."""
