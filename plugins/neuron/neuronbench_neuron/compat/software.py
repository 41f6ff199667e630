"""Rules of software: which release runs on which cores, which packages belong together, what a release lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from neuronbench_neuron.compat.use import Finding, Use, entry_for, holds
from neuronbench_neuron.stacks import PLACEHOLDERS

SECTIONS: Final = {"serve": "serving", "train": "training"}
CORES: Final = {"v2": "NeuronCore-v2 (Trn1, Inf2)", "v3": "NeuronCore-v3 (Trn2)", "v4": "NeuronCore-v4 (Trn3)"}
_FEATURES: Final = {
    "enable_prefix_caching": "prefix_caching",
    "enable_lora": "lora",
    "speculative_config": "speculation",
    "enable_chunked_prefill": "chunked_prefill",
}


def listed(use: Use) -> Mapping[str, Any] | None:
    """The table's entry for the software of `use`; None for one that it does not list."""
    section = SECTIONS.get(use.purpose)
    return entry_for(section, use.packages) if section else None


def broken(use: Use) -> Iterator[Finding]:
    """Rules that are broken, the most telling first."""
    yield from _placeholders(use)
    if use.purpose == "serve":
        yield from _platform(use)
    entry = listed(use)
    if entry is None:
        return
    yield from _cores(use, entry)
    yield from _sdk(use)
    yield from _pins(use, entry)
    yield from _python(use, entry)
    yield from _features(use, entry)
    yield from _model_type(use, entry)


def _placeholders(use: Use) -> Iterator[Finding]:
    for name, versions in PLACEHOLDERS.items():
        if use.packages.get(name) in versions:
            yield Finding(
                id="placeholder-package",
                rule=f"{name} is the package of AWS's own index",
                observed=f"{name} {use.packages[name]}, an empty stand-in from PyPI",
                limit="a release of the Neuron SDK",
                remedy="Install it from AWS's own index (its guide to set-up names it), or use an image of AWS.",
                source="AWS Neuron, issues 916 and 1224",
            )


def _platform(use: Use) -> Iterator[Finding]:
    has = [name for name in ("vllm-neuron", "optimum-neuron") if use.packages.get(name)]
    vllm = use.packages.get("vllm", "")
    if len(has) == 2 and vllm:
        yield Finding(
            id="two-platform-plugins",
            rule="vLLM activates one platform plugin",
            observed=" and ".join(f"{name} {use.packages[name]}" for name in has) + " in one environment",
            limit="one of them",
            remedy="Serve from an environment that has one of the two; training can have the other.",
            source="vLLM: `Only one platform plugin can be activated`; a public study",
        )
    if vllm and not has and holds(">=0.10", vllm):
        yield Finding(
            id="no-platform-plugin",
            rule="vLLM needs a plugin for Neuron",
            observed=f"vLLM {vllm} with neither vllm-neuron nor optimum-neuron",
            limit="",
            remedy="Use the environment of the Neuron image that has vllm-neuron: without it vLLM fails to infer the "
            "type of the device.",
            source="measured with vLLM 0.16.0",
        )


def _cores(use: Use, entry: Mapping[str, Any]) -> Iterator[Finding]:
    runs_on = entry["core_versions"]
    if use.core_version and use.core_version not in runs_on:
        yield Finding(
            id=f"{entry['id']}-on-{use.core_version}",
            rule=f"{entry['title']} runs on {' and '.join(CORES.get(one, one) for one in runs_on)}",
            observed=f"{use.instance_type or use.backend} with {CORES.get(use.core_version, use.core_version)}",
            limit=f"cores {', '.join(runs_on)}",
            remedy=entry.get("remedy", "Use an environment for this hardware."),
            source=entry["source"],
        )


def _sdk(use: Use) -> Iterator[Finding]:
    """Serving on v2 cores ends with SDK 2.28, whatever the packages are called."""
    told = str(use.settings.get("sdk") or "")
    serves = use.purpose == "serve" and use.packages.get("vllm-neuron")
    if serves and use.core_version == "v2" and told and holds(">=2.29", told):
        yield Finding(
            id="sdk-2.29-on-v2",
            rule="Serving with vllm-neuron on Inf2 and Trn1 ends with SDK 2.28",
            observed=f"SDK {told} on {use.instance_type or use.backend}",
            limit="SDK 2.28",
            remedy="Use the image of SDK 2.28, or {allow} to try.",
            source="AWS Neuron release notes of SDK 2.29",
        )


def _pins(use: Use, entry: Mapping[str, Any]) -> Iterator[Finding]:
    for name, specifier in entry.get("fits", {}).items():
        version = use.packages.get(name, "")
        if version and holds(specifier, version) is False:
            yield Finding(
                id="versions-do-not-fit",
                rule=f"{entry['title']} belongs with {name} {specifier}",
                observed=f"{name} {version}",
                limit=specifier,
                remedy="Keep serving and training in environments of their own, each with the versions of one release.",
                source=entry["source"],
            )


def _python(use: Use, entry: Mapping[str, Any]) -> Iterator[Finding]:
    specifier = entry.get("python", "")
    if specifier and use.python and holds(specifier, use.python) is False:
        yield Finding(
            id="python-version",
            rule=f"{entry['title']} is for Python {specifier}",
            observed=f"Python {use.python}",
            limit=specifier,
            remedy="Use an environment with such a Python.",
            source=entry["source"],
        )


def _features(use: Use, entry: Mapping[str, Any]) -> Iterator[Finding]:
    for setting, feature in _FEATURES.items():
        if use.settings.get(setting) and feature in entry.get("lacks", ()):
            yield Finding(
                id=f"no-{feature.replace('_', '-')}",
                rule=f"{entry['title']} has no {feature.replace('_', ' ')}",
                observed=f"{setting} = {use.settings[setting]!r}"[:120],
                limit="",
                remedy=f"Leave {setting} out for this stack.",
                source=entry["source"],
            )


def _model_type(use: Use, entry: Mapping[str, Any]) -> Iterator[Finding]:
    known = entry.get("model_types")
    kind = str(use.model.get("model_type") or "")
    if known and kind and kind not in known:
        yield Finding(
            id="model-type-not-for-training",
            rule=f"{entry['title']} trains models of the types {', '.join(known)}",
            observed=f"model_type {kind!r}",
            limit=", ".join(known),
            remedy="Train another model, or with another library.",
            source=entry["source"],
        )
