"""What cannot work, known in milliseconds: hardware, software, model and settings judged before anything boots.

Generations of hardware and of software are separate axes, and `table.toml` says what runs on what. A combination that
it does not list is not refused: it is noted as unlisted (`facts`), and tried. A rule can be set aside by its id in
NEURONBENCH_NEURON_ALLOW; that is noted too.

```python
verdict = compat.refusal(compat.Use(purpose="serve", backend="inf2", instance_type="inf2.xlarge", core_version="v2",
    logical_cores=2, packages=stack.packages, python="3.10.12", model=config, settings={"tensor_parallel_size": 2}))
```
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from neuronbench import Unsupported
from neuronbench.model import Json
from neuronbench_neuron.compat import shapes, software
from neuronbench_neuron.compat.use import ALLOW_VARIABLE, Finding, Use, entry_for

if TYPE_CHECKING:
    from neuronbench import Stack
    from neuronbench_neuron.hardware import Hardware

PURPOSES: Final[Mapping[str, Literal["serve", "compile", "train"]]] = {
    "serving": "serve", "compile": "compile", "train": "train",
}  # fmt: skip
"""Kind of stack → purpose."""

__all__ = ["ALLOW_VARIABLE", "PURPOSES", "Finding", "Use", "facts", "findings", "host_of", "refusal"]


def findings(use: Use) -> list[Finding]:
    """All rules that `use` breaks, those of software first."""
    return [*software.broken(use), *shapes.broken(use)]


def refusal(use: Use, *, environ: Mapping[str, str] | None = None) -> Unsupported | None:
    """Why `use` cannot work; None when nothing known speaks against it.

    Where several rules are broken the first is said in full and the others by name. What is merely known to go wrong
    (a defect of a release) is `known_bad`: it is tried, and expected to fail.
    """
    allowed = _allowed(environ)
    broken = [finding for finding in findings(use) if finding.id not in allowed]
    if not broken:
        return None
    first = next((finding for finding in broken if not finding.known_bad), broken[0])
    others = sorted({finding.id for finding in broken} - {first.id})
    more = f"; also: {', '.join(others)}" if others else ""
    return Unsupported(reason=first.text + more, known_bad=first.known_bad)


def facts(use: Use, *, environ: Mapping[str, str] | None = None) -> dict[str, Json]:
    """For the record of a boot: which generation of software it is, and what was set aside.

    `compat.generation` is the table's id, None for an unlisted combination, which `compat.warning` says then.
    `compat.sdk` is the release that the packages belong to, where the table can tell.
    """
    entry = software.listed(use)
    sdk = entry_for("sdk", use.packages)
    out: dict[str, Json] = {
        "compat.generation": entry["id"] if entry else None,
        "compat.sdk": sdk["version"] if sdk else entry.get("sdk") if entry else None,
    }
    if entry is None and use.purpose in software.SECTIONS:
        named = ("vllm", "vllm-neuron", "optimum-neuron", "torch-neuronx", "neuronx-cc")
        versions = ", ".join(f"{name} {use.packages[name]}" for name in named if use.packages.get(name))
        out["compat.warning"] = (
            f"unlisted combination: {versions or 'packages unknown'} on {use.instance_type or use.backend}; "
            "whether it works is not known here"
        )
    aside = sorted(_allowed(environ) & {finding.id for finding in findings(use)})
    if aside:
        out["compat.set_aside"] = f"{', '.join(aside)} ({ALLOW_VARIABLE})"
    return out


def host_of(host: Hardware, stack: Stack | None = None) -> dict[str, object]:
    """The arguments of `Use` that host and stack know: `Use(purpose=..., backend=..., **host_of(host, stack), ...)`."""
    packages = dict(stack.packages) if stack is not None else {}
    return {
        "instance_type": host.instance_type,
        "core_version": host.core_version,
        "logical_cores": host.cores,
        "python": str(packages.pop("python", "")),
        "packages": packages,
    }


def _allowed(environ: Mapping[str, str] | None) -> set[str]:
    told = (os.environ if environ is None else environ).get(ALLOW_VARIABLE, "")
    return {part.strip() for part in told.split(",") if part.strip()}
