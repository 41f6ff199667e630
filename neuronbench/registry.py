"""Things that plugins registered, by name: checked as they come, each with its owner."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

from neuronbench.model import closest

RESERVED_MARKERS: Final = frozenset(
    {
        "skip", "skipif", "xfail", "parametrize", "usefixtures", "filterwarnings", "tryfirst", "trylast", "timeout",
        "benchmark", "neuronbench",
    }
)  # fmt: skip
"""Marks of pytest, of its plugins that neuronbench installs, and of neuronbench itself."""


class PluginError(Exception):
    """A plugin cannot be used: which one, and why."""


T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one type by name. Refuses a second one of the same name, and the error names both owners.

    `shared` are registries whose names must differ from this one's: backends and lanes are pytest markers, and there
    is one space of markers. Names in a registry with `markers` must therefore be usable after `-m`.
    """

    def __init__(self, noun: str, kind: type[T], *, markers: bool = False, shared: tuple[Registry[Any], ...] = ()):
        self.noun = noun
        self._kind = kind
        self._markers = markers
        self.shared = shared
        self._things: dict[str, T] = {}
        self._owner: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        """Name or alias → owner."""

    def add(self, thing: T, owner: str) -> None:
        """Raises `PluginError` that says what was expected and what was found."""
        if not isinstance(thing, self._kind):
            raise PluginError(f"registered as a {self.noun}: expected a {self._kind.__name__}, found {thing!r}")
        name = getattr(thing, "name", "")
        if not isinstance(name, str) or not name:
            raise PluginError(f"registered a {self.noun} without a name: {thing!r}")
        target = getattr(thing, "target", None)
        if target is not None and (not isinstance(target, str) or not all(target.partition(":"))):
            raise PluginError(f"{self.noun} {name!r}: expected a target like 'package.module:Class', found {target!r}")
        names = dict.fromkeys((name, *getattr(thing, "aliases", ())))
        for each in names:
            self._check_free(each, owner)
            if self._markers:
                self._check_marker(each)
        self._things[name] = thing
        self._owner[name] = owner
        self._taken.update(dict.fromkeys(names, owner))

    def _check_free(self, name: str, owner: str) -> None:
        for registry in (self, *self.shared):
            first = registry._taken.get(name)
            if first is not None:
                what = self.noun if registry is self else f"{registry.noun} and {self.noun}"
                by = f"by both {first!r} and {owner!r}" if first != owner else f"twice by {owner!r}"
                raise PluginError(
                    f"{what} {name!r} is registered {by}; rename it in one of them, "
                    "or disable one with NEURONBENCH_DISABLE_PLUGINS"
                )

    def _check_marker(self, name: str) -> None:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise PluginError(
                f"{self.noun} {name!r} is also a pytest marker: expected letters, digits and underscores (-m {name!r})"
            )
        if name in RESERVED_MARKERS:
            raise PluginError(f"{self.noun} {name!r} is also a pytest marker, and that one has a meaning already")

    def remove_owner(self, owner: str) -> None:
        for name in [name for name, who in self._owner.items() if who == owner]:
            del self._things[name], self._owner[name]
        self._taken = {name: who for name, who in self._taken.items() if who != owner}

    def __getitem__(self, name: str) -> T:
        try:
            return self._things[name]
        except KeyError:
            known = ", ".join(self._things) or "none"
            raise LookupError(f"no {self.noun} {name!r}{closest(name, list(self._things))}; known: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[T]:
        return iter(self._things.values())

    def __len__(self) -> int:
        return len(self._things)

    def names(self) -> list[str]:
        return list(self._things)

    def taken_by(self, name: str) -> str:
        """The plugin that has the name, or the alias; empty where it is free."""
        return self._taken.get(name, "")

    def owner(self, name: str) -> str:
        return self._owner[name]
