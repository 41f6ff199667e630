"""Grids: TOML files that say which points a benchmark has.

```toml
# benchmarks/grids/serving/short.toml
title = "Short prompts"

[settings]                      # shared by every point
model = "@smoke"                # a role, looked up per backend in models.toml beside it
max_model_len = 512

[axes]                          # every combination is a point, in this order
concurrency = [1, 2, 4, 8, 16]
input_tokens = [64, 256]
output_tokens = [32, 128]

[[exclude]]                     # drop what matches all of these
input_tokens = 256
concurrency = 16

[[include]]                     # and add single points
concurrency = 32
input_tokens = 64
output_tokens = 32

[sizes.quick.axes]              # chosen by --nb-grid quick; `full` is the grid itself
concurrency = [1, 4, 8]

[backends.inf2.settings]        # what differs on a backend; may hold sizes too
max_model_len = 2048
```

Later layers win: the grid, its size, its backend, the backend's size, and last `--nb-set key=v1,v2`. A layer's `axes`
replace the values of the axes they name; its `include` and `exclude` are added to those below. Several values for a key
that a grid does not have leave it alone.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from neuronbench.model import FrozenMap, Json, closest, slug

ABBREVIATIONS = {"concurrency": "c", "input_tokens": "in", "output_tokens": "out", "batch_size": "b", "rate": "rps"}
"""Axis names as they stand in ids; others are written out."""

MODELS_FILE = "models.toml"
DEFAULT_SIZE = "quick"
FULL_SIZE = "full"
_LAYER_KEYS = {"settings", "axes", "include", "exclude"}


class GridError(ValueError):
    """A grid cannot be read or expanded: which file, what was expected, what was found."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One level of a grid."""

    settings: Mapping[str, Json] = field(default_factory=dict)
    axes: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    include: Sequence[Mapping[str, Json]] = ()
    exclude: Sequence[Mapping[str, Json]] = ()


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One set of parameters, before it is joined with a benchmark."""

    params: FrozenMap
    axes: tuple[str, ...]

    @property
    def label(self) -> str:
        """`c4-in64-out32`: the values of the axes, short and safe as a file name."""
        return "-".join(axis_label(axis, self.params[axis]) for axis in self.axes)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A parsed grid file."""

    name: str
    path: Path
    title: str
    base: Layer
    sizes: Mapping[str, Layer]
    backends: Mapping[str, Layer]
    backend_sizes: Mapping[tuple[str, str], Layer]
    roles: Mapping[str, Mapping[str, str]]

    @property
    def names(self) -> frozenset[str]:
        """Names of all parameters that a point of it can have, in any size and on any backend."""
        layers = [self.base, *self.sizes.values(), *self.backends.values(), *self.backend_sizes.values()]
        return frozenset(
            name for layer in layers for table in (layer.settings, layer.axes, *layer.include) for name in table
        )

    def expand(
        self, backend: str, size: str = FULL_SIZE, overrides: Mapping[str, Sequence[str]] | None = None
    ) -> list[GridPoint]:
        """The points of this grid on `backend` in `size`, in a stable order, without repetition."""
        known = list(dict.fromkeys([FULL_SIZE, *self.sizes]))  # a grid may write its full size down
        if size not in known and size != DEFAULT_SIZE:
            raise GridError(f"{self.path}: grid has no size {size!r}{closest(size, known)}; it has: {', '.join(known)}")
        layers = [self.base]
        layers += [layer for layer in (self.sizes.get(size), self.backends.get(backend)) if layer]
        layers += [layer for layer in (self.backend_sizes.get((backend, size)),) if layer]

        settings: dict[str, Json] = {}
        axes: dict[str, Sequence[Json]] = {}
        include: list[Mapping[str, Json]] = []
        exclude: list[Mapping[str, Json]] = []
        for layer in layers:
            settings.update(layer.settings)
            axes.update(layer.axes)
            include += layer.include
            exclude += layer.exclude
        for key, texts in (overrides or {}).items():
            values = [parse_value(text) for text in texts]
            _same_kind(self.path, key, values, axes.get(key, [settings[key]] if key in settings else []))
            if len(values) > 1 and key not in axes and key not in settings and not any(key in row for row in include):
                continue  # an axis of other benchmarks: it would only multiply the points of this one
            if key in axes or len(values) > 1:
                crossed: list[Mapping[str, Json]] = [
                    {**row, key: value} for row in include if key not in row for value in values
                ]
                include = [row for row in include if row.get(key) in values] + crossed
                axes[key] = values
                settings.pop(key, None)
            else:
                settings[key] = values[0]
        return list(self._points(settings, axes, include, exclude, backend))

    def _points(
        self,
        settings: Mapping[str, Json],
        axes: Mapping[str, Sequence[Json]],
        include: Sequence[Mapping[str, Json]],
        exclude: Sequence[Mapping[str, Json]],
        backend: str,
    ) -> Iterator[GridPoint]:
        seen: set[FrozenMap] = set()
        rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())] if axes else [{}]
        rows = [row for row in rows if not any(matches(row, settings, rule) for rule in exclude)]
        for row in [*rows, *include]:
            try:
                params = FrozenMap(self._with_roles({**settings, **row}, backend))
            except TypeError as error:
                raise GridError(f"{self.path}: {error}") from error
            except ValueError as error:
                raise error if isinstance(error, GridError) else GridError(f"{self.path}: {error}") from error
            names = tuple(name for name in [*axes, *(n for n in row if n not in axes)] if name in params)
            if params not in seen:
                seen.add(params)
                yield GridPoint(params=params, axes=names)

    def _with_roles(self, params: dict[str, Json], backend: str) -> dict[str, Json]:
        for key, value in params.items():
            if isinstance(value, str) and value.startswith("@"):
                role = value[1:]
                if role not in self.roles:
                    raise GridError(
                        f"{self.path}: {key} = {value!r} names no role in {MODELS_FILE}"
                        f"{closest(role, list(self.roles))}; roles: {', '.join(self.roles) or 'none'}"
                    )
                by_backend = self.roles[role]
                model = by_backend.get(backend) or by_backend.get("default")
                if model is None:
                    raise GridError(f"{MODELS_FILE}: role {role!r} has no model for backend {backend!r} and no default")
                params[key] = model
        return params


def axis_label(axis: str, value: Json) -> str:
    """`concurrency`, 4 → `c4`; `dtype`, `bfloat16` → `dtype=bfloat16`."""
    short = ABBREVIATIONS.get(axis)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return slug(f"{short}{text}" if short else f"{axis}={text}", limit=60)


def _same_kind(path: Path, key: str, values: Sequence[Json], there: Sequence[Json]) -> None:
    """Numbers stay numbers: a value of another kind than the grid's fails now and not after a boot."""
    numbers = [value for value in there if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if there and len(numbers) == len(there):
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise GridError(
                    f"--nb-set {key}={value}: expected a number, as the grid has it "
                    f"({', '.join(map(str, numbers[:4]))}; {path})"
                )


def matches(row: Mapping[str, Json], settings: Mapping[str, Json], rule: Mapping[str, Json]) -> bool:
    """Whether every key of `rule` has that value in the row or the shared settings."""
    merged = {**settings, **row}
    return all(
        key in merged and (merged[key] in value if isinstance(value, list) else merged[key] == value)
        for key, value in rule.items()
    )


def parse_value(text: str) -> Json:
    """A value of the command line, read as TOML would read it, else as a string: `4`, `0.5`, `true`, `bfloat16`."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def find(name: str, folders: Sequence[Path]) -> Path:
    """The file of grid `name` (`serving/short`, or a path to a TOML file)."""
    direct = Path(name)
    if direct.suffix == ".toml" and direct.is_file():
        return direct.resolve()
    for folder in folders:
        path = folder / f"{name}.toml"
        if path.is_file():
            return path
    known = [
        path.relative_to(folder).with_suffix("").as_posix()
        for folder in folders
        for path in sorted(folder.rglob("*.toml"))
        if path.name != MODELS_FILE
    ]
    where = ", ".join(map(str, folders)) or "no folder"
    raise GridError(f"no grid {name!r}{closest(name, known)} in {where}; there are: {', '.join(known) or 'none'}")


@lru_cache(maxsize=64)
def load(path: Path) -> Grid:
    """Read and check a grid file. Raises `GridError`."""
    document = _read(path)
    unknown = sorted(document.keys() - _LAYER_KEYS - {"title", "sizes", "backends"})
    if unknown:
        known = [*sorted(_LAYER_KEYS), "title", "sizes", "backends"]
        raise GridError(f"{path}: unknown key {unknown[0]!r}{closest(unknown[0], known)}; known: {', '.join(known)}")
    backends = _tables(path, "backends", document.get("backends", {}))
    _known_axes(path, document)
    roles_file = next((f / MODELS_FILE for f in path.parents if (f / MODELS_FILE).is_file()), None)
    return Grid(
        name=path.stem,
        path=path,
        title=str(document.get("title", path.stem)),
        base=_layer(path, "", {key: document[key] for key in _LAYER_KEYS & document.keys()}),
        sizes={
            name: _layer(path, f"sizes.{name}", table)
            for name, table in _tables(path, "sizes", document.get("sizes", {})).items()
        },
        backends={
            name: _layer(path, f"backends.{name}", {k: v for k, v in table.items() if k != "sizes"})
            for name, table in backends.items()
        },
        backend_sizes={
            (name, size): _layer(path, f"backends.{name}.sizes.{size}", layer)
            for name, table in backends.items()
            for size, layer in _tables(path, f"backends.{name}.sizes", table.get("sizes", {})).items()
        },
        roles=read_roles(roles_file) if roles_file else {},
    )


def _known_axes(path: Path, document: Mapping[str, Any]) -> None:
    """A size or a backend varies what the grid has; an axis that only it has is a misspelt one."""
    known = [*_mapping(document.get("axes")), *_mapping(document.get("settings"))]
    layers = {f"sizes.{name}": table for name, table in _mapping(document.get("sizes")).items()}
    for name, table in _mapping(document.get("backends")).items():
        layers[f"backends.{name}"] = table
        sizes = _mapping(_mapping(table).get("sizes"))
        layers |= {f"backends.{name}.sizes.{size}": inner for size, inner in sizes.items()}
    for where, table in layers.items():
        for axis in _mapping(_mapping(table).get("axes")):
            if document.get("axes") and axis not in known:
                raise GridError(
                    f"{path}: {where}.axes.{axis}: the grid itself has no axis or setting {axis!r}"
                    f"{closest(axis, known)}; it has: {', '.join(known)}"
                )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


@lru_cache(maxsize=16)
def read_roles(path: Path) -> Mapping[str, Mapping[str, str]]:
    return {role: dict(table) for role, table in _tables(path, "roles", _read(path)).items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GridError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise GridError(f"{path}: cannot be read: {error.strerror}") from error


def _tables(path: Path, where: str, value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise GridError(f"{path}: {where} is a table of tables; found {value!r}")
    return value


def _layer(path: Path, where: str, table: Mapping[str, Any]) -> Layer:
    prefix = f"{where}." if where else ""
    unknown = sorted(table.keys() - _LAYER_KEYS)
    if unknown:
        raise GridError(
            f"{path}: unknown key {prefix + unknown[0]!r}{closest(unknown[0], sorted(_LAYER_KEYS))}; "
            f"a layer holds: {', '.join(sorted(_LAYER_KEYS))}"
        )
    for key in ("settings", "axes"):
        if not isinstance(table.get(key, {}), dict):
            raise GridError(f"{path}: {prefix}{key} is a table ([{prefix}{key}]); found {table[key]!r}")
    axes = table.get("axes", {})
    for axis, values in axes.items():
        if not isinstance(values, list) or not values:
            raise GridError(f"{path}: {prefix}axes.{axis}: expected a list of at least one value; found {values!r}")
    for key in ("include", "exclude"):
        rows = table.get(key, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise GridError(f"{path}: {prefix}{key} is an array of tables ([[{prefix}{key}]]); found {rows!r}")
    return Layer(
        settings=table.get("settings", {}),
        axes=axes,
        include=tuple(table.get("include", ())),
        exclude=tuple(table.get("exclude", ())),
    )
