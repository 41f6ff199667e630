"""The compiler's arguments from a point's parameters: each one is said, none is left to a default that releases change.

`neuronx-cc` has changed defaults between releases (`--auto-cast` was `matmult` once, and is `none`): what casts, and to
what, is part of the protocol under which a number was made, so it is always on the command line and in the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from neuronbench.model import Json, closest

AUTO_CASTS: Final = ("none", "matmult", "all")
AUTO_CAST_TYPES: Final = ("bf16", "fp16", "tf32", "fp8_e4m3")
MODEL_TYPES: Final = ("generic", "transformer", "unet-inference")
OPTLEVELS: Final = (1, 2, 3)
DEFAULTS: Final[Mapping[str, Json]] = {
    "auto_cast": "none",
    "auto_cast_type": "bf16",
    "optlevel": 2,
    "compiler_model_type": "generic",
}
OWN: Final = (
    "--framework", "--target", "--model-type", "--auto-cast", "--auto-cast-type", "--optlevel", "-O1", "-O2", "-O3",
    "--logical-nc-config", "--lnc", "-lnc", "--output", "--logfile",
)  # fmt: skip
"""Options that have a parameter of their own, or are the handler's affair."""
GROUPING: Final = ("trn2", "trn3")
"""Targets whose cores can be grouped, and where that is said to the compiler."""
_COMPUTES: Final = {"bf16": "bfloat16", "fp16": "float16", "tf32": "float32", "fp8_e4m3": "fp8"}


def auto_cast(given: Mapping[str, Json]) -> tuple[str, str]:
    """What is cast and to what: of `auto_cast` and `auto_cast_type`, or of both in one (`matmult-bf16`)."""
    what, _, to = str(given["auto_cast"]).partition("-")
    return what, to or str(given["auto_cast_type"])


def arithmetic(given: Mapping[str, Json]) -> str:
    """The narrowest type that matrices are multiplied in, by the words of `dtype`: what decides peak and precision."""
    what, to = auto_cast(given)
    return str(given["dtype"]) if what == "none" or given["dtype"] != "float32" else _COMPUTES[to]


def wrong(given: Mapping[str, Json]) -> str:
    """What of the compiler's parameters cannot be, in one line; empty when nothing."""
    what, to = auto_cast(given)
    if what not in AUTO_CASTS:
        return (
            f"auto_cast: expected one of {', '.join(AUTO_CASTS)} (or as in matmult-bf16), found {given['auto_cast']!r}"
        )
    if to not in AUTO_CAST_TYPES:
        return f"auto_cast_type: expected one of {', '.join(AUTO_CAST_TYPES)}, found {to!r}"
    if given["optlevel"] not in OPTLEVELS or isinstance(given["optlevel"], bool):
        return f"optlevel: expected 1, 2 or 3, found {given['optlevel']!r}"
    if given["compiler_model_type"] not in MODEL_TYPES:
        return f"compiler_model_type: expected one of {', '.join(MODEL_TYPES)}, found {given['compiler_model_type']!r}"
    for name in given["compiler_flags"]:
        if not str(name).startswith("-"):
            return f"compiler_flags: expected options of neuronx-cc such as --distribution-strategy, found {name!r}"
        if name in OWN:
            hint = closest(str(name).strip("-").replace("-", "_"), list(DEFAULTS))
            return f"compiler_flags: {name} is a parameter of its own, or follows from the host{hint}"
    return ""


def arguments(given: Mapping[str, Json], *, target: str, lnc: int) -> list[str]:
    """`compiler_args` of `torch_neuronx.trace`, all of them."""
    what, to = auto_cast(given)
    found = [f"--target={target}", f"--model-type={given['compiler_model_type']}", f"--auto-cast={what}"]
    if what != "none":
        found.append(f"--auto-cast-type={to}")
    found.append(f"--optlevel={given['optlevel']}")
    if target in GROUPING:
        found.append(f"--logical-nc-config={lnc}")
    for name, value in sorted(given["compiler_flags"].items()):
        if value is True:
            found.append(str(name))
        elif value not in (False, None):
            found.append(f"{name}={value}")
    return found
