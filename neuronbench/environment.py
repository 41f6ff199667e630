"""Facts of host, stack and harness that stand in every record, and the key that says which results compare.

Facts have a namespace: `host.*`, `harness.*`, `git.*`, `stack.*`, `backend.*`, `env.*`, and those of plugins. What is
not known is null. Secrets are redacted and the host's name is only a digest.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench.model import Environment, FrozenMap, Json, fingerprint
from neuronbench.redaction import is_secret_name
from neuronbench.redaction import redact as redact
from neuronbench.redaction import redact_argv as redact_argv
from neuronbench.stacks import KINDS

if TYPE_CHECKING:
    from neuronbench.config import Settings
    from neuronbench.protocols import Backend

COMPARABLE: Final = (
    "backend.name", "backend.instance_type", "backend.driver", "backend.sdk", "backend.runtime", "backend.cores",
    "backend.simulated",
    "host.arch", "host.cpu_model", "host.cores",
    "stack.*", "env.*",
)  # fmt: skip
"""Names (or patterns) of the facts that must be equal for two results to be comparable: the environment key is the
digest of these. Model and benchmark are not among them; they are part of the point. Variables of the accelerator's
software count unless they are known to change no result (`INDIFFERENT`): one that nobody here has heard of may."""

INDIFFERENT: Final = (
    # where things are, and which of several equal cores
    "env.*_CACHE", "env.*_CACHE_DIR", "env.*_CACHE_ROOT", "env.*_CACHE_URL", "env.*_CACHE_REPO", "env.*_CONFIG_ROOT",
    "env.*_HOME", "env.*_OUTPUT_DIR", "env.HF_ENDPOINT", "env.HF_HUB_*", "env.HF_TOKEN*", "env.HF_DATASETS_OFFLINE",
    "env.TRANSFORMERS_OFFLINE", "env.NEURONBENCH_*", "env.NEURON_COMPILED_ARTIFACTS", "env.VLLM_ASSETS_*",
    "env.*_VISIBLE_CORES", "env.*_VISIBLE_DEVICES", "env.NEURON_PROCESS_TAG",
    # what is logged, told to others or waited for
    "env.*_LOG_LEVEL", "env.*_LOG_LOCATION", "env.*_LOGGING*", "env.*_LOGS", "env.*_VERBOSITY", "env.*_TIMEOUT",
    "env.*_TIMEOUT_*", "env.VLLM_NO_USAGE_STATS", "env.VLLM_DO_NOT_TRACK", "env.VLLM_USAGE_SOURCE",
    "env.VLLM_API_KEY", "env.*_PROGRESS_BARS", "env.NEURON_PARALLEL_COMPILE_*", "env.VLLM_NEURON_PARALLEL_*",
    "env.VLLM_NEURON_ASSERT_CACHE_HIT", "env.TOKENIZERS_PARALLELISM",
)  # fmt: skip
"""Variables that change no result, as patterns."""

HARNESS_PACKAGES: Final = (
    "httptools", "huggingface_hub", "mlflow", "numpy", "orjson", "pluggy", "psutil", "pyarrow", "pytest",
    "pytest-benchmark", "scipy", "uvloop",
)  # fmt: skip

ENV_PREFIXES: Final = (
    "NEURON_", "NEURONX_", "NEURONBENCH_", "VLLM_", "HF_", "TRANSFORMERS_", "OMP_", "KMP_", "GOMP_", "MKL_",
    "OPENBLAS_",
    "XLA_", "PJRT_", "FI_", "TORCH", "PYTORCH_", "CUDA_VISIBLE_DEVICES", "NCCL_", "TOKENIZERS_", "MALLOC_",
    "LD_PRELOAD", "GLIBC_TUNABLES", "CPU_COMPILE", "NKI_", "NXD_", "AWS_NEURON_", "DISABLE_NEURON_",
    "CUSTOM_CACHE_REPO",
)  # fmt: skip


def describe(
    backend: Backend,
    plugin_facts: Mapping[str, Json],
    settings: Settings,
    stack_versions: Mapping[str, Json] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Environment:
    """All facts for records on `backend`.

    `plugin_facts`: what the hook `describe_environment` gave, under namespaced keys. `stack_versions`: distribution →
    version of the stack in use; by default the backend is asked for its stacks (a missing one is no error).
    """
    environ = os.environ if environ is None else environ
    facts: dict[str, Json] = {**host_facts(), **harness_facts(), **git_facts(settings.root), **code_facts(environ)}
    facts["backend.name"] = backend.info.name
    try:
        given: Mapping[str, Json] = FrozenMap(backend.facts())
    except Exception as error:  # a plugin's defect must not cost the record
        given = {"error": f"facts: {type(error).__name__}: {error}"}
    for name, value in given.items():
        facts[name if "." in name else f"backend.{name}"] = value
    if stack_versions is None:
        facts.update(_stack_facts(backend, settings))
    else:
        facts.update({f"stack.{name}": version for name, version in stack_versions.items()})
    from neuronbench import costs  # with the catalogue of instances, which a probe of the host can do without

    facts.update(costs.price_facts(facts, settings.price))
    facts.update(environment_facts(environ))
    for name, value in plugin_facts.items():
        facts.setdefault(name, value)
    clean = {name: redact(value) if isinstance(value, str) else value for name, value in sorted(facts.items())}
    return Environment(facts=FrozenMap(clean), key=key_of(clean))


def key_of(facts: Mapping[str, Json]) -> str:
    """Digest over the comparable facts (see `is_comparable`)."""
    return fingerprint({name: value for name, value in facts.items() if is_comparable(name)})


@functools.lru_cache(maxsize=4096)
def is_comparable(name: str) -> bool:
    """Whether two results with other values of the fact `name` are not comparable."""
    counts, indifferent = _patterns()
    return counts.match(name) is not None and indifferent.match(name) is None


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    def compiled(patterns: Sequence[str]) -> re.Pattern[str]:
        return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns))

    return compiled(COMPARABLE), compiled(INDIFFERENT)


def _stack_facts(backend: Backend, settings: Settings) -> dict[str, Json]:
    """Versions of the serving stack as `stack.<name>`; those of another interpreter as `stack.<kind>.<name>`."""
    facts: dict[str, Json] = {}
    seen: list[Path] = []
    for kind in KINDS:
        try:
            stack = backend.stack(kind, settings)
        except LookupError:
            continue
        if stack.python in seen:
            continue
        prefix = f"stack.{kind}." if seen else "stack."
        facts.update({f"{prefix}{name}": version for name, version in stack.packages.items()})
        seen.append(stack.python)
    return facts


def environment_facts(environ: Mapping[str, str]) -> dict[str, Json]:
    """Variables that can change results (by `ENV_PREFIXES`); of secrets only whether they are set."""
    facts: dict[str, Json] = {}
    for name, value in environ.items():
        if name.startswith(ENV_PREFIXES):
            facts[f"env.{name}"] = "set" if is_secret_name(name) else redact(value)
    return facts


# --------------------------------------------------------------------------------------------------------------------
# harness


def harness_facts() -> dict[str, Json]:
    """Versions of neuronbench, its interpreter and the packages that touch numbers."""
    facts: dict[str, Json] = {"harness.python": platform.python_version(), "harness.argv": redact_argv(sys.argv)}
    for name in ("neuronbench", *HARNESS_PACKAGES):
        try:
            facts[f"harness.{name.replace('_', '-')}"] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[f"harness.{name.replace('_', '-')}"] = None
    return facts


def git_facts(root: Path) -> dict[str, Json]:
    """Commit, branch and whether tracked files differ, of the checkout that `root` is in; null outside of one."""

    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments],
                capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return {"git.commit": None, "git.branch": None, "git.dirty": None}
    changed = ask("status", "--porcelain")  # an untracked benchmark is in no commit either
    return {
        "git.commit": commit,
        "git.branch": ask("rev-parse", "--abbrev-ref", "HEAD"),
        "git.dirty": None if changed is None else bool(changed),
    }


def code_facts(environ: Mapping[str, str]) -> dict[str, Json]:
    """What code was shipped here, by the word of what shipped it (`neuronbench fleet run`); empty elsewhere.

    `code.sha256` is the hash of the archive. The shipped tree is no checkout: commit, branch and whether the tree
    differed from the commit are those of the checkout it was made of.
    """
    sha256 = environ.get("NEURONBENCH_CODE_SHA256")
    if not sha256:
        return {}
    facts: dict[str, Json] = {"code.sha256": sha256}
    if commit := environ.get("NEURONBENCH_CODE_COMMIT"):
        facts["git.commit"] = commit
        facts["git.branch"] = environ.get("NEURONBENCH_CODE_BRANCH") or None
        facts["git.dirty"] = environ.get("NEURONBENCH_CODE_DIRTY") == "1"
    return facts


# --------------------------------------------------------------------------------------------------------------------
# host


@functools.lru_cache(maxsize=4)
def host_facts(root: Path = Path("/")) -> Mapping[str, Json]:
    """What the host is. `root` replaces `/` when `/proc` and `/sys` are read."""
    import psutil

    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return FrozenMap(
        {
            "host.id": hashlib.blake2b(socket.gethostname().encode(), digest_size=6).hexdigest(),
            "host.system": platform.system(),
            "host.kernel": platform.release(),
            "host.arch": platform.machine(),
            "host.cpu_model": _cpu_model(root),
            "host.cores": affinity,
            "host.cores_logical": os.cpu_count(),
            "host.cores_physical": psutil.cpu_count(logical=False),
            "host.cpu_quota_cores": _cpu_quota(root),
            "host.memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "host.memory_limit_gib": _memory_limit_gib(root),
            "host.swap_gib": round(psutil.swap_memory().total / 2**30, 1),
            "host.governor": _read(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "host.turbo": _turbo(root),
            "host.container": _container(root),
        }
    )


def _read(root: Path, name: str) -> str | None:
    try:
        return (root / name).read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _cpu_model(root: Path) -> str | None:
    for line in (_read(root, "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return " ".join(value.split())
    if platform.system() == "Darwin" and root == Path("/"):
        done = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=5)
        return done.stdout.strip() or None
    return platform.processor() or None


def _cpu_quota(root: Path) -> float | None:
    """Cores the control group may use; None without a limit."""
    quota, _, period = (_read(root, "sys/fs/cgroup/cpu.max") or "max").partition(" ")
    if quota == "max" or not period:
        return None
    return round(int(quota) / int(period), 2)


def _memory_limit_gib(root: Path) -> float | None:
    limit = _read(root, "sys/fs/cgroup/memory.max") or "max"
    return round(int(limit) / 2**30, 1) if limit.isdigit() else None


def _turbo(root: Path) -> bool | None:
    no_turbo = _read(root, "sys/devices/system/cpu/intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == "0"
    boost = _read(root, "sys/devices/system/cpu/cpufreq/boost")
    return None if boost is None else boost == "1"


def _container(root: Path) -> str | None:
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    group = _read(root, "proc/1/cgroup") or ""
    for name in ("kubepods", "docker", "containerd", "lxc", "libpod"):
        if name in group:
            return name
    return None


def host_warnings(root: Path = Path("/"), *, environ: Mapping[str, str] | None = None) -> list[str]:
    """What on this host makes numbers worse or less steady, each with its remedy. Empty when nothing is found."""
    warnings: list[str] = []
    governor = _read(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor == "powersave" and not (root / "sys/devices/system/cpu/intel_pstate").exists():
        warnings.append(
            "the CPU governor is 'powersave', so clock speed follows the load: set it to 'performance' "
            "(`cpupower frequency-set -g performance`)"
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = (_read(root, "proc/loadavg") or "").split()
    if load and float(load[0]) > 0.5 * cores:
        warnings.append(
            f"the load is {load[0]} on {cores} cores before anything is measured: other processes compete for them; "
            f"end them or wait"
        )
    memory = _meminfo(root)
    swapped = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
    if swapped > 64 << 10:
        warnings.append(
            f"{swapped / 2**20:.1f} GiB are swapped out: pages coming back stall what is measured; free memory, then "
            f"`swapoff -a && swapon -a`"
        )
    available, total = memory.get("MemAvailable"), memory.get("MemTotal")
    if available and total and available < 0.1 * total:
        warnings.append(f"only {available / 2**20:.1f} GiB of memory are free: end what is not needed")
    steal = _steal_share(root)
    if steal is not None and steal > 0.02:
        warnings.append(
            f"the hypervisor has taken {steal:.0%} of the CPU time since boot (steal): use a host that is not "
            f"oversubscribed, or a larger instance"
        )
    return warnings


def _meminfo(root: Path) -> dict[str, int]:
    """`/proc/meminfo` in KiB."""
    out: dict[str, int] = {}
    for line in (_read(root, "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            out[name] = int(words[0])
    return out


def _steal_share(root: Path) -> float | None:
    first = (_read(root, "proc/stat") or "").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu":
        return None
    ticks = [int(word) for word in first[1:9]]
    total = sum(ticks)
    return ticks[7] / total if total else None
