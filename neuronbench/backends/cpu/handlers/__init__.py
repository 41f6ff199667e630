"""Handlers of the CPU backend: loaded by workers in a stack, never imported by the harness.

`aoti.py` compiles and runs; each family of models is a module of its own beside it (`encoder.py`), which says how a
model is built, what goes in and what comes out. A family is found by its module's name.
"""
