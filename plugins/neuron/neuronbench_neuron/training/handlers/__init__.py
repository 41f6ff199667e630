"""Handlers that train on Neuron: loaded in a stack with torch-neuronx, by file path (`nb_handlers`).

`xla.py` has what is of the device, `launching.py` the verbs (precompile, then the ranks), `graphs.py` counts what a
compile cache gains, `optimum_*.py` has trainers of optimum-neuron, `nxd_*.py` a loop over neuronx-distributed.
"""
