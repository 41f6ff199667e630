"""What the plugin keeps on pytest's own objects, in typed stashes."""

from __future__ import annotations

import pytest

from neuronbench.config import Settings
from neuronbench.model import Point, ResourceSpec
from neuronbench.plugins import Plugins
from neuronbench.protocols import Resource
from neuronbench.records import OpenRecord
from neuronbench.session import Session

RESOURCE_FIXTURES = ("endpoint", "compiled_model", "trainer")
"""Fixtures that lease a resource; the name of the fixture is the kind of the resource."""
OWN_FIXTURES = (*RESOURCE_FIXTURES, "point", "measure", "telemetry", "nb")

# on the config
PLUGINS: pytest.StashKey[Plugins] = pytest.StashKey()
SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
SESSION: pytest.StashKey[Session] = pytest.StashKey()
ERRORS: pytest.StashKey[list[str]] = pytest.StashKey()
"""What is wrong with benchmarks or conftest hooks: a usage error once collection is done, for raising on the spot would
make an internal or a collection error of it."""
WARNINGS: pytest.StashKey[list[str]] = pytest.StashKey()
"""Lines about keys of `--nb-set` that change nothing, or not everything."""

# on an item that is a benchmark
POINT: pytest.StashKey[Point] = pytest.StashKey()
REPEAT: pytest.StashKey[int] = pytest.StashKey()
NEEDS: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()
SPEC: pytest.StashKey[ResourceSpec] = pytest.StashKey()
OPEN: pytest.StashKey[OpenRecord] = pytest.StashKey()
LEASED: pytest.StashKey[list[Resource]] = pytest.StashKey()
"""What its fixtures leased."""


def session_or_none(config: pytest.Config) -> Session | None:
    """The benchmark session if a benchmark was collected."""
    return config.stash.get(SESSION, None)


def session_of(config: pytest.Config) -> Session:
    """The benchmark session, made when the first benchmark is collected."""
    session = config.stash.get(SESSION, None)
    if session is None:
        terminal = config.pluginmanager.get_plugin("neuronbench-terminal")
        progress = getattr(terminal, "progress", None)
        session = config.stash[SESSION] = Session(config.stash[SETTINGS], config.stash[PLUGINS], progress=progress)
        session.plugins.configured(session)
    return session
