"""Runs as the desk sees them: what was asked, where it is kept, and getting it started on a box.

Everything about a run is in its bucket, so that any desk can look after it: this one may go away at any moment.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import re
import secrets
import shlex
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from neuronbench.model import Json, canonical_json
from neuronbench.redaction import redact_argv
from neuronbench.weights import Blobs, StoreError
from neuronbench.weights.s3 import S3Blobs
from neuronbench_fleet import boxes
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.boxes import Box
from neuronbench_fleet.bundle import Bundle
from neuronbench_fleet.deployment import Deployment
from neuronbench_fleet.errors import AwsError, FleetError, UsageError
from neuronbench_fleet.remote import bootstrap
from neuronbench_fleet.remote.keys import RUN_ID, request_key
from neuronbench_fleet.remote.state import After

FORMAT: Final = 1
HASH_MISMATCH: Final = 8
PYTEST_OFFSET: Final = 10
"""Added to pytest's own status from 2 on, which would else be taken for one of the fleet commands."""
CANCELLED: Final = PYTEST_OFFSET + 2
"""As what pytest itself ends with when it is interrupted."""
_RUN_STAMP: Final = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}")
_LOOKED_AT: Final = 10
"""Latest runs of a fleet of which the youngest is looked for."""
_URL_S: Final = 3600
_SETUP_S: Final = 3600
"""What setting up the code on a box may take."""
_ONLINE_S: Final = 600.0
_WORDS_BYTES: Final = 16 << 10
"""Systems Manager takes 64 KiB for a command; the script has ten, and words grow by half on their way."""
_OTHER_RUN: Final = re.compile(r"neuronbench-run-([a-z0-9-]+)\.service")
_TRIES: Final = 9
_TAIL_LINES: Final = 15


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A run as it was asked for; written once, and what another desk goes on with."""

    run: str
    deployment: str
    fleet: str
    kind: str
    pytest_args: Sequence[str]
    code: Mapping[str, Any]
    """Hash, size, commit and changed files of the archive, and its key in the bucket."""
    after: After = "keep"
    max_hours: float | None = None
    max_usd: float | None = None
    setup: str = bootstrap.SETUP
    python: str = bootstrap.PYTHON
    environment: Mapping[str, str] = field(default_factory=dict)
    asked_at: str = ""
    asked_by: str = ""

    def to_json(self) -> dict[str, Json]:
        return {
            "format": FORMAT, "run": self.run, "deployment": self.deployment, "fleet": self.fleet, "kind": self.kind,
            "pytest_args": list(self.pytest_args), "code": dict(self.code), "after": self.after,
            "max_hours": self.max_hours, "max_usd": self.max_usd, "setup": self.setup, "python": self.python,
            "environment": dict(self.environment), "asked_at": self.asked_at, "asked_by": self.asked_by,
        }  # fmt: skip


def new_run_id(fleet: str, *, now: datetime | None = None) -> str:
    """A name for a run of a fleet, such as `night-20261130-041503-9f3a`."""
    stem = re.sub(r"[^a-z0-9]+", "-", fleet.lower()).strip("-") or "run"
    return f"{stem}-{(now or datetime.now(UTC)).strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def check_run_id(run: str) -> None:
    """Raise `UsageError` for a name that cannot be a run's."""
    if not RUN_ID.fullmatch(run):
        raise UsageError(f"run {run!r}: expected lower-case letters, digits and hyphens, 63 at most")


def check_named(named: str) -> None:
    """Raise `UsageError` for a name that can be neither a run's nor a fleet's."""
    if not RUN_ID.fullmatch(named):
        boxes.checked_name(named)


def check_size(pytest_args: Sequence[str], environment: Mapping[str, str], setup: str) -> None:
    """Raise `UsageError` for more than one command of Systems Manager carries beside the script."""
    words = [*pytest_args, *environment, *environment.values(), setup]
    size = sum(len(word.encode("utf-8", "surrogateescape")) + 4 for word in words)
    if size > _WORDS_BYTES:
        raise UsageError(
            f"arguments, variables and --setup have {size} bytes together; {_WORDS_BYTES} can be sent to a box",
            remedy="put them into a file of the project: a grid, pytest's addopts, a script for --setup",
        )


def asker() -> str:
    """Who asks, for people: user and host of this desk."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


# -- in the bucket


def bucket_of(aws: Aws, deployment: Deployment) -> S3Blobs:
    """The deployment's bucket through the one door to AWS: counted, repeated, held back in a dry run."""
    return S3Blobs(deployment.bucket, client=aws.client("s3"))


def write_asked(store: Blobs, asked: Asked) -> None:
    data = canonical_json(asked.to_json()).encode()
    if not store.write(request_key(asked.run), [data], len(data)) and read_asked(store, asked.run) != asked:
        raise FleetError(
            f"there is a run {asked.run!r} already, with other code or arguments",
            remedy=f"go on with it: --run {asked.run} and nothing behind --; or leave --run out for a new one",
        )


def read_asked(store: Blobs, run: str) -> Asked | None:
    """What was asked; None when there is no such run. Raises `FleetError` for what cannot be read."""
    try:
        raw = b"".join(store.read(request_key(run)))
    except KeyError:
        return None
    try:
        told = json.loads(raw)
        if told.pop("format") != FORMAT:
            raise ValueError("another format")
        return Asked(**told)
    except (ValueError, TypeError, KeyError) as error:
        raise FleetError(
            f"{store.url}/{request_key(run)} cannot be read: {error}",
            remedy="use the version of neuronbench-fleet that started the run",
        ) from error


def runs_of(aws: Aws, deployment: Deployment, fleet: str) -> list[str]:
    """Ids of all runs of a fleet, the oldest first; those with names of their own, by tags of its boxes, come last."""
    stem = new_run_id(fleet)[: -len("-20261130-041503-9f3a")]
    found = aws.pages(
        "s3", "list_objects_v2", "CommonPrefixes", Bucket=deployment.bucket, Prefix=f"runs/{stem}-", Delimiter="/"
    )
    names = [str(entry["Prefix"]).removeprefix("runs/").rstrip("/") for entry in found]
    stamped = sorted(name for name in names if _RUN_STAMP.fullmatch(name.removeprefix(stem)))
    tagged = {box.run for box in boxes.list_boxes(aws, deployment.name, fleet)}
    return [*stamped, *sorted(tagged - {"", *stamped})]


def find_run(aws: Aws, store: Blobs, deployment: Deployment, named: str) -> Asked:
    """The run of that id, or the latest of the fleet of that name. Raises `FleetError` when there is neither."""
    asked = read_asked(store, named)
    if asked is None:
        latest = runs_of(aws, deployment, named)[-_LOOKED_AT:]
        # ids have less letters than names: those of `night.1` and `night-1` begin alike
        found = [one for run in latest if (one := read_asked(store, run)) is not None and one.fleet == named]
        asked = max(found, key=lambda one: one.asked_at, default=None)
    if asked is None:
        raise FleetError(
            f"there is no run {named!r} in {store.url}, and no run of a fleet of that name", kind="not_found",
            remedy=f"start one: neuronbench fleet run {named}",
        )  # fmt: skip
    return asked


def upload(store: S3Blobs, bundle: Bundle) -> str:
    """Have the archive in the bucket and return its key; all of it was read back and hashed.

    An object that is not what its address says stays, and the archive goes beside it under the next name.
    """
    data = bundle.path.read_bytes()
    for number in range(1, _TRIES + 1):
        key = bundle.key if number == 1 else bundle.key.replace(".tar.gz", f"-{number}.tar.gz")
        store.write(key, [data], len(data))
        state = hashlib.sha256()
        for piece in store.read(key):
            state.update(piece)
        if state.hexdigest() == bundle.sha256:
            return key
    raise StoreError(
        "store_corrupt", f"{store.url}: {_TRIES} times the bucket gave back other bytes of the code than it was sent",
        remedy="Look at what is between here and the bucket: a proxy that changes what passes?",
    )  # fmt: skip


# -- on a box


def choose_box(aws: Aws, deployment: Deployment, fleet: str, *, run: str = "") -> tuple[Box, int]:
    """The box a run goes to, and how many could have had it: the one that has the run already, else the oldest.

    Points are not shared out over several boxes: repeats of a point must be of one machine.
    """
    found = boxes.list_boxes(aws, deployment.name, fleet)
    ready = [box for box in found if box.state in boxes.LIVE]
    if ready:
        return next((box for box in ready if run and box.run == run), ready[0]), len(ready)
    states = ", ".join(f"{box.id} {box.state}" for box in found) or "none"
    raise FleetError(
        f"the fleet {fleet!r} has no box that runs (boxes: {states})", kind="not_found",
        remedy=f"start one: neuronbench fleet up {fleet} --kind KIND",
    )  # fmt: skip


def order_for(asked: Asked, deployment: Deployment, box: Box) -> dict[str, Any]:
    """What the agent on that box is told (`remote.state.Order`). No secret is in it."""
    code = asked.code
    told = {
        "NEURONBENCH_CODE_SHA256": str(code["sha256"]), "NEURONBENCH_CODE_COMMIT": str(code.get("commit") or ""),
        "NEURONBENCH_CODE_BRANCH": str(code.get("branch") or ""),
        "NEURONBENCH_CODE_DIRTY": "1" if code.get("changed") else "0",
    }  # fmt: skip
    return {
        "run": asked.run, "bucket": deployment.bucket, "region": deployment.region, "instance": box.id,
        "pytest_args": list(asked.pytest_args), "after": asked.after, "max_hours": asked.max_hours,
        "max_usd": asked.max_usd, "usd_per_hour": box.rate.usd_per_hour if box.rate else None,
        "expires": box.expires.isoformat() if box.expires else "", "environment": {**asked.environment, **told},
    }  # fmt: skip


def start_on(aws: Aws, deployment: Deployment, asked: Asked, box: Box, *, progress: Callable[[str], None]) -> str:
    """Set the run up on a box and start it there; returns what the box said. Sent again, it does nothing twice.

    Raises `FleetError` with the end of the box's own words when it does not start.
    """
    await_online(aws, box, progress)
    _mark(aws, box, asked)
    url = aws.presigned(deployment.bucket, str(asked.code["key"]), expires_s=_URL_S)
    script = bootstrap.script(
        order_for(asked, deployment, box), sha256=str(asked.code["sha256"]), url=url, setup=asked.setup,
        python=asked.python, pace=1 if aws.pace.shortened(1.0) else 0,
    )  # fmt: skip
    try:
        return execute(
            aws, box, script, comment=f"neuronbench run {asked.run}", limit_s=_SETUP_S, progress=progress,
            doing="the code is set up",
        )  # fmt: skip
    except ScriptFailed as error:
        # refused, for another run has the box: what it was to do at its end must not be ours
        for run in _OTHER_RUN.findall(error.said) if error.code == bootstrap.EXIT_BUSY else ():
            other = read_asked(bucket_of(aws, deployment), run)
            if other is not None:
                _mark(aws, box, other, instead=asked.after)
        raise FleetError(
            f"the run was not started on {box.id} {error}",
            status=HASH_MISMATCH if error.code == bootstrap.EXIT_HASH else None,
            kind="conflict" if error.code == bootstrap.EXIT_BUSY else "failed",
            remedy=_REMEDIES.get(error.code, _LOOK),
        ) from None


class ScriptFailed(Exception):
    """A script on a box that did not end well. Its text is the command, how that ended, and its last words."""

    def __init__(self, command: str, status: str, code: int, stdout: str, stderr: str) -> None:
        super().__init__(f"(command {command}: {status}, exit status {code}):\n{_tail(stdout, stderr)}")
        self.code = code
        self.said = " ".join(f"{stdout}\n{stderr}".split())


def execute(
    aws: Aws, box: Box, script: str, *, comment: str, limit_s: int, progress: Callable[[str], None], doing: str
) -> str:
    """Run a script on a box as root, by Systems Manager, and return what it printed; empty in a dry run.

    Where an answer is lost it is sent again: a script has to bear that. Raises `ScriptFailed`, `BoxLost`, `FleetError`.
    """
    answer = aws.call(
        "ssm", "send_command", InstanceIds=[box.id], DocumentName="AWS-RunShellScript", TimeoutSeconds=600,
        Comment=comment[:100], Parameters={"commands": script.splitlines(), "executionTimeout": [str(limit_s)]},
    )  # fmt: skip
    if aws.dry_run:
        return ""
    return _await_command(aws, str(answer["Command"]["CommandId"]), box, limit_s, progress, doing)


def _mark(aws: Aws, box: Box, asked: Asked, *, instead: After = "keep") -> None:
    """Note on the box which run has it, and what `shutdown` does there. Before it starts: the desk may go away.

    `instead`: what another run had noted there. What it was before is not known: the one that loses nothing is taken.
    """
    after = asked.after
    if after == "keep" and instead == "terminate" and box.purchase != "spot":
        after = "stop"
    if after != "keep":
        aws.call(
            "ec2", "modify_instance_attribute", InstanceId=box.id, InstanceInitiatedShutdownBehavior={"Value": after}
        )  # fmt: skip
    aws.call("ec2", "create_tags", Resources=[box.id], Tags=[{"Key": f"{boxes.TAG}run", "Value": asked.run}])


def exit_status(finished: Mapping[str, Any]) -> int:
    """What the command ends with for a run that ended with this event."""
    status = finished.get("exit_code")
    if finished.get("reason") in ("limit", "expiry"):
        return 4
    if finished.get("reason") == "cancelled":
        return CANCELLED
    if not isinstance(status, int) or status < 0:
        return 1
    return status if status in (0, 1) else PYTEST_OFFSET + status


def pause(aws: Aws, seconds: float) -> None:
    """Wait between two looks; never so short that looking is all that is done."""
    time.sleep(max(0.5, aws.pace.shortened(seconds)))


def await_online(aws: Aws, box: Box, progress: Callable[[str], None]) -> None:
    """Wait until Systems Manager reaches a box. Raises `FleetError`."""
    start = looked = aws.pace.now_s()
    while not aws.dry_run and boxes.pings(aws, [box.id]).get(box.id) != "Online":
        waited = aws.pace.now_s() - start
        if waited > _ONLINE_S:
            raise FleetError(
                f"Systems Manager does not reach {box.id} after {waited:.0f} s",
                remedy="does its subnet reach SSM (a NAT gateway, or endpoints), and has its role the right to? "
                f"neuronbench fleet status {box.fleet}",
            )
        looked = boxes.still_there(aws, box.id, looked, "waiting for Systems Manager")
        progress(f"{waited:.0f} s: waiting for Systems Manager on {box.id}")
        pause(aws, 5.0)


def _await_command(
    aws: Aws, command: str, box: Box, limit_s: int, progress: Callable[[str], None], doing: str
) -> str:  # fmt: skip
    start = looked = aws.pace.now_s()
    told: Mapping[str, Any] = {}
    while True:
        try:
            told = aws.call("ssm", "get_command_invocation", CommandId=command, InstanceId=box.id)
        except AwsError as error:
            if error.kind != "not_found":  # it takes a moment until the command is known there
                raise
            told = {}
        status = str(told.get("Status", "Pending"))
        if status not in ("Pending", "InProgress", "Delayed", "Cancelling"):
            break
        waited = aws.pace.now_s() - start
        if waited > limit_s + 900:
            raise FleetError(f"{doing} on {box.id}: not done after {waited:.0f} s (command {command})")
        looked = boxes.still_there(aws, box.id, looked, doing)
        progress(f"{waited:.0f} s: {doing} on {box.id}")
        pause(aws, 3.0)
    said = str(told.get("StandardOutputContent") or "")
    if status == "Success":
        return said.strip()
    code = int(told.get("ResponseCode") or 0)
    raise ScriptFailed(command, status, code, said, str(told.get("StandardErrorContent") or ""))


_LOOK: Final = "look at the box: aws ssm start-session --target INSTANCE; the same command may be given again"
_REMEDIES: Final[Mapping[int, str]] = {
    bootstrap.EXIT_HASH: "something on the way changes what passes (a proxy?), or the object in the bucket is another",
    bootstrap.EXIT_NO_CODE: "the box needs a way to S3: an endpoint in its subnet's route table, or a NAT gateway",
    bootstrap.EXIT_SETUP: "see above what is missing; --setup COMMAND says how the code is set up",
    bootstrap.EXIT_NO_ROOM: "make room on the box (aws ssm start-session --target INSTANCE; what runs leave is in"
    " /opt/neuronbench and /var/lib/neuronbench), or use another: neuronbench fleet down NAME ends it",
    bootstrap.EXIT_NO_SYSTEMD: "use an image with systemd, such as the Neuron DLAMI",
    bootstrap.EXIT_BUSY: "wait for the other run (neuronbench fleet logs RUN -f), cancel it (neuronbench fleet stop"
    " NAME --run RUN), or use another fleet",
}


def _tail(stdout: str, stderr: str) -> str:
    lines = [*stdout.splitlines(), *stderr.splitlines()][-_TAIL_LINES:]
    return "\n".join(f"  | {line}" for line in lines) or "  | (it said nothing)"


def archive_folder(cache_dir: Path) -> Path:
    """Where archives are made on the desk."""
    folder = cache_dir / "fleet"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def shown_args(arguments: Sequence[str]) -> str:
    """Arguments for people, without secrets."""
    return shlex.join(redact_argv(list(arguments)))
