"""Trainers on the CPU: trl, peft and transformers, one process per rank.

`handler.py` has the verbs of the worker, `ranks.py` is the program of each rank of a distributed run; both train by
`run.py`. `data.py` makes token ids of text once, `model.py` builds model, adapter and trainer of a method, `state.py`
looks after checkpoints and what is left of a run.
"""
