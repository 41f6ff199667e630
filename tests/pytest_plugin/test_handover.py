"""Resources leased one after another within a point, weights shipped to a server, and what fails when they differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LEASES = """
@nb.bench(lane="e2e", leases=("trainer", "endpoint"), params={"model": "base"})
def bench_it(measure, point):
    with measure.lease("trainer") as trainer:
        assert trainer.world_size == 1
        assert trainer.alive()
    with measure.lease("endpoint", model="tuned") as endpoint:
        assert endpoint.spec.settings["model"] == "tuned"
    with measure.lease("endpoint") as endpoint:
        assert endpoint.spec.settings["model"] == "base"
    with measure.lease("trainer", world_size=2) as trainer:
        assert trainer.world_size == 2
    measure.metric("loss", 1.0, stat="last")
"""


@pytest.fixture(autouse=True)
def own_process_and_cache(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.in_process = False
    monkeypatch.setenv("NEURONBENCH_CACHE_DIR", str(project.path / "cache"))


def test_resources_one_after_another(project: Any) -> None:
    """The fake endpoint needs both cores, so each lease makes room for itself."""
    project.bench(LEASES)
    project.run("-m", "fake and e2e").assert_outcomes(passed=1)
    assert project.events("boot", "stop") == [("boot", "tuned"), ("stop", "tuned"), ("boot", "base"), ("stop", "base")]
    (record,) = project.records()
    leases = record["workload"]["leases"]
    assert [(one["kind"], one["spec"].get("model"), one["spec"].get("world_size")) for one in leases] == [
        ("trainer", None, 1), ("endpoint", "tuned", None), ("endpoint", "base", None), ("trainer", None, 2),
    ]  # fmt: skip
    assert record["resource"]["id"] == leases[0]["id"]
    boots = {f"{boot['session']}/{boot['name']}" for boot in project.records("boot")}
    assert {one["boot_receipt"] for one in leases} == boots
    assert len(boots) == 4


def test_what_the_next_point_leases_itself_stays_for_it(project: Any) -> None:
    project.bench(
        """
@pytest.mark.parametrize("size", [1, 2])
@nb.bench(lane="e2e", leases=("trainer", "endpoint"), params={"model": "base"})
def bench_it(measure, size):
    with measure.lease("endpoint", model="made") as endpoint:
        measure.metric("loss", 1.0, stat="last")

@nb.bench(lane="serving", params={"model": "other"})
def bench_other(endpoint, measure):
    measure.metric("loss", 1.0, stat="last")
"""
    )
    project.run("-m", "fake").assert_outcomes(passed=3)
    assert project.events("boot", "stop") == [("boot", "made"), ("stop", "made"), ("boot", "other"), ("stop", "other")]


def test_what_was_leased_is_told_that_its_part_of_the_point_has_ended(project: Any) -> None:
    project.bench(
        """
def told(record, into, *, failed):
    record.notes.append(f"the end: failed={failed}, open={not record.closed}, {into.is_dir()}")

@pytest.mark.parametrize("breaks", [False, True])
@nb.bench(lane="e2e", leases=("endpoint",), params={"model": "base"})
def bench_leased(measure, breaks):
    with measure.lease("endpoint") as endpoint:
        endpoint.point_ends = told
        assert not breaks
    measure.note("after")

@pytest.mark.parametrize("breaks", [False, True])
@nb.bench(lane="serving", params={"model": "other"})
def bench_by_fixture(endpoint, measure, breaks):
    endpoint.point_ends = told
    assert not breaks
    measure.note("before")
"""
    )
    project.run("-m", "fake").assert_outcomes(passed=2, failed=2)
    notes = {(r["point"]["lane"], r["outcome"] == "ok"): r["notes"] for r in project.records()}
    end = "the end: failed={}, open=True, True"
    assert notes["e2e", True] == [end.format(False), "after"]
    assert notes["serving", True] == ["before", end.format(False)]
    assert notes["e2e", False] == notes["serving", False] == [end.format(True)]


def test_resources_beside_each_other_where_the_benchmark_keeps_them_apart(project: Any) -> None:
    """The fake endpoint needs both cores: two of them fit only where one is said to take none."""
    project.bench(
        """
@pytest.mark.parametrize("beside", [False, True])
@nb.bench(lane="e2e", leases=("endpoint",), params={"model": "base"})
def bench_two(measure, beside):
    with measure.lease("endpoint") as one, measure.lease("endpoint", beside=beside, model="tuned") as other:
        assert one.alive()
        assert other.alive()
        measure.metric("loss", float(other.spec.cores), stat="last")
"""
    )
    project.run("-m", "fake and e2e").assert_outcomes(passed=1, failed=1)
    by_outcome = {record["outcome"]: record for record in project.records()}
    assert by_outcome["ok"]["metrics"]["loss_last"]["value"] == 0.0
    (failed,) = (record for outcome, record in by_outcome.items() if outcome != "ok")
    assert "what is used at the same time has to fit together" in failed["error"]["message"]


def test_where_a_resource_cannot_be_had_the_point_is_skipped_before_anything_boots(project: Any) -> None:
    project.bench(LEASES)
    result = project.run("-m", "truth and e2e", "-rs")  # the truth backend offers endpoints only
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no installed plugin offers an 'trainer'*"])
    assert project.events("boot") == []


def test_a_lease_that_cannot_be_is_an_error_with_its_reason(project: Any) -> None:
    project.bench(
        """
@pytest.mark.parametrize("asked", ["too-large", "broken"])
@nb.bench(lane="e2e", leases=("endpoint",))
def bench_it(measure, asked):
    with measure.lease("endpoint", model=asked):
        raise AssertionError("never reached")
"""
    )
    project.run("-m", "fake").assert_outcomes(failed=2)
    errors = {record["point"]["params"]["asked"]: record for record in project.records()}
    assert errors["too-large"]["outcome"] == errors["broken"]["outcome"] == "error"
    assert errors["too-large"]["error"]["kind"] == "unsupported"
    assert "too-large does not fit" in errors["too-large"]["error"]["message"]
    assert errors["broken"]["error"]["causal_line"] == "ValueError: header too large"
    (boot,) = project.records("boot")
    assert errors["broken"]["resource"]["boot_receipt"] == f"{boot['session']}/{boot['name']}"


def test_a_server_of_somebody_else_cannot_serve_what_the_point_makes(project: Any) -> None:
    project.bench(
        """
@nb.bench(lane="e2e", leases=("endpoint",), params={"model": "base"})
def bench_it(measure):
    with measure.lease("endpoint", model="file:/tmp/mine"):
        raise AssertionError("never reached")
"""
    )
    project.run("-m", "fake", "--nb-endpoint", "http://127.0.0.1:9").assert_outcomes(failed=1)
    (record,) = project.records()
    assert "--nb-endpoint" in record["error"]["message"]


SHIP = """
import hashlib, http.server, json, pathlib, threading
from neuronbench import modelfiles

def files(folder):
    return {path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
            for path in folder.iterdir()}

class Chat(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = "Station log: " + asked["messages"][0]["content"].upper()
        assert (asked["temperature"], asked["max_tokens"], self.path) == (0, 8, "/v1/chat/completions")
        body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        if "fail" in asked["messages"][0]["content"]:
            body = b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass

def serve(endpoint, folder, cache):
    hashes = modelfiles.digests(folder, cache_dir=cache)
    endpoint.facts = {"model": {"weights_digest": modelfiles.combined(hashes), "files": hashes}}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint.base_url = f"http://127.0.0.1:{server.server_address[1]}"
    return server

@pytest.mark.parametrize("fault", ["none", "export", "served", "answer"])
@nb.bench(lane="e2e", leases=("endpoint",))
def bench_it(measure, fault, tmp_path):
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "config.json").write_text("{}")
    (exported / "model.safetensors").write_bytes(b"trained")
    told = files(exported)
    if fault == "export":
        (exported / "model.safetensors").write_bytes(b"another")
    shipped = measure.ship(exported, into=tmp_path / "there", files=told)
    if fault == "served":
        (tmp_path / "there" / "model.safetensors").write_bytes(b"another")
    with measure.lease("endpoint", model="there") as endpoint:
        server = serve(endpoint, tmp_path / "there", tmp_path)
        try:
            measure.same_weights(endpoint, shipped)
            given = measure.answers(endpoint, ["hello", "fail" if fault == "answer" else "you"], max_tokens=8)
        finally:
            server.shutdown()
            server.server_close()
    assert given == ["Station log: HELLO", "Station log: YOU"]
"""


def test_what_is_served_is_what_was_shipped_or_the_point_fails_with_both_hashes(project: Any) -> None:
    import hashlib

    trained, another = (hashlib.sha256(word).hexdigest() for word in (b"trained", b"another"))
    project.bench(SHIP)
    project.run("-m", "fake and e2e").assert_outcomes(passed=1, failed=3)
    records = {record["point"]["params"]["fault"]: record for record in project.records()}
    good = records["none"]
    gates = {gate["id"]: gate["passed"] for gate in good["gates"]}
    assert (gates["shipped_whole"], gates["served_is_trained"]) == (True, True)
    assert good["metrics"]["ship_time_s"]["value"] > 0
    assert good["workload"]["shipped"]["files"]["model.safetensors"] == {"bytes": 7, "sha256": trained}
    folder = Path(project.receipts / good["session"] / good["name"])
    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert [line["answer"] for line in lines] == ["Station log: HELLO", "Station log: YOU"]

    export = records["export"]
    assert (export["outcome"], export["error"]["kind"]) == ("error", "weights_mismatch")
    assert trained in export["error"]["message"]
    assert another in export["error"]["message"]
    served = records["served"]
    assert (served["outcome"], served["error"]["kind"]) == ("error", "weights_mismatch")
    (gate,) = [gate for gate in served["gates"] if gate["id"] == "served_is_trained"]
    assert gate["passed"] is False
    assert gate["observed"] in served["error"]["message"]
    assert gate["limit"] in served["error"]["message"]
    assert gate["observed"] != gate["limit"]
    assert "model.safetensors" in served["error"]["message"]
    assert served["validity"] == "invalid"
    assert records["answer"]["error"]["kind"] == "generation_failed"
