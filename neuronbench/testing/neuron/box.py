"""A made-up Neuron host: a root to look at in place of `/`, tools on a PATH, a metadata service."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from neuronbench.model import Json
from neuronbench.testing.neuron.imds import FakeImds
from neuronbench.testing.neuron.shapes import Shape, shape_of
from neuronbench.testing.neuron.venvs import make_venv

ROOT_VARIABLE: Final = "NEURONBENCH_NEURON_ROOT"
LsFault: TypeAlias = Literal["", "no_device", "slow", "crash", "garbage", "truncated"]
_FOREIGN: Final = ("NEURON", "AWS_", "VLLM_", "XLA_", "PJRT_")


class FakeBox:
    """A Neuron host of the instance type `shape` in `folder`, which must be empty or absent.

    `root` has `dev/neuron*`, `proc/devices`, the firmware's and the driver's files; `bin` is on the PATH and has
    `neuron-ls` unless `tools` is false. Inside the `with` block a metadata service runs (`imds`). `environ()` is what
    a process needs to be on it. Whatever runs there is recorded as simulated.

    `logical_core_config` groups cores otherwise than the hardware does by itself (trn2: 1). `says_instance`: whether
    `neuron-ls` is of those newer ones that say the instance type. `region` and `life_cycle` (`on-demand`, `spot`,
    `capacity-block`) are what the metadata service tells.

    Raises `ValueError` for a shape it does not know, `FileExistsError` where something is in the way.
    """

    def __init__(
        self,
        shape: str,
        folder: Path,
        *,
        tools: bool = True,
        logical_core_config: int | None = None,
        says_instance: bool | None = None,
        region: str = "us-west-2",
        life_cycle: str = "on-demand",
    ) -> None:
        self.shape: Shape = shape_of(shape, logical_core_config)
        self.root = Path(folder).resolve()
        self.bin = self.root / "usr" / "local" / "bin"
        if self.root.exists() and any(self.root.iterdir()):
            raise FileExistsError(f"a box needs a folder of its own, and {self.root} is not empty")
        for name, text in self.shape.files():
            self.write(name, text)
        self.bin.mkdir(parents=True)
        (self.root / "opt").mkdir()
        (self.root / "run/neuron/holders").mkdir(parents=True)
        says = self.shape.instance.name == "trn2.3xlarge" if says_instance is None else says_instance
        self._devices: Any = [
            self.shape.device(index, says_instance=says) for index in range(self.shape.instance.devices)
        ]
        self.neuron_ls()
        if tools:
            self._tool_neuron_ls()
        zone = f"{region}b"
        self.imds = FakeImds(
            {
                "instance-type": shape,
                "instance-life-cycle": life_cycle,
                "instance-id": "i-0123456789abcdef0",
                "ami-id": "ami-0123456789abcdef0",
                "placement/region": region,
                "placement/availability-zone": zone,
                "placement/availability-zone-id": "usw2-az1",
            }
        )

    def __enter__(self) -> Self:
        self.imds.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.imds.stop()

    def environ(self, **more: str) -> dict[str, str]:
        """The environment of a process on this box: this one's without what tells of another host, and `more`."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        kept = {name: value for name, value in os.environ.items() if name.startswith("NEURONBENCH_")}
        environ |= {name: value for name, value in kept.items() if name not in ("NEURONBENCH_INSTANCE_TYPE",)}
        environ[ROOT_VARIABLE] = str(self.root)
        environ["PATH"] = os.pathsep.join([str(self.bin), environ.get("PATH", os.defpath)])
        environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = self.imds.url
        return environ | more

    def write(self, name: str, text: str) -> Path:
        """A file of the root, over what was there."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def remove(self, name: str) -> None:
        """Take a file of the root away: `dev/neuron0`, for one."""
        (self.root / name).unlink()

    def neuron_ls(self, fault: LsFault = "", *, devices: Json = None, seconds: float = 600.0) -> None:
        """What `neuron-ls` answers from now on.

        `fault`: `no_device` (status 1, logfmt on standard error), `slow` (answers after `seconds`), `crash` (status 2),
        `garbage` (a table, status 0), `truncated` (half of the JSON). `devices` replaces what it prints.
        """
        state = {
            "fault": fault,
            "seconds": seconds,
            "instance": self.shape.instance.name,
            "devices": self._devices if devices is None else devices,
        }
        self.write("run/neuron/neuron-ls.json", json.dumps(state))

    @property
    def devices(self) -> Any:
        """What `neuron-ls -j` prints while nobody holds a core, to be changed and given back to `neuron_ls`."""
        return json.loads(json.dumps(self._devices))

    def hold(self, cores: Sequence[int], *, pid: int, command: str, static: bool = True) -> None:
        """Let `neuron-ls` show that a process holds these cores; unless `static`, only as long as it runs."""
        holder = {"pid": pid, "cores": list(cores), "command": command, "static": static}
        self.write(f"run/neuron/holders/{pid}.json", json.dumps(holder))

    def tool(self, name: str, script: Path) -> Path:
        """Put a tool on the PATH: `name` runs `script` with this interpreter, whose standard library is enough for it.

        The script finds the box in the variable NEURONBENCH_FAKE_BOX.
        """
        path = self.bin / name
        path.write_text(
            "#!/bin/sh\n"
            f"NEURONBENCH_FAKE_BOX={shlex.quote(str(self.root))} exec {shlex.quote(sys.executable)} -I -S "
            f'{shlex.quote(str(Path(script).resolve()))} "$@"\n',
            encoding="utf-8",
        )
        path.chmod(0o755)
        return path

    def venv(
        self,
        name: str,
        *,
        packages: Mapping[str, str],
        paths: Sequence[Path] = (),
        python: Path | None = None,
        placeholders: Mapping[str, str] | None = None,
    ) -> Path:
        """A virtual environment `opt/<name>`, such as `aws_neuronx_venv_pytorch_2_9`; returns its folder.

        Its interpreter is `python` (this one when None) with that one's packages. `paths` are put in front of
        `sys.path`: fake packages go there. It claims to have the distributions `packages` (name → version);
        `placeholders` are claimed too, but are the empty ones of PyPI. Files may be added to its `bin`.
        """
        folder = self.root / "opt" / name
        make_venv(folder, packages=packages, placeholders=placeholders or {}, paths=paths, python=python)
        return folder

    def _tool_neuron_ls(self) -> None:
        self.tool("neuron-ls", Path(__file__).with_name("neuron_ls.py"))
