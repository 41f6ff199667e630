"""The exact code as one archive: the same tree gives the same bytes, and the hash of the bytes is its address.

What goes in is what git sees in the project's folder: tracked files as they are now, changes that were never committed
among them, and new files that git does not ignore. What looks like a secret by its name stays out, and that is said;
so does what was measured here, where git was never told to ignore it.
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


_GIT_S: Final = 120.0
_OF_OTHER_GITS: Final = frozenset(
    {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"}
)


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


def make(root: Path, target: Path, *, require_clean: bool = False, results: Path | None = None) -> Bundle:
    """Write the archive of the project at `root` to the file `target`.

    `results`: the data root. What is in it and not tracked is no code, whatever git ignores.
    Raises `FleetError` where `root` is in no git checkout, for a tree that is too large, and with `require_clean` for
    one that differs from its commit.
    """
    root = root.resolve()
    inside = "" if results is None else _inside(root, results)
    names = _names(root, inside)
    changed = _changed(root, inside)
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
        commit=_git(root, "rev-parse", "-q", "--verify", "HEAD", optional=True),
        branch=_git(root, "rev-parse", "--abbrev-ref", "HEAD", optional=True),
        changed=[_readable(name) for name in changed],
        left_out={_readable(name): why for name, why in left_out.items()},
    )  # fmt: skip


def shipped(root: Path, results: Path | None = None) -> list[str]:
    """Names of the files that `make` would pack, as far as names tell. Raises `FleetError`."""
    root = root.resolve()
    names = _names(root, "" if results is None else _inside(root, results))
    return [name for name in names if not _secret(name) and (root / name).is_file()]


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


def _git(root: Path, *arguments: str, optional: bool = False) -> str:
    """What git answers. Raises `FleetError` where it fails, or with `optional` returns nothing."""
    # a git that runs this (a hook, `rebase --exec`) names its own repository and index, which need not be these
    environ = {name: value for name, value in os.environ.items() if name not in _OF_OTHER_GITS}
    environ |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_GIT_S, stdin=subprocess.DEVNULL, env=environ
        )  # fmt: skip
    except FileNotFoundError:
        raise FleetError("git is not installed here: it knows which files are code", remedy="install git") from None
    except subprocess.TimeoutExpired:
        raise FleetError(
            f"git {arguments[0]} in {root} has not answered for {_GIT_S:.0f} s", remedy="is it on a slow network disk?"
        ) from None
    if done.returncode == 0:
        return os.fsdecode(done.stdout).removesuffix("\n")
    if optional:
        return ""
    said = done.stderr.decode("utf-8", "replace").strip()
    if "not a git repository" in said:
        raise FleetError(
            f"{root} is in no git checkout: git says which files are code and which are not",
            remedy="git init there (and a .gitignore), or name the project's folder with --root",
        )
    # never taken for an empty answer: a state that git cannot tell would be called exactly that of the commit
    raise FleetError(
        f"git {arguments[0]} in {root}: {said or f'exit status {done.returncode}'}",
        remedy=f"what does it take until this works? git -C {root} status",
    )


def _inside(root: Path, results: Path) -> str:
    """The start of the names that are in the data root; empty where it is elsewhere."""
    try:
        below = results.resolve().relative_to(root).as_posix()
    except ValueError:
        return ""
    return "" if below == "." else f"{below}/"


def _names(root: Path, results: str) -> list[str]:
    if _git(root, "rev-parse", "--is-inside-work-tree") != "true":
        raise FleetError(f"{root} has no working tree of git", remedy="name the project's folder with --root")
    tracked = _git(root, "ls-files", "-z", "--cached").split("\0")
    new = _git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return sorted({*filter(None, tracked), *(name for name in new if name and not _below(name, results))})


def _below(name: str, folder: str) -> bool:
    return bool(folder) and name.startswith(folder)


def _changed(root: Path, results: str) -> list[str]:
    told = _git(root, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--", ".")
    prefix = _git(root, "rev-parse", "--show-prefix")
    entries = [(entry[:2], entry[3:].removeprefix(prefix)) for entry in told.split("\0") if len(entry) > 3]
    found = {name for state, name in entries if not (state == "??" and _below(name, results))}
    return sorted(found | set(_unwatched(root)))


def _unwatched(root: Path) -> Iterator[str]:
    """Files that git was told not to look at (assume-unchanged, skip-worktree), where they differ all the same."""
    for entry in _git(root, "ls-files", "-v", "-z").split("\0"):
        mark, name = entry[:1], entry[2:]
        if not (mark == "S" or mark.islower()):
            continue
        committed = _git(root, "ls-files", "-s", "-z", "--", f":(literal){name}").split(" ")[1:2]
        path = root / name
        if path.is_symlink() or not path.is_file() or committed != [_git(root, "hash-object", "--", str(path))]:
            yield name


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
            inside = not os.path.isabs(link) and Path(os.path.relpath(path.parent / link, root)).parts[:1] != ("..",)
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
        content = os.fsencode(member.link) if member.link else hashlib.sha256(member.data).digest()
        state.update(os.fsencode(member.name) + b"\0" + f"{member.mode:o}".encode() + b"\0" + content + b"\0")
    return state.hexdigest()


def _readable(name: str) -> str:
    """A name for people and JSON: bytes that are no UTF-8 are spelt out. The archive has the name as it is."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _some(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
