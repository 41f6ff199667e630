"""What is relied on in a backend."""

from __future__ import annotations

from typing import Any, ClassVar

import psutil
import pytest

from neuronbench.failures import Rule
from neuronbench.model import FrozenMap
from neuronbench.plugins import Plugins
from neuronbench.protocols import Backend, Probe
from neuronbench.redaction import is_secret_name
from neuronbench.testing.contracts.base import PluginContract

_IDENTIFIERS = ("instance_id", "account", "ami", "serial", "mac", "ip_address", "hostname", "uuid")


class BackendContract(PluginContract):
    """`backend`: the name it is registered under."""

    backend: ClassVar[str]

    @pytest.fixture
    def made(self, plugins: Plugins) -> Backend:
        """The object, made as a session makes it."""
        return plugins.backend(self.backend)

    def test_it_is_a_backend(self, plugins: Plugins, made: Backend) -> None:
        """A session calls these methods, and no others."""
        assert isinstance(made, Backend)
        assert made.info is plugins.backends[self.backend]

    def test_some_provider_serves_its_family(self, plugins: Plugins) -> None:
        """A backend for which nobody boots anything has nothing but skipped points."""
        family = plugins.backends[self.backend].family
        assert any(family in info.families for info in plugins.providers), (
            f"no provider is registered for the family {family!r} of {self.backend}"
        )

    def test_its_probe_says_what_is_there_or_what_is_missing(self, made: Backend) -> None:
        """The reason is all that a user sees where points are skipped."""
        found = made.probe()
        assert isinstance(found, Probe)
        if found.available:
            assert found.cores >= 1, "an available backend has at least one core"
        else:
            assert len(found.reason.split()) >= 3, f"the reason tells too little: {found.reason!r}"
            assert "\n" not in found.reason

    def test_its_probe_is_repeatable_and_leaves_no_process(self, made: Backend) -> None:
        """It runs on every machine, also on those where another benchmark is running."""
        before = _children()
        assert made.probe() == made.probe()
        assert _children() <= before, "the probe started a process and left it"

    def test_its_facts_are_json_without_identifiers(self, made: Backend) -> None:
        """They stand in every receipt, and receipts are published."""
        facts = FrozenMap(made.facts())
        for name in facts:
            assert not is_secret_name(name), f"{name}: a secret is no fact"
            last = name.rpartition(".")[2].lower()
            assert last not in _IDENTIFIERS, f"{name}: identifies a machine or an account"

    def test_a_stack_it_does_not_have_is_a_lookup_error_that_names_it(self, made: Backend, settings: Any) -> None:
        """Its text is the reason of the skip: what was looked for, and where."""
        with pytest.raises(LookupError, match="no_such_kind"):
            made.stack("no_such_kind", settings)

    def test_its_failure_rules_are_rules(self, made: Backend) -> None:
        """They are tried on every log before the general ones: one that is none would end the classification."""
        rules = list(made.failure_rules())
        assert all(isinstance(rule, Rule) for rule in rules)
        ids = [rule.id for rule in rules]
        assert len(ids) == len(set(ids)), "two rules have the same id"
        for rule in rules:
            if not (rule.wrapper or rule.benign):
                assert rule.cause, f"rule {rule.id}: without a cause it explains nothing"
                assert rule.remedy, f"rule {rule.id}: what should a user do?"


def _children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}
