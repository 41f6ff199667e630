"""Kinds of models, for any backend that compiles: each module builds one, in plain torch and transformers.

A family has `build(source, task, shape) -> Built`; see `common.py`. Loaded by workers in a stack, never by the harness.
"""
