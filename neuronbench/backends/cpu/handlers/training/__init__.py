"""Trainers on the CPU: trl, peft and transformers, one process per rank.

`handler.py` has the verbs of the worker, `run.py` a rank's training, `trl_trainers.py` builds the trainer of a method.
What is not of the CPU alone is in `neuronbench/worker/handlers/training`.
"""
