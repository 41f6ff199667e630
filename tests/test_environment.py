"""Facts, the key over the comparable ones, warnings about the host."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
from pathlib import Path

import pytest

from neuronbench import config, environment
from neuronbench.model import FrozenMap
from neuronbench.protocols import BackendInfo, Probe, Stack


class Backend:
    info = BackendInfo(name="zoo", title="Zoo", target="", family="zoo")

    def __init__(self, versions: dict[str, str] | None = None, train: str = "/s/python") -> None:
        self.versions, self.train = versions, train

    def probe(self) -> Probe:
        return Probe(available=True)

    def stack(self, kind: str, settings: object) -> Stack:
        if self.versions is None or kind == "compile":
            raise LookupError("none")
        python = Path(self.train if kind == "train" else "/s/python")
        return Stack(kind=kind, python=python, source="test", packages=FrozenMap(self.versions))

    def facts(self) -> dict[str, object]:
        return {"instance_type": "zoo1.xlarge", "neuron.driver": "2.1"}

    def failure_rules(self) -> tuple[()]:
        return ()


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    return config.load(tmp_path, environ={})


def test_facts_have_namespaces_and_no_secrets(settings: config.Settings) -> None:
    environ = {
        "HF_TOKEN": "hf_abcdefghijklmnopqrstuv", "NEURON_CC_FLAGS": "--model-type transformer", "HOME": "/home/x",
        "NEURONBENCH_TRACKING_URI": "http://user:pw123@mlflow:5000", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    found = environment.describe(Backend(), {"zoo.animals": 3}, settings, {"vllm": "0.32"}, environ=environ)
    facts = found.facts
    assert all("." in name for name in facts)
    assert facts["backend.name"] == "zoo"
    assert facts["backend.instance_type"] == "zoo1.xlarge"
    assert facts["neuron.driver"] == "2.1"
    assert facts["zoo.animals"] == 3
    assert facts["stack.vllm"] == "0.32"
    assert facts["env.HF_TOKEN"] == "set"
    assert facts["env.NEURON_CC_FLAGS"] == "--model-type transformer"
    assert facts["env.TOKENIZERS_PARALLELISM"] == "false"
    assert "env.HOME" not in facts
    assert facts["host.cores"] == len(os.sched_getaffinity(0))
    assert facts["host.memory_gib"] > 0
    assert facts["harness.pluggy"]
    text = str(facts)
    assert "hf_abc" not in text
    assert "pw123" not in text
    if len(socket.gethostname()) > 3:
        assert socket.gethostname() not in text.replace(str(settings.root), "")


def test_the_key_follows_what_makes_results_comparable(settings: config.Settings) -> None:
    def key(versions: dict[str, str], **environ: str) -> str:
        return environment.describe(Backend(), {}, settings, versions, environ=environ).key

    base = key({"vllm": "0.32"})
    assert key({"vllm": "0.32"}, HF_HOME="/elsewhere") == base
    assert key({"vllm": "0.33"}) != base
    assert key({"vllm": "0.32"}, NEURON_CC_FLAGS="-O1") != base
    assert key({"vllm": "0.32"}, VLLM_CPU_OMP_THREADS_BIND="0") != base
    for counts in ("NEURON_RT_STOCHASTIC_ROUNDING_EN", "VLLM_NEURON_BACKEND", "XLA_USE_BF16", "LD_PRELOAD"):
        assert key({"vllm": "0.32"}, **{counts: "1"}) != base, counts
    for says_where in ("NEURON_RT_VISIBLE_CORES", "NEURON_COMPILE_CACHE_URL", "VLLM_CACHE_ROOT", "NEURON_RT_LOG_LEVEL"):
        assert key({"vllm": "0.32"}, **{says_where: "1"}) == base, says_where
    assert environment.key_of({"host.cores": 2, "git.commit": "a"}) == environment.key_of({"host.cores": 2})
    assert environment.key_of({"host.cores": 2}) != environment.key_of({"host.cores": 4})


def test_stacks_of_the_backend_are_asked(settings: config.Settings) -> None:
    one = environment.describe(Backend({"vllm": "0.32"}), {}, settings, environ={})
    assert {name for name in one.facts if name.startswith("stack.")} == {"stack.vllm"}
    two = environment.describe(Backend({"vllm": "0.32"}, train="/t/python"), {}, settings, environ={})
    assert {name for name in two.facts if name.startswith("stack.")} == {"stack.vllm", "stack.train.vllm"}
    none = environment.describe(Backend(), {}, settings, environ={})
    assert not any(name.startswith("stack.") for name in none.facts)


def test_git(tmp_path: Path) -> None:
    assert environment.git_facts(tmp_path) == {"git.commit": None, "git.branch": None, "git.dirty": None}

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q", "-b", "trunk")
    (tmp_path / "a").write_text("1", encoding="utf-8")
    git("add", "a")
    git("commit", "-q", "-m", "a")
    commit = git("rev-parse", "HEAD")
    assert environment.git_facts(tmp_path) == {"git.commit": commit, "git.branch": "trunk", "git.dirty": False}
    (tmp_path / "b").write_text("an untracked benchmark is in no commit", encoding="utf-8")
    assert environment.git_facts(tmp_path)["git.dirty"] is True
    (tmp_path / "b").unlink()
    (tmp_path / "a").write_text("2", encoding="utf-8")
    assert environment.git_facts(tmp_path)["git.dirty"] is True


def test_code_that_was_shipped_is_named_by_its_hash_and_by_the_checkout_it_was_made_of(
    settings: config.Settings,
) -> None:
    shipped = {
        "NEURONBENCH_CODE_SHA256": "0f" * 32, "NEURONBENCH_CODE_COMMIT": "3f2a91c0", "NEURONBENCH_CODE_BRANCH": "main",
        "NEURONBENCH_CODE_DIRTY": "1",
    }  # fmt: skip
    found = environment.describe(Backend(), {}, settings, {}, environ=shipped)
    here = environment.describe(Backend(), {}, settings, {}, environ={})
    assert {name: found.facts[name] for name in ("code.sha256", "git.commit", "git.branch", "git.dirty")} == {
        "code.sha256": "0f" * 32, "git.commit": "3f2a91c0", "git.branch": "main", "git.dirty": True,
    }  # fmt: skip
    assert "code.sha256" not in here.facts
    assert found.key == here.key  # other code is told, and compared: that is what one compares for
    alone = environment.describe(Backend(), {}, settings, {}, environ={"NEURONBENCH_CODE_SHA256": "0f" * 32})
    assert alone.facts["git.commit"] is None


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A quiet host as seen through /proc and /sys."""
    write(tmp_path, "proc/loadavg", "0.01 0.02 0.03 1/100 1234")
    write(tmp_path, "proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 900000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    write(tmp_path, "proc/stat", "cpu  100 0 100 10000 0 0 0 0 0 0\n")
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="utf-8")


def test_a_quiet_host_has_no_warnings(host: Path) -> None:
    assert environment.host_warnings(host) == []


@pytest.mark.parametrize(
    ("name", "text", "words", "remedy"),
    [
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave", "governor", "cpupower"),
        ("proc/loadavg", "99.5 1 1 1/1 1", "load is 99.5", "end them"),
        (
            "proc/meminfo",
            "MemTotal: 10 kB\nMemAvailable: 9 kB\nSwapTotal: 9000000 kB\nSwapFree: 0 kB",
            "swapped",
            "swapoff",
        ),
        ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 9 kB\n", "memory are free", "end what"),
        ("proc/stat", "cpu  100 0 100 10000 0 0 0 900 0 0\n", "steal", "oversubscribed"),
    ],
)
def test_warnings_name_cause_and_remedy(host: Path, name: str, text: str, words: str, remedy: str) -> None:
    write(host, name, text)
    (warning,) = environment.host_warnings(host)
    assert words in warning
    assert remedy in warning


def test_a_host_that_tells_nothing(tmp_path: Path) -> None:
    assert environment.host_warnings(tmp_path) == []
    facts = environment.host_facts(tmp_path)
    assert facts["host.governor"] is None
    assert facts["host.turbo"] is None
    assert facts["host.container"] is None


def test_host_files_are_read(host: Path) -> None:
    write(host, "proc/cpuinfo", "processor: 0\nmodel name\t: Zoo   CPU @ 3 GHz\n")
    write(host, "sys/fs/cgroup/cpu.max", "150000 100000\n")
    write(host, "sys/fs/cgroup/memory.max", "2147483648\n")
    write(host, "sys/devices/system/cpu/intel_pstate/no_turbo", "1\n")
    write(host, "proc/1/cgroup", "0::/kubepods/burstable/pod1\n")
    facts = environment.host_facts(host)
    assert facts["host.cpu_model"] == "Zoo CPU @ 3 GHz"
    assert facts["host.cpu_quota_cores"] == 1.5
    assert facts["host.memory_limit_gib"] == 2.0
    assert facts["host.turbo"] is False
    assert facts["host.container"] == "kubepods"
    assert facts["host.governor"] == "performance"


def test_every_documented_variable_of_the_neuron_software_is_recorded() -> None:
    shared = os.environ.get("NEURONBENCH_SHARED")
    table = Path(shared or "/nonexistent", "reference", "neuron_env_vars.csv")
    if not table.is_file():
        pytest.skip("needs the table of variables: set NEURONBENCH_SHARED to the folder that has it")
    with table.open(encoding="utf-8") as file:
        names = [name.strip() for row in csv.DictReader(file) for name in row["name"].split("/")]
    assert len(names) > 50
    assert environment.environment_facts(dict.fromkeys(names, "1")).keys() == {f"env.{name}" for name in names}
