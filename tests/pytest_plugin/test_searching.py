"""The highest rate under limits and the audits of a server, as benchmarks: what the record and the receipt have."""

from __future__ import annotations

import pyarrow.parquet as parquet

BENCH = """
@nb.bench(lane="serving")
def bench_rate(endpoint, measure):
    measure.search_rate(endpoint, nb.synthetic(input_tokens=8, output_tokens=3), slo={"ttft": 2000.0, "tpot": 500.0},
                        percentile=0.5, start=10.0, highest=10.0)

@nb.bench(lane="serving")
def bench_audit(endpoint, measure):
    measure.audit(endpoint)
"""


def test_a_rate_and_an_audit_are_records_with_numbers(project) -> None:
    project.in_process = False
    project.bench(BENCH)
    result = project.run("-m", "truth", "-v")
    result.assert_outcomes(passed=2)
    records = {record["point"]["benchmark"].rpartition("bench_")[2]: record for record in project.records()}
    found = records["rate"]
    assert found["metrics"]["max_rate_under_slo_req_s"]["value"] == 10.0
    assert found["metrics"]["max_rate_under_slo_req_s"]["low"] == 10.0
    assert found["metrics"]["goodput_req_s"]["value"] > 0
    assert {
        "search_decided", "search_unspoiled", "search_on_time", "search_asked_rate", "search_samples", "search_window",
        "host_contended", "telemetry", "token_conservation",
    } <= {gate["id"] for gate in found["gates"]}  # fmt: skip
    result.stdout.fnmatch_lines(["*met at 10 req/s: ttft ≤ 2000 ms, tpot ≤ 500 ms for 50 % of requests*"])
    assert found["workload"]["search"]["steps"][0]["verdict"] == "met"
    folder = project.receipts / found["session"] / found["name"]
    loads = parquet.read_table(folder / found["tables"]["search"]).to_pylist()
    assert loads
    assert all(row["rate_req_s"] == 10.0 for row in loads)
    assert not list(folder.glob(".search*"))
    sampled = parquet.read_table(folder / found["tables"]["telemetry"])
    assert {"host", "server"} <= set(sampled["sampler"].to_pylist())
    audit = records["audit"]
    assert audit["metrics"]["audits_passed_audits"]["value"] == audit["metrics"]["audits_passed_audits"]["n"] == 3
    assert {"audit_caching", "audit_first_token", "audit_output_tokens"} <= {gate["id"] for gate in audit["gates"]}
    assert not [gate for gate in audit["gates"] if gate["id"] == "measured"]
