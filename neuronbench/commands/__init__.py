"""The sub-commands of `neuronbench`, one module each.

A module's top level imports what it takes to show help and no more; what a command needs is imported when it runs.
"""
