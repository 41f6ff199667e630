"""What this host is and which Neuron devices it has.

Files are read; a tool is run, and the metadata service asked, only where a device is.

Sources are put in order, and where two contradict each other that is said instead of passed over:

* instance type: `neuron-ls`, the firmware, the metadata service, the variable NEURONBENCH_INSTANCE_TYPE; else the
  driver, which knows the family only;
* grouping of cores: NEURON_LOGICAL_NC_CONFIG, NEURON_RT_VIRTUAL_CORE_SIZE, `neuron-ls`, the instance type's default;
* cores that may be used: NEURON_RT_VISIBLE_CORES, NEURON_VISIBLE_DEVICES, NEURON_RT_NUM_CORES, all.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neuronbench.catalog.instances import Instance, instance_of
from neuronbench_neuron import ids, metadata, neuron_ls

_INSTANCE = re.compile(r"^((?:trn|inf)\d)[a-z]*\.[\w-]+$")
_DEVICE_NODE = re.compile(r"^neuron(\d+)$")
INSTANCE_VARIABLE = "NEURONBENCH_INSTANCE_TYPE"
"""Names the instance type where neither the tool nor the firmware does, as in some containers: `inf2.xlarge`."""
ROOT_VARIABLE = "NEURONBENCH_NEURON_ROOT"
"""A folder to look at in place of `/`, of a host that is made up: whatever is measured then is simulated."""
GROUP_VARIABLES = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
VISIBLE_VARIABLES = ("NEURON_RT_VISIBLE_CORES", "NEURON_VISIBLE_DEVICES")
COUNT_VARIABLE = "NEURON_RT_NUM_CORES"

_NOTHING_TOLD = metadata.Metadata()


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Findings, each with what it rests on. Empty text and None where nothing was found."""

    root: Path = Path("/")
    simulated: bool = False
    """Whether anything of it is made up: another root than `/`, or a metadata service that this host runs itself."""
    nodes: tuple[int, ...] = ()
    """Indices of /dev/neuron*."""
    driver_listed: bool = False
    """Whether /proc/devices has the driver: it is loaded."""
    driver_version: str = ""
    runtime_version: str = ""
    """Of the package aws-neuronx-runtime-lib of the system."""
    product: str = ""
    """The host's name for itself; on EC2 the instance type."""
    processor: str = ""
    """Model of the CPU, or at least its architecture: what is left to name a host by that has no product name."""
    instance_type: str = ""
    instance_source: str = ""
    """Who says so."""
    family: str = ""
    """`trn1`, `trn2`, `inf2`, or one this plugin does not know."""
    metadata: metadata.Metadata = _NOTHING_TOLD
    devices: tuple[neuron_ls.Device, ...] = ()
    tool: Path | None = None
    logical_core_config: int | None = None
    """Physical cores per core as programs see them; None where the hardware is not known."""
    visible: tuple[int, ...] = ()
    """Ids of the cores that may be used."""
    visible_source: str = ""
    """The variable that restricts them; empty when nothing does."""
    problem: str = ""
    """Why the devices cannot be used although there are some."""
    contradictions: tuple[str, ...] = ()
    venvs: tuple[Path, ...] = ()
    """Environments of the Neuron images, newest names first."""

    @property
    def cores(self) -> int:
        """Cores that may be used."""
        return len(self.visible)

    @property
    def core_ids(self) -> tuple[int, ...]:
        """Ids of all cores there are, as programs see them."""
        return tuple(sorted(core for device in self.devices for core in device.core_ids))

    @property
    def instance(self) -> Instance | None:
        """The catalogue's entry for it."""
        return instance_of(self.instance_type)

    @property
    def core_version(self) -> str:
        """Generation of its cores: `v2`, `v3`; empty when unknown."""
        if self.instance is not None:
            return self.instance.core_version
        return {"trn1": "v2", "inf2": "v2", "trn2": "v3"}.get(self.family, "")


def look(
    root: Path = Path("/"), *, search_path: str | None = None, environ: Mapping[str, str] | None = None
) -> Hardware:
    """Look at the host below `root`. `search_path` replaces PATH, and `environ` this process's variables."""
    environ = os.environ if environ is None else environ
    if search_path is None:
        search_path = environ.get("PATH", os.defpath)
    nodes = _nodes(root)
    tool = neuron_ls.find(root, search_path)
    devices: Sequence[neuron_ls.Device] = ()
    problem = ""
    if nodes and tool is not None:
        try:
            devices = neuron_ls.ask(tool, environ=tool_environment(root, environ))
        except neuron_ls.NeuronLsError as error:
            problem = str(error)
    told = _metadata(root, environ) if nodes else metadata.Metadata()
    product = read(root / "sys/devices/virtual/dmi/id/product_name")
    names = _names(devices, product, told, environ if nodes else {})
    source, name = next(iter(names.items()), ("", ""))
    contradictions = [
        f"{source} says {name}, but {other} says {differing}" for other, differing in names.items() if differing != name
    ]
    family = family_of(name) if name else _family_in_sysfs(root, nodes)
    in_driver = _family_in_sysfs(root, nodes)
    if name and in_driver and in_driver != family:
        contradictions.append(f"{source} says {name}, but the driver's devices are {in_driver}")
    instance = instance_of(name)
    group, group_problem = _group(environ, devices, instance, family, contradictions)
    if nodes and tool is None and not group_problem:
        devices, problem = _from_sysfs(root, nodes, group or 1)
    devices = _regrouped(devices, group, instance)
    visible, visible_source, visible_problem = _visible(environ, devices, contradictions)
    contradictions += _counts(nodes, devices, instance, group)
    return Hardware(
        root=root,
        simulated=root != Path("/") or (bool(nodes) and metadata.is_stand_in(environ)),
        nodes=nodes,
        driver_listed=_driver_listed(root),
        driver_version=read(root / "sys/module/neuron/version"),
        runtime_version=_system_package(root, "aws-neuronx-runtime-lib"),
        product=product,
        processor=_processor(root),
        instance_type=name,
        instance_source=source,
        family=family,
        metadata=told,
        devices=tuple(devices),
        tool=tool,
        logical_core_config=group,
        visible=visible,
        visible_source=visible_source,
        problem=problem or group_problem or visible_problem,
        contradictions=tuple(contradictions),
        venvs=tuple(sorted((root / "opt").glob("aws_neuronx_venv_*"), reverse=True)),
    )


@functools.lru_cache(maxsize=4)
def look_here(environ: tuple[tuple[str, str], ...]) -> Hardware:
    """`look` at this very host, once for all three backends: tool and service take their time."""
    return look(environ=dict(environ))


def tool_environment(root: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables for a Neuron tool of this host; a made-up host's answer only to those who name its root."""
    environ = os.environ if environ is None else environ
    made_up = {} if root == Path("/") else {ROOT_VARIABLE: str(root)}
    return {**os.environ, **environ, **made_up}


def family_of(instance_type: str) -> str:
    """`trn1n.32xlarge` → `trn1`; empty for what is no Neuron instance."""
    match = _INSTANCE.match(instance_type)
    return match.group(1) if match else ""


def read(path: Path) -> str:
    """Text of a small file, stripped; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# -- parts ------------------------------------------------------------------------------------------------------------


def _names(
    devices: Sequence[neuron_ls.Device], product: str, told: metadata.Metadata, environ: Mapping[str, str]
) -> Mapping[str, str]:
    """Source → the instance type that it says, first the one that is believed."""
    said = {
        "neuron-ls": next((device.instance_type for device in devices if device.instance_type), ""),
        "the firmware": product,
        "the metadata service": told.instance_type,
        INSTANCE_VARIABLE: environ.get(INSTANCE_VARIABLE, ""),
    }
    return {source: name for source, name in said.items() if _INSTANCE.match(name)}


def _metadata(root: Path, environ: Mapping[str, str]) -> metadata.Metadata:
    """What the service says; EC2's own is never asked about a host that is made up."""
    if root != Path("/") and not environ.get(metadata.ENDPOINT_VARIABLE):
        return metadata.Metadata(problem="not asked: the host is made up")
    return metadata.ask(environ)


def _group(
    environ: Mapping[str, str],
    devices: Sequence[neuron_ls.Device],
    instance: Instance | None,
    family: str,
    contradictions: list[str],
) -> tuple[int | None, str]:
    """Physical cores per core, and what is wrong with what was asked for."""
    shown = {_shown(device, instance) for device in devices} - {None}
    if len(shown) > 1:
        contradictions.append(f"neuron-ls shows devices of different groupings: {sorted(map(str, shown))}")
    by_tool = next(iter(shown)) if len(shown) == 1 else None
    offered = instance.logical_core_configs if instance else (2, 1) if family == "trn2" else (1,) if family else ()
    asked = {name: environ[name].strip() for name in GROUP_VARIABLES if environ.get(name, "").strip()}
    for name, text in asked.items():
        if text not in map(str, offered or (1, 2)):
            wanted = " or ".join(map(str, offered or (1, 2)))
            return by_tool, f"{name}={text}: expected {wanted} on {instance.name if instance else family or 'Neuron'}"
    if len(set(asked.values())) > 1:
        contradictions.append("; ".join(f"{name} is {text}" for name, text in asked.items()))
    if asked:
        group = int(next(iter(asked.values())))
        if by_tool is not None and by_tool != group:
            contradictions.append(f"{next(iter(asked))} is {group}, but neuron-ls shows {by_tool} cores a group")
        return group, ""
    if by_tool is not None:
        return by_tool, ""
    return (offered[0] if offered else None), ""


def _shown(device: neuron_ls.Device, instance: Instance | None) -> int | None:
    """Physical cores per core in what `neuron-ls` shows of a device: as it says, else as its number of cores tells."""
    if device.logical_core_config is not None or instance is None or not device.cores:
        return device.logical_core_config
    group, rest = divmod(instance.cores_per_device, device.cores)
    return group if not rest and group in instance.logical_core_configs else None


def _regrouped(
    devices: Sequence[neuron_ls.Device], group: int | None, instance: Instance | None
) -> Sequence[neuron_ls.Device]:
    """The devices with ids as programs see them that group cores otherwise than the tool, which did not know."""
    out, first = [], 0
    for device in devices:
        shown = _shown(device, instance)
        if group is None or shown is None or shown == group:
            out.append(device)
            continue
        count = device.cores * shown // group
        out.append(replace(device, core_ids=tuple(range(first, first + count)), logical_core_config=group))
        first += count
    return out


def _visible(
    environ: Mapping[str, str], devices: Sequence[neuron_ls.Device], contradictions: list[str]
) -> tuple[tuple[int, ...], str, str]:
    """Ids that may be used, the variable that says so, and what is wrong with it."""
    there = tuple(sorted(core for device in devices for core in device.core_ids))
    asked = {name: environ[name].strip() for name in VISIBLE_VARIABLES if environ.get(name, "").strip()}
    chosen: dict[str, tuple[int, ...]] = {}
    for name, text in asked.items():
        try:
            chosen[name] = ids.parse(text)
        except ValueError as error:
            return (), name, f"{name}: {error}"
        strangers = sorted(set(chosen[name]) - set(there))
        if devices and strangers:
            return (), name, f"{name}={text}: this host has the cores {ids.show(there)}, not {ids.show(strangers)}"
    if len(set(chosen.values())) > 1:
        contradictions.append("; ".join(f"{name} is {asked[name]}" for name in chosen))
    if chosen:
        name = next(iter(chosen))
        return (chosen[name] if devices else ()), name, ""
    count = environ.get(COUNT_VARIABLE, "").strip()
    if count and count != "0":
        if not count.isdecimal():
            return (), COUNT_VARIABLE, f"{COUNT_VARIABLE}: expected a whole number, found {count!r}"
        if devices and int(count) > len(there):
            return (), COUNT_VARIABLE, f"{COUNT_VARIABLE}={count}: this host has {len(there)} cores"
        return there[: int(count)], COUNT_VARIABLE, ""
    return there, "", ""


def _counts(
    nodes: Sequence[int], devices: Sequence[neuron_ls.Device], instance: Instance | None, group: int | None
) -> list[str]:
    """Numbers of devices and cores that do not go together."""
    found = []
    if devices and len(devices) != len(nodes):
        found.append(f"neuron-ls lists {len(devices)} devices, but there are {len(nodes)} nodes /dev/neuron*")
    if instance is not None and nodes and len(nodes) != instance.devices:
        found.append(f"{len(nodes)} of the {instance.devices} devices of {instance.name} are here")
    for device in devices:
        if instance is not None and group and device.cores * group != instance.cores_per_device:
            found.append(
                f"device {device.index} has {device.cores} cores of {group}, one of a {instance.name} has "
                f"{instance.cores_per_device}"
            )
        if instance is None or device.memory_bytes is None:
            continue
        if abs(device.memory_bytes / 2**30 - instance.memory_gib) > 0.05 * instance.memory_gib:
            found.append(
                f"device {device.index} has {device.memory_bytes / 2**30:.4g} GiB by neuron-ls, one of a "
                f"{instance.name} has {instance.memory_gib:g}"
            )
    return found


def _nodes(root: Path) -> tuple[int, ...]:
    try:
        names = os.listdir(root / "dev")
    except OSError:
        return ()
    return tuple(sorted(int(match.group(1)) for name in names if (match := _DEVICE_NODE.match(name))))


def _driver_listed(root: Path) -> bool:
    return any(line.split()[1:] == ["neuron"] for line in read(root / "proc/devices").splitlines())


def _processor(root: Path) -> str:
    for line in read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return platform.machine()


def _sysfs(root: Path, node: int) -> Path:
    return root / f"sys/devices/virtual/neuron_device/neuron{node}"


def _from_sysfs(root: Path, nodes: Sequence[int], group: int) -> tuple[Sequence[neuron_ls.Device], str]:
    """The devices as the driver itself shows them: the tool is not installed, which is not the hardware's fault."""
    devices: list[neuron_ls.Device] = []
    first = 0
    for node in nodes:
        count = read(_sysfs(root, node) / "core_count")
        if not count.isdecimal() or not 0 < int(count) <= 64 or int(count) % group:
            return (), (
                "neuron-ls is neither on PATH nor in /opt/aws/neuron/bin, and the driver does not show the number of "
                "cores; install aws-neuronx-tools"
            )
        cores = int(count) // group
        devices.append(neuron_ls.Device(index=node, core_ids=tuple(range(first, first + cores))))
        first += cores
    return devices, ""


def _family_in_sysfs(root: Path, nodes: Sequence[int]) -> str:
    """The driver names the family (`Inf2`) but not the size."""
    for node in nodes:
        name = read(_sysfs(root, node) / "info/architecture/instance_type").lower()
        if re.fullmatch(r"(?:trn|inf)\d[a-z]*", name):
            return name[:4]
    return ""


def _system_package(root: Path, name: str) -> str:
    """Version of a package of the system, by the package manager's own list (Debian, Ubuntu); empty elsewhere."""
    wanted = f"Package: {name}"
    for paragraph in read(root / "var/lib/dpkg/status").split("\n\n"):
        lines = paragraph.splitlines()
        if wanted in lines:
            return next((line.partition(": ")[2] for line in lines if line.startswith("Version: ")), "")
    return ""
