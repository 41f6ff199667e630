"""Receipts of what failed: class and causal line by our rules, from the words of the receipt and the log beside it.

The study takes the last line of a log that looks like an error, which often is a wrapper's. Where it is, the log of the
same name says more, although nothing but the name says that it is of the same run.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any, Final

from neuronbench import failures
from neuronbench.failures import Rule
from neuronbench.importers import safe
from neuronbench.importers.base import Imported, text
from neuronbench.importers.safe import ImportFailure
from neuronbench.importers.study.files import Place, log_beside
from neuronbench.importers.study.made import as_figures, null, result, samples_of
from neuronbench.model import Failure, Gate
from neuronbench.redaction import redact

_WORDS: Final = ("reason", "traceback", "detail", "probe", "note", "explanation", "conclusion", "error")
_NOT_RUN: Final = ("deferred", "not_attempted")
_KNOWN_CLASSES: Final = {"invalid_sequence_length": "shape_rule", "host_ram_oom_during_compile": "host_oom",
                         "unsupported_architecture": "unsupported_architecture",
                         "neuron_runtime_cores_busy": "device_busy"}  # fmt: skip
"""Classes that the study gave by hand, in our words: for where no rule knows the line."""


@functools.cache
def rules() -> tuple[Rule, ...]:
    """What the messages of the study's compiler, runtime and libraries mean."""
    table = tomllib.loads(files("neuronbench.importers.study").joinpath("failures.toml").read_text(encoding="utf-8"))
    return tuple(Rule.from_table(one) for one in table["rule"])


def failure_of(place: Place, words: str, *, phase: str, said_class: str = "") -> Failure:
    """What `words` of a receipt say, and the log beside it where they are not a cause."""
    found = failures.classify(words, phase=phase, extra_rules=rules(), message=text(words, 300))
    if found.kind == failures.UNCLASSIFIED or not found.causal_line:
        beside = log_beside(place.path)
        if beside is not None:
            told = failures.classify(
                beside[1], phase=phase, extra_rules=rules(), message=text(words, 300), log_name=beside[0].name
            )
            found = told if told.causal_line and told.kind != failures.UNCLASSIFIED else found
    if found.kind == failures.UNCLASSIFIED and said_class in _KNOWN_CLASSES:
        return Failure(kind=_KNOWN_CLASSES[said_class], phase=phase, message=text(words, 300),
                       causal_line=found.causal_line, cause="as the study classes it by hand")  # fmt: skip
    if found.kind == failures.UNCLASSIFIED and not found.causal_line:
        return replace(found, causal_line=redact(text(words.strip().splitlines()[-1], 300)) if words.strip() else "")
    return found


def failed(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """A lane, a boot or a generation that failed or was put off: a record without numbers, with the reason."""
    status = text(data["status"])
    told = "\n".join(str(data[name]) for name in _WORDS if data.get(name))
    booting = "boot" in status or "server_failed" in status or data.get("stage") in ("import", "verify")
    words = told or status
    put_off = text(words, 300) if status.startswith(_NOT_RUN) else ""
    phase, given = "boot" if booting else "window", text(data.get("failure_class") or "")
    error = None if put_off else failure_of(place, words, phase=phase, said_class=given)
    samples = samples_of(place)
    params = as_figures(data, "model_id", "config", "tag", "seq_len", "micro_batch", "lane")
    return [
        result(place, data, lane=place.lane, record="boot" if booting else "point", params=params, error=error,
               not_run=put_off, samples=samples, metrics=null("it failed", "boot_time") if booting else [])
    ]  # fmt: skip


def damaged(place: Place, problem: ImportFailure) -> list[Imported]:
    """A receipt of a failure that is no JSON: the study wrote some with a shell, and quotes broke them.

    It says that something failed and holds no number, so that it is kept as what it is; any other damaged receipt fails
    the import. Raises `ImportFailure` where the file is not even text.
    """
    words = safe.read_text(place.path, 1024 * 1024)
    said = text(words, 300) or "the receipt is empty"
    found = failures.classify(words, phase="window", extra_rules=rules(), message=f"damaged receipt: {said}")
    wrong = str(problem).removeprefix(f"{place.path}: ")
    gate = Gate(id="receipt_readable", passed=False, severity="provisional", message=text(wrong, 500))
    return [result(place, {}, lane=place.lane, params={}, error=found, gates=[gate])]
