"""Load from many nodes: one plan, one schedule, a driver on each node, and one table of exact records."""
