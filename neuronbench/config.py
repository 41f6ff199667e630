"""Settings: `neuronbench.toml`, environment variables and the command line, in rising order of precedence.

```toml
# neuronbench.toml, beside pyproject.toml
data_root = "mlruns"
tracking_uri = "http://mlflow.example:5000"
grid = "full"
repeats = 3

[stacks]                 # an interpreter or a venv per kind; "any" serves every kind
serving = "/opt/aws_neuronx_venv_pytorch_inference_vllm"

[deadlines]              # seconds
boot = 1800

[price]                  # of an hour of this machine; of a Capacity Block what all of it cost, and its hours
kind = "capacity_block"  # on_demand, spot, capacity_block, reserved_effective
block_usd = 53.64
block_hours = 24
region = "sa-east-1"
date = "2026-08-05"
source = "invoice"
```

Every key can be given as an environment variable too: `NEURONBENCH_REPEATS=3`, `NEURONBENCH_DEADLINES_BOOT=1800`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from neuronbench.model import closest


class ConfigError(ValueError):
    """A setting is wrong: what was expected, what was found, what to do."""


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Nothing waits longer than this, in seconds."""

    boot: float = 900.0
    """Process start → verified and ready, compilation included."""
    point: float = 1800.0
    """One repeat: warm-up, window, drain."""
    request: float = 300.0
    """One request, from its first byte to the end of its answer."""
    first_token: float = 180.0
    """From a request's first byte to its first output."""
    stop: float = 20.0
    """Asked to end → killed."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything a run can be told. Frozen; made once by `load`."""

    root: Path
    """The project's folder; relative paths below are relative to it."""
    data_root: Path
    """Holds receipts/, mlflow.db and artifacts/."""
    tracking_uri: str = ""
    """Empty: SQLite under the data root. `off`: receipts only."""
    grid: str = "quick"
    """Size of the grids: `quick`, `full`, or any other a grid file defines."""
    grid_dirs: tuple[Path, ...] = ()
    """Searched for grid files, first match wins."""
    overrides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`--nb-set key=v1,v2`: values by axis or setting, still as text."""
    repeats: int = 1
    resume: str = ""
    """Empty: measure everything. `last` (or `latest`) or a session id: skip points whose receipt is there."""
    stacks: Mapping[str, str] = field(default_factory=dict)
    """Kind → interpreter or venv, as told by the user."""
    stack_sources: Mapping[str, str] = field(default_factory=dict)
    """Kind → where that was said, for messages."""
    traces: int = 30
    """Request traces kept per point in MLflow; 0 for none."""
    port: int = 0
    """Port for served models; 0 takes a free one."""
    endpoint: str = ""
    """URL of a server that is already running, instead of booting one."""
    tokenizer: Path | None = None
    """`tokenizer.json` of that server's model, or the folder it is in, where the server tokenizes nothing itself."""
    deadlines: Deadlines = Deadlines()
    cache_dir: Path = Path()
    """Models that were fetched or converted, calibration."""
    session: str = ""
    """Id of the session to take part in, given by what spreads one run over several hosts; empty: a new one."""
    part: str = ""
    """Which part of that session this process is: boots of several parts need names of their own."""
    price: Mapping[str, str | float] = field(default_factory=dict)
    """What an hour of this machine costs, by the user's word (see `neuronbench.costs`); empty when not told."""

    @property
    def receipts_dir(self) -> Path:
        return self.data_root / "receipts"

    @property
    def database(self) -> Path:
        return self.data_root / "mlflow.db"

    @property
    def artifacts_dir(self) -> Path:
        return self.data_root / "artifacts"

    @property
    def mlflow_uri(self) -> str:
        """Where MLflow records go; empty when switched off."""
        if self.tracking_uri == "off":
            return ""
        return self.tracking_uri or f"sqlite:///{self.database}"


CONFIG_FILE = "neuronbench.toml"
_FILE_KEYS = {
    "data_root": str,
    "tracking_uri": str,
    "grid": str,
    "grid_dirs": list,
    "repeats": int,
    "traces": int,
    "port": int,
    "endpoint": str,
    "tokenizer": str,
    "cache_dir": str,
}
_PRICE_TEXTS = ("kind", "region", "date", "source")
_PRICE_NUMBERS = ("usd_per_hour", "block_usd", "block_hours")
_PRICE_KINDS = ("on_demand", "spot", "capacity_block", "reserved_effective")


def find_root(start: Path) -> Path:
    """The nearest folder upwards that has `neuronbench.toml` or `pyproject.toml`; `start` itself otherwise."""
    start = start.resolve()
    for name in (CONFIG_FILE, "pyproject.toml"):
        for folder in (start, *start.parents):
            if (folder / name).is_file():
                return folder
    return start


def load(
    root: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings. `overrides` are those of the command line (None values are ignored).

    Raises `ConfigError` naming the key, what was expected and what was found.
    """
    environ = os.environ if environ is None else environ
    root = find_root(Path.cwd()) if root is None else Path(root).resolve()
    if not root.is_dir():  # it would be a project without results, and without settings
        found = "a file" if root.exists() else "nothing"
        raise ConfigError(f"root {root}: expected the project's folder, found {found} of that name; name another")
    values: dict[str, Any] = {}
    stacks: dict[str, str] = {}
    sources: dict[str, str] = {}
    deadlines: dict[str, float] = {}
    price: dict[str, Any] = {}

    path = root / CONFIG_FILE
    if path.is_file():
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from error
        for key, value in document.items():
            if key == "stacks":
                for kind, where in _table(path, key, value).items():
                    stacks[kind], sources[kind] = _typed(f"{path}: stacks.{kind}", where, str), CONFIG_FILE
            elif key == "deadlines":
                for name, value_s in _table(path, key, value).items():
                    deadlines[name] = seconds(f"{path}: deadlines.{name}", name, value_s)
            elif key == "price":
                price.update({name: (f"{path}: price.{name}", one) for name, one in _table(path, key, value).items()})
            elif key in _FILE_KEYS:
                values[key] = _typed(f"{path}: {key}", value, _FILE_KEYS[key])
            else:
                known = [*_FILE_KEYS, "stacks", "deadlines", "price"]
                raise ConfigError(f"{path}: unknown key {key!r}{closest(key, known)}; known: {', '.join(known)}")

    for key, wanted in _FILE_KEYS.items():
        variable = f"NEURONBENCH_{key.upper()}"
        if text := environ.get(variable):
            values[key] = text.split(os.pathsep) if wanted is list else _typed(variable, text, wanted)
    for f in fields(Deadlines):
        text = environ.get(f"NEURONBENCH_DEADLINES_{f.name.upper()}")
        if text:
            deadlines[f.name] = seconds(f"NEURONBENCH_DEADLINES_{f.name.upper()}", f.name, text)

    for name in (*_PRICE_TEXTS, *_PRICE_NUMBERS):
        variable = f"NEURONBENCH_PRICE_{name.upper()}"
        if text := environ.get(variable):
            price[name] = (variable, text)

    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    if given.get("resume") == "latest":  # the commands' word; here both mean all sessions
        given["resume"] = "last"
    for kind, where in given.pop("stacks", {}).items():
        stacks[kind], sources[kind] = where, "--nb-stack"
    deadlines.update(given.pop("deadlines", {}))
    values.update(given)

    def folder(key: str, default: Path) -> Path:
        return (root / Path(values[key]).expanduser()).resolve() if values.get(key) else default

    cache_home = Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    settings = Settings(
        root=root,
        data_root=folder("data_root", root / "mlruns"),
        cache_dir=folder("cache_dir", cache_home / "neuronbench"),
        grid_dirs=tuple((root / Path(d).expanduser()).resolve() for d in values.get("grid_dirs", ()))
        or (root / "benchmarks" / "grids",),
        stacks=stacks,
        stack_sources=sources,
        price=_price(price),
        session=environ.get("NEURONBENCH_SESSION", ""),
        part=environ.get("NEURONBENCH_SESSION_PART", ""),
        deadlines=Deadlines(**deadlines),
        tokenizer=folder("tokenizer", root) if values.get("tokenizer") else None,
        **{k: v for k, v in values.items() if k not in ("data_root", "cache_dir", "grid_dirs", "tokenizer")},
    )
    return validate(settings)


def variables() -> frozenset[str]:
    """Names of the environment variables that are settings, and not those of one plugin or another."""
    names = [*_FILE_KEYS, *(f"deadlines_{f.name}" for f in fields(Deadlines))]
    names += [*(f"price_{name}" for name in (*_PRICE_TEXTS, *_PRICE_NUMBERS)), "session", "session_part"]
    return frozenset(f"NEURONBENCH_{name.upper()}" for name in names)


def validate(settings: Settings) -> Settings:
    if settings.data_root.exists() and not settings.data_root.is_dir():
        raise ConfigError(f"data_root: expected a folder, found a file: {settings.data_root}; name another")
    if settings.repeats < 1:
        raise ConfigError(f"repeats: expected a whole number from 1, found {settings.repeats}")
    if not 0 <= settings.port <= 65535:
        raise ConfigError(f"port: expected 0 to 65535, found {settings.port}")
    if settings.tokenizer is not None:
        if not settings.endpoint:
            raise ConfigError("tokenizer: it is for a server that runs already; name that with endpoint, too")
        file = settings.tokenizer / "tokenizer.json" if settings.tokenizer.is_dir() else settings.tokenizer
        if file.name != "tokenizer.json" or not file.is_file():
            raise ConfigError(
                f"tokenizer: expected a tokenizer.json or a folder that has one, found {settings.tokenizer}"
            )
    if settings.traces < 0:
        raise ConfigError(f"traces: expected 0 or more, found {settings.traces}")
    return settings


def _price(told: Mapping[str, tuple[str, Any]]) -> dict[str, str | float]:
    """The price that was told, complete: a figure without place, day and source cannot be quoted."""
    if not told:
        return {}
    price: dict[str, str | float] = {}
    for name, (where, value) in told.items():
        if name in _PRICE_TEXTS:
            price[name] = _typed(where, str(value) if name == "date" else value, str)  # TOML has dates of its own
        elif name in _PRICE_NUMBERS:
            price[name] = _above_zero(where, value)
        else:
            known = (*_PRICE_TEXTS, *_PRICE_NUMBERS)
            raise ConfigError(f"{where}: unknown key{closest(name, known)}; known: {', '.join(known)}")
    price.setdefault("kind", "capacity_block" if "block_usd" in price else "on_demand")
    if price["kind"] not in _PRICE_KINDS:
        raise ConfigError(f"price.kind: expected one of {', '.join(_PRICE_KINDS)}, found {price['kind']!r}")
    block = [name for name in ("block_usd", "block_hours") if name in price]
    if len(block) == 1:
        raise ConfigError(f"price: {block[0]} needs the other of block_usd and block_hours")
    if block:
        price.setdefault("usd_per_hour", float(price["block_usd"]) / float(price["block_hours"]))
    missing = [name for name in ("usd_per_hour", "region", "date", "source") if not price.get(name)]
    if missing:
        raise ConfigError(f"price: a price is told with where, when and by whom; missing: {', '.join(missing)}")
    return price


def _above_zero(where: str, value: Any, what: str = "a number") -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 < number < float("inf"):
        raise ConfigError(f"{where}: expected {what} above 0, found {value!r}")
    return number


def _table(path: Path, key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {key} is a table ([{key}]); found {value!r}")
    return value


def _typed(where: str, value: Any, kind: type) -> Any:
    if kind is int and isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise ConfigError(f"{where}: expected {kind.__name__}, found {value!r}")


def seconds(where: str, name: str, value: Any) -> float:
    """A deadline from text or number; raises `ConfigError` naming `where` it was said."""
    known = [f.name for f in fields(Deadlines)]
    if name not in known:
        raise ConfigError(f"{where}: unknown deadline{closest(name, known)}; known: {', '.join(known)}")
    return _above_zero(where, value, "seconds")
