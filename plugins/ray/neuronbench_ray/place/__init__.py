"""Points on a fleet: each box of a Ray cluster is leased whole, and runs its share of the points under pytest.

The head decides and keeps; nodes measure. What a node has measured is fetched by the head as it is closed, hashed, and
put into one session of one store. `groups` and `ledger` know nothing of Ray.
"""
