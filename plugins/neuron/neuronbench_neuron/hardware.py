"""What this host is and which Neuron devices it has. Only files are read; a tool is run only where a device is."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neuronbench_neuron import neuron_ls

_INSTANCE = re.compile(r"^((?:trn|inf)\d)[a-z]*\.[\w-]+$")
_DEVICE_NODE = re.compile(r"^neuron(\d+)$")
INSTANCE_VARIABLE = "NEURONBENCH_INSTANCE_TYPE"
"""Names the instance type where neither the tool nor the firmware does, as in some containers: `inf2.xlarge`."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Findings, each with what it rests on. Empty text and None where nothing was found."""

    nodes: tuple[int, ...] = ()
    """Indices of /dev/neuron*."""
    driver_listed: bool = False
    """Whether /proc/devices has the driver: it is loaded."""
    driver_version: str = ""
    product: str = ""
    """The host's name for itself; on EC2 the instance type."""
    processor: str = ""
    """Model of the CPU, or at least its architecture: what is left to name a host by that has no product name."""
    instance_type: str = ""
    """Of a Neuron instance: by the tool, the firmware, or the variable; in that order."""
    family: str = ""
    """`trn1`, `trn2`, `inf2`, or one this plugin does not know."""
    devices: tuple[neuron_ls.Device, ...] = ()
    tool: Path | None = None
    problem: str = ""
    """Why the devices are not known although there are some."""
    venvs: tuple[Path, ...] = ()
    """Environments of the Neuron images, newest names first."""

    @property
    def cores(self) -> int:
        return sum(device.cores for device in self.devices)


def look(root: Path = Path("/"), *, search_path: str | None = None, told: str = "") -> Hardware:
    """Look at the host below `root`. `search_path` replaces PATH; `told` is the instance type by the user's word."""
    nodes = _nodes(root)
    tool = neuron_ls.find(root, search_path)
    devices: Sequence[neuron_ls.Device] = ()
    problem = ""
    if nodes:
        if tool is None:
            devices, problem = _from_sysfs(root, nodes)
        else:
            try:
                devices = neuron_ls.ask(tool)
            except neuron_ls.NeuronLsError as error:
                problem = str(error)
    product = _read(root / "sys/devices/virtual/dmi/id/product_name")
    by_tool = next((device.instance_type for device in devices if device.instance_type), "")
    names = [name for name in (by_tool, product, told if nodes else "") if _INSTANCE.match(name)]
    return Hardware(
        nodes=nodes,
        driver_listed=_driver_listed(root),
        driver_version=_read(root / "sys/module/neuron/version"),
        product=product,
        processor=_processor(root),
        instance_type=names[0] if names else "",
        family=family_of(names[0]) if names else _family_in_sysfs(root, nodes),
        devices=tuple(devices),
        tool=tool,
        problem=problem,
        venvs=tuple(sorted((root / "opt").glob("aws_neuronx_venv_*"), reverse=True)),
    )


def family_of(instance_type: str) -> str:
    """`trn1n.32xlarge` → `trn1`; empty for what is no Neuron instance."""
    match = _INSTANCE.match(instance_type)
    return match.group(1) if match else ""


def _nodes(root: Path) -> tuple[int, ...]:
    try:
        names = os.listdir(root / "dev")
    except OSError:
        return ()
    return tuple(sorted(int(match.group(1)) for name in names if (match := _DEVICE_NODE.match(name))))


def _driver_listed(root: Path) -> bool:
    return any(line.split()[1:] == ["neuron"] for line in _read(root / "proc/devices").splitlines())


def _processor(root: Path) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return platform.machine()


def _sysfs(root: Path, node: int) -> Path:
    return root / f"sys/devices/virtual/neuron_device/neuron{node}"


def _from_sysfs(root: Path, nodes: Sequence[int]) -> tuple[Sequence[neuron_ls.Device], str]:
    """The devices as the driver itself shows them: the tool is not installed, which is not the hardware's fault."""
    devices = []
    for node in nodes:
        count = _read(_sysfs(root, node) / "core_count")
        if not count.isdecimal() or int(count) == 0:
            return (), (
                "neuron-ls is neither on PATH nor in /opt/aws/neuron/bin, and the driver does not show the number of "
                "cores; install aws-neuronx-tools"
            )
        devices.append(neuron_ls.Device(index=node, cores=int(count)))
    return devices, ""


def _family_in_sysfs(root: Path, nodes: Sequence[int]) -> str:
    """The driver names the family (`Inf2`) but not the size."""
    for node in nodes:
        name = _read(_sysfs(root, node) / "info/architecture/instance_type").lower()
        if re.fullmatch(r"(?:trn|inf)\d[a-z]*", name):
            return name[:4]
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
