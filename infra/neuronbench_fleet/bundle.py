"""The exact code as one archive: the same tree gives the same bytes, and the hash of the bytes is its address.

What goes in is what git sees in the project's folder: tracked files as they are now, changes that were never committed
among them, and new files that git does not ignore. What looks like a secret by its name stays out, and that is said.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from neuronbench.model import Json
from neuronbench_fleet.errors import FleetError, UsageError

LIMIT_BYTES: Final = 512 << 20
"""Of the files together. Code has some megabytes: what is larger holds data or weights."""
SECRETS: Final = (
    ".env", ".env.*", "*.env", "*.pem", "*.p12", "*.pfx", "*.key", "*.keystore", "*.jks", "*.kdbx", "id_rsa*",
    "id_ed25519*", "id_ecdsa*", ".netrc", "_netrc", ".pypirc", ".npmrc", ".htpasswd", ".git-credentials", "credentials",
    "credentials.*", "secrets.*", "*.secret", "*.secrets", ".aws", ".ssh", ".docker", ".kube",
)  # fmt: skip
"""Names of files and folders that stay out, as patterns."""
NOT_SECRETS: Final = ("*.env.example", ".env.example", ".env.sample", ".env.template", "secrets.py", "credentials.py")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An archive of code, and what it was made of."""

    path: Path
    sha256: str
    """Of the archive: its address."""
    tree_sha256: str
    """Of names, modes and contents: the same for the same tree whatever packed it."""
    size_bytes: int
    files: int
    content_bytes: int
    commit: str
    """Empty before the first commit."""
    branch: str
    changed: Sequence[str]
    """Files that are not as in the commit: changed, new or gone."""
    left_out: Mapping[str, str]
    """Path → why it is not in the archive, though git sees it."""

    @property
    def key(self) -> str:
        return f"code/{self.sha256}.tar.gz"

    def to_json(self) -> dict[str, Json]:
        return {
            "sha256": self.sha256, "tree_sha256": self.tree_sha256, "bytes": self.size_bytes, "files": self.files,
            "commit": self.commit, "branch": self.branch, "changed": list(self.changed),
            "left_out": dict(self.left_out),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Member:
    name: str
    mode: int
    data: bytes
    link: str = ""


def make(root: Path, target: Path, *, require_clean: bool = False) -> Bundle:
    """Write the archive of the project at `root` to the file `target`.

    Raises `FleetError` where `root` is in no git checkout, for a tree that is too large, and with `require_clean` for
    one that differs from its commit.
    """
    root = root.resolve()
    names = _names(root)
    changed = _changed(root)
    if changed and require_clean:
        raise FleetError(
            f"{root} differs from its commit in {len(changed)} files: {_some(changed)}",
            remedy="commit, or leave out --require-clean: changes are shipped, too, and are recorded",
        )
    members, left_out = _members(root, names)
    if not members:
        raise UsageError(f"{root}: git sees no files here", remedy="name the project's folder with --root")
    raw = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        _write(raw, members)
        with raw.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        os.replace(raw, target)
    finally:
        raw.unlink(missing_ok=True)
    return Bundle(
        path=target, sha256=sha256, tree_sha256=_tree(members), size_bytes=target.stat().st_size, files=len(members),
        content_bytes=sum(len(member.data) for member in members),
        commit=_git(root, "rev-parse", "-q", "--verify", "HEAD"),
        branch=_git(root, "rev-parse", "--abbrev-ref", "HEAD"), changed=changed, left_out=left_out,
    )  # fmt: skip


def describe(bundle: Bundle) -> Iterator[str]:
    """What a person should know before it is sent, line by line."""
    commit = bundle.commit[:12] or "none"
    state = f"with {len(bundle.changed)} changed or new" if bundle.changed else "exactly"
    packed, whole = (
        f"{n / 1e6:.1f} MB" if n >= 1e5 else f"{n / 1e3:.1f} kB" for n in (bundle.size_bytes, bundle.content_bytes)
    )
    yield f"code {bundle.sha256[:12]}: {bundle.files} files, {packed} packed ({whole}); commit {commit}, {state}"
    if bundle.changed:
        yield f"  not as committed: {_some(bundle.changed)}"
    for path, why in bundle.left_out.items():
        yield f"  left out: {path}: {why}"


# -- parts


def _git(root: Path, *arguments: str) -> str:
    """What git answers; empty where it has none."""
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, timeout=60, stdin=subprocess.DEVNULL, env=environ
        )
    except FileNotFoundError:
        raise FleetError("git is not installed here: it knows which files are code", remedy="install git") from None
    return os.fsdecode(done.stdout).strip("\n") if done.returncode == 0 else ""


def _names(root: Path) -> list[str]:
    if not _git(root, "rev-parse", "--show-toplevel"):
        raise FleetError(
            f"{root} is in no git checkout: git says which files are code and which are not",
            remedy="git init there (and a .gitignore), or name the project's folder with --root",
        )
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return sorted({name for name in listed if name})


def _changed(root: Path) -> list[str]:
    told = _git(root, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--", ".")
    prefix = _git(root, "rev-parse", "--show-prefix")
    return sorted(entry[3:].removeprefix(prefix) for entry in told.split("\0") if len(entry) > 3)


def _members(root: Path, names: Sequence[str]) -> tuple[list[_Member], dict[str, str]]:
    members: list[_Member] = []
    left_out: dict[str, str] = {}
    total = 0
    for name in names:
        path = root / name
        if _secret(name):
            left_out[name] = "it may hold a secret, by its name"
        elif path.is_symlink():
            link = os.readlink(path)
            inside = not os.path.isabs(link) and not os.path.relpath(path.parent / link, root).startswith("..")
            if inside:
                members.append(_Member(name=name, mode=0o777, data=b"", link=link))
            else:
                left_out[name] = "it is a link that leads out of the project"
        elif path.is_dir():
            left_out[name] = "it is a repository of its own (a submodule, or a nested checkout)"
        elif path.is_file():
            total += path.stat().st_size
            if total > LIMIT_BYTES:
                raise _too_large(root, names)
            mode = 0o755 if os.access(path, os.X_OK) else 0o644
            members.append(_Member(name=name, mode=mode, data=path.read_bytes()))
        elif path.exists():
            left_out[name] = "it is no plain file"
    return members, left_out  # what is tracked and was deleted is simply not there


def _secret(name: str) -> bool:
    parts = PurePosixPath(name.lower()).parts
    if any(fnmatch.fnmatchcase(parts[-1], pattern) for pattern in NOT_SECRETS):
        parts = parts[:-1]
    return any(fnmatch.fnmatchcase(part, pattern) for part in parts for pattern in SECRETS)


def _too_large(root: Path, names: Sequence[str]) -> FleetError:
    sizes = {name: (root / name).stat().st_size for name in names if (root / name).is_file()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    told = ", ".join(f"{name} ({sizes[name] / 1e6:.0f} MB)" for name in largest)
    return FleetError(
        f"{root} has {sum(sizes.values()) / 1e6:.0f} MB of files that git does not ignore; the largest: {told}",
        remedy="put data and weights into .gitignore, and ship weights by digest: neuronbench weights put FOLDER",
    )


def _write(path: Path, members: Sequence[_Member]) -> None:
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in members:
            info = tarfile.TarInfo(member.name)  # owner root, time 0: nothing of this machine
            info.mode, info.size = member.mode, len(member.data)
            if member.link:
                info.type, info.linkname = tarfile.SYMTYPE, member.link
            archive.addfile(info, io.BytesIO(member.data))


def _tree(members: Sequence[_Member]) -> str:
    state = hashlib.sha256()
    for member in members:
        content = member.link.encode() if member.link else hashlib.sha256(member.data).digest()
        state.update(os.fsencode(member.name) + b"\0" + f"{member.mode:o}".encode() + b"\0" + content + b"\0")
    return state.hexdigest()


def _some(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
