"""`--nb-profile` on servers, as a user runs it on made-up hosts: who is captured, how and when. On compiled models: see
`test_compiled_e2e`, which has some."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lean_stack import SESSION
from neuron_boxes import PACKAGES, PROJECT
from neuronbench_neuron.serving import profiled
from serving_neuron import BASE, STACKS, make_model, point

from neuronbench import config
from neuronbench.plugins import Plugins
from neuronbench.session import Session
from neuronbench.testing.neuron import FakeBox, neuron_profiler


class Run:
    """A run of pytest with a profile asked for, and what it left."""

    def __init__(self, box: FakeBox, folder: Path, what: str, *words: str, **environ: str) -> None:
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", what, "-m", box.shape.instance.family, *SESSION, "-rs",
                "--nb-tracking-uri", "off", "--nb-data-root", str(folder / "data"), "--nb-profile", *words,
            ],
            cwd=PROJECT, capture_output=True, text=True, timeout=250, stdin=subprocess.DEVNULL,
            env=box.environ(
                XDG_CACHE_HOME=str(folder / "xdg"), NEURONBENCH_CACHE_DIR=str(folder / "cache"), **environ
            ),
        )  # fmt: skip
        self.status, self.text = done.returncode, " ".join((done.stdout + done.stderr).split())
        self.found = [
            (json.loads(path.read_text(encoding="utf-8")), path.parent)
            for path in sorted((folder / "data").glob("receipts/*/*/record.json"))
        ]

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [record for record, _ in self.found if record["kind"] == kind and record["outcome"] != "skipped"]

    def receipt(self, record: dict[str, Any]) -> Path:
        return next(folder for found, folder in self.found if found is record)


def gates(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {gate["id"]: gate for gate in record["gates"]}


def server(box: FakeBox, folder: Path, *words: str, **environ: str) -> Run:
    told = {"model": f"file:{make_model(folder / 'model')}", "window_s": "1", "max_num_seqs": "4", "input_tokens": "64"}
    given = [word for name, value in told.items() for word in ("--nb-set", f"{name}={value}")]
    return Run(box, folder, "benchmarks/serving", "-k", "closed_loop", *given, *words, **environ)


def serving(shape: str, id: str, folder: Path) -> FakeBox:
    box = FakeBox(shape, folder / "box")
    box.venv("aws_neuronx_venv_serving", packages={**BASE, **STACKS[id]}, paths=[PACKAGES])
    return box


@pytest.mark.parametrize(
    ("shape", "id", "mode", "kept"),
    [("inf2.xlarge", "1b", "model", "_instid_0_vnc_0.ntff"), ("trn2.3xlarge", "2b", "session", "_session_0.ntff")],
)
def test_a_server_is_captured_from_a_start_of_its_own(
    shape: str, id: str, mode: str, kept: str, tmp_path: Path
) -> None:
    with serving(shape, id, tmp_path) as box:
        neuron_profiler.install(box)
        run = server(box, tmp_path, "--nb-set", "concurrency=1,2")
    assert run.status == 0, run.text
    boots, points = run.records("boot"), run.records("point")
    assert len(boots) == len(points) == 2  # each point has a server, which ends with it
    for record in (*boots, *points):
        assert gates(record)["profiled"]["passed"] is False
        assert record["validity"] == "invalid"
    for record in points:
        assert record["resource"]["facts"]["profile"] == mode
        traces = record["workload"]["profile"]["traces"]
        assert traces
        for trace in traces:
            assert trace["metrics"]["mbu_estimated_percent"] == 0.3199
            assert (run.receipt(record) / trace["summary"]).is_file()
        files = [path.name for path in (run.receipt(record) / "profile").iterdir()]
        assert any(name.endswith(kept) for name in files), files
        assert any(name.endswith(".neff") for name in files), files
    assert not list((tmp_path / "cache" / "neuron-profiles").iterdir())


def test_a_failed_point_leaves_no_server_that_is_captured_on(tmp_path: Path) -> None:
    with serving("inf2.xlarge", "1b", tmp_path) as box:
        neuron_profiler.install(box, fault="crash")
        run = server(box, tmp_path, "--nb-set", "concurrency=1")
    assert run.status == 1
    (record,) = run.records("point")
    assert record["outcome"] == "error"
    assert record["error"]["kind"] == "profile_failed"
    assert gates(record)["profiled"]["passed"] is False
    assert not list((tmp_path / "cache" / "neuron-profiles").iterdir())


@pytest.mark.parametrize(
    ("id", "tool", "params", "said"),
    [
        ("1b", "", {}, "profile: neither neuron-explorer nor neuron-profile is on PATH"),
        ("2b", "neuron-profile", {}, "this one has to be of a whole session"),
        ("2b", "neuron-explorer", {}, ""),
        ("1b", "neuron-profile", {}, ""),
        (
            "1b", "neuron-explorer", {"server_env": {"NEURON_RT_INSPECT_ENABLE": "1"}},
            "NEURON_RT_INSPECT_ENABLE of the point's own environment: ask for --nb-profile",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_captured_is_refused_before_anything_boots(
    id: str, tool: str, params: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving("trn2.3xlarge" if id == "2b" else "inf2.xlarge", id, tmp_path) as box:
        if tool:
            neuron_profiler.install(box, tool)
        for name, value in box.environ(PATH=f"{box.bin}:/bin:/usr/bin").items():
            monkeypatch.setenv(name, value)
        family = box.shape.instance.family
        session = Session(config.load(tmp_path), Plugins())
        given = {"model": f"file:{make_model(tmp_path / 'model')}", "max_model_len": 512, "profile": True, **params}
        verdict = session.unsupported(point(family, **given), ["endpoint"])
        found = verdict.reason if verdict is not None else ""
        assert said in found
        assert bool(said) == bool(found)

        # a server that somebody else started is nothing that can be captured, whatever is installed
        session.settings = dataclasses.replace(session.settings, endpoint="http://127.0.0.1:9")
        verdict = session.unsupported(session.at_endpoint(point(family, **given)), ["endpoint"])
        assert verdict is not None
        assert "was started by somebody else" in verdict.reason


def test_a_profiled_server_is_nobody_elses_and_compiles_nothing_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving("inf2.xlarge", "1b", tmp_path) as box:
        for name, value in box.environ().items():
            monkeypatch.setenv(name, value)
        session = Session(config.load(tmp_path), Plugins())
        given = {"model": f"file:{make_model(tmp_path / 'model')}"}
        plain = session.spec(point("inf2", **given), "endpoint")
        one = session.spec(point("inf2", **given, profile=True), "endpoint")
        other = session.spec(dataclasses.replace(point("inf2", **given, profile=True), id="q"), "endpoint")
        compiled = [
            session.spec(dataclasses.replace(point("inf2", **given, **more), id=id), "compiled_model").key
            for id, more in (("p", {}), ("p", {"profile": True}), ("q", {"profile": True}))
        ]
    assert len({plain.key, one.key, other.key}) == 3
    assert len(set(compiled)) == 3
    assert plain.settings == {name: value for name, value in one.settings.items() if name not in profiled.SETTINGS}
