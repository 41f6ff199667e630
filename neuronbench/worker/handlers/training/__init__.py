"""What handlers that train share, whatever trains: data, models, the account of a run, what is left of one.

`verbs.py` has the verbs of a trainer's worker, `ranks.py` is the program of each rank of a distributed run; both train
by a `Run` (`run.py`) that the backend makes its own. `rig.py` holds what jobs have in common, `data.py` makes token ids
of text once, `model.py` builds model and adapter, `state.py` looks after checkpoints and what is left. Needs numpy,
torch and transformers of the stack.
"""
