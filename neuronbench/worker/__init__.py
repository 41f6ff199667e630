"""A process in a stack that holds compiled models or trainers and runs the timed loops; and how to talk to it.

`main.py`, `loops.py` and `tensors.py` are standard library only: they run in the stack (Python 3.10 or later), started
by file path. Everything else runs in the harness. The README beside this file has the protocol and what a handler is.
"""
