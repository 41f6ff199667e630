"""Stacks that the user named: a place that is no Python at all is a mistake to tell, no reason to skip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from neuronbench import stacks
from neuronbench.config import CONFIG_FILE
from neuronbench.model import closest
from neuronbench.pytest_plugin.keys import NEEDS, POINT
from neuronbench.session import Session


def check(session: Session, chosen: Sequence[Any]) -> None:
    """Raise `pytest.UsageError` for a named stack that is no interpreter, or is for a kind that is a misspelt one.

    One in the project's file, which other machines share, counts where a point that this machine can run needs it.
    """
    settings = session.settings
    if not settings.stacks:
        return
    needed: set[str] | None = None
    for kind in settings.stacks:
        source = settings.stack_sources.get(kind, "settings")
        if kind not in (*stacks.KINDS, "any") and closest(kind, stacks.KINDS):
            raise pytest.UsageError(
                f"{source}: expected a stack for {', '.join(stacks.KINDS)} or any, found {kind!r}"
                f"{closest(kind, stacks.KINDS)}"
            )
        if source == CONFIG_FILE:
            needed = _needed(session, chosen) if needed is None else needed
            if kind not in needed:
                continue
        if wrong := stacks.wrong_place(kind, settings):
            raise pytest.UsageError(wrong)


def _needed(session: Session, chosen: Sequence[Any]) -> set[str]:
    """Kinds of stack that points of hardware that is here may ask for, as the settings name them."""
    found: set[str] = set()
    for backend, kind in {(item.stash[POINT].backend, kind) for item in chosen for kind in item.stash[NEEDS]}:
        if session.probe(backend).available:
            found |= {stacks.OF_RESOURCE[kind]} if kind in stacks.OF_RESOURCE else set(stacks.KINDS)
    told = session.settings.stacks
    return {kind if kind in told else "any" for kind in found}
