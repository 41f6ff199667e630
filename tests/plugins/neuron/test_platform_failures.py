"""Signatures of Neuron failures: a line for every row of the known ones, causes under wrappers, notices, fatal ones."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from typing import Any

import pytest

from neuronbench.failures import UNCLASSIFIED, classify, match

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron import failures

RULES: list[dict[str, Any]] = list(failures.table()["rule"])
SYMPTOMS: list[dict[str, Any]] = list(failures.table()["symptom"])
LOGS = Path(__file__).parents[2] / "data" / "neuron_logs"
ROWS = 58
"""Rows of the table of signatures that the rules answer for."""


def classified(text: str, status: int | None = 1) -> Any:
    return classify(text, phase="boot", exit_status=status, extra_rules=failures.rules())


@pytest.mark.parametrize("entry", RULES, ids=[entry["id"] for entry in RULES])
def test_every_rule_explains_its_own_example(entry: dict[str, Any]) -> None:
    log = "\n".join([*([entry["example_before"]] if "context" in entry else []), entry["example"]])
    found = match(log, phase="boot", extra_rules=failures.rules())
    failure = classified(log)
    if entry.get("notice"):
        assert failure.kind == UNCLASSIFIED
        (notice,) = failures.notices(f"first line\n{entry['example']}\nlast line")
        assert (notice.id, notice.kind) == (entry["id"], entry["kind"])
        assert notice.line == entry["example"].strip()[:400]
    elif entry.get("benign"):
        assert found is None
        assert failure.kind == UNCLASSIFIED
    elif entry.get("wrapper"):
        assert failure.kind == "engine_died"
        assert failure.causal_line == ""
    else:
        assert found is not None
        assert found[0].id == entry["id"]
        assert (failure.kind, failure.fatal) == (entry["kind"], entry.get("fatal", False))
        assert failure.causal_line == entry["example"].strip()
        assert failure.cause
        assert failure.remedy


def test_rules_are_complete() -> None:
    ids = [entry["id"] for entry in (*RULES, *SYMPTOMS)]
    assert len(ids) == len(set(ids))
    for entry in RULES:
        assert entry["layer"], entry["id"]
        if not (entry.get("wrapper") or entry.get("benign")):
            assert entry["cause"], entry["id"]
            assert entry["remedy"], entry["id"]
            assert entry["retry"] in ("no", "once", "yes"), entry["id"]
    for entry in SYMPTOMS:
        assert entry["symptom"], entry["id"]
        assert entry["watched_by"], entry["id"]


@pytest.mark.parametrize("row", range(1, ROWS + 1))
def test_every_row_of_the_table_of_signatures_is_answered(row: int) -> None:
    answering = [entry["id"] for entry in (*RULES, *SYMPTOMS) if row in entry.get("rows", ())]
    assert len(answering) == 1


def shared_rows() -> list[dict[str, str]]:
    path = Path(os.environ.get("NEURONBENCH_SHARED", "/nonexistent"), "reference", "neuron_error_signatures.csv")
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.skipif(not shared_rows(), reason="NEURONBENCH_SHARED does not say where the table of signatures is")
def test_sample_lines_of_the_table_are_classified_by_the_rule_of_their_row() -> None:
    compared = 0
    for row in shared_rows():
        line = row["example"]
        owner = next(entry for entry in (*RULES, *SYMPTOMS) if int(row["id"]) in entry.get("rows", ()))
        described = not row["signature_regex"] or not re.search(row["signature_regex"], line)
        if described or "pattern" not in owner or int(row["id"]) in (20, 58):
            continue  # the row describes what happens, and gives no line
        failure = classified(line)
        if owner.get("notice") or owner.get("benign"):
            assert failure.kind == UNCLASSIFIED, line
        else:
            assert failure.kind == owner["kind"], line
        compared += 1
    assert compared >= 20


# -- the cause under what wraps it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "kind", "line"),
    [
        ("engine_core.log", "device_oom", "NCC_EOOM002"),
        ("torchrun.log", "device_busy", "Requested:2 Available:0"),
        ("notices_before.log", "host_oom", "[F137]"),
        ("traceback.log", "path_missing", "libneuronpjrt-path"),
    ],
)
def test_the_causal_line_is_found_under_wrappers_and_notices(log: str, kind: str, line: str) -> None:
    failure = classified((LOGS / log).read_text(encoding="utf-8"))
    assert failure.kind == kind
    assert line in failure.causal_line
    assert failure.remedy


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("RuntimeError: neuronx-cc failed with -9", "host_oom"),
        ("RuntimeError: [NCC_EOOM002] Estimated peak HBM usage exceeds 16.00GB", "device_oom"),
        ("NotImplementedError: Unsupported operator: erf", "unsupported_operator"),
        ("AssertionError: graph has no outputs", "compile_error"),
    ],
)
def test_what_torch_compile_wraps_is_the_cause(raised: str, kind: str) -> None:
    """Its own line comes first, and says nothing but that there was an error."""
    failure = classified(
        "(EngineCore pid=7) Traceback (most recent call last):\n"
        '(EngineCore pid=7)   File "/opt/torch/_inductor/x.py", line 3, in call\n'
        "(EngineCore pid=7) torch._dynamo.exc.BackendCompilerFailed: backend='neuron' raised:\n"
        f"(EngineCore pid=7) {raised}\n\nRuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert failure.kind == kind
    assert raised in failure.causal_line


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ERROR NRT:nrt_load_collectives failed: status=4", "device_oom"),
        ("nrt_init failed with NRT_UNINITIALIZED (13)", "no_device"),
        ("ERROR  TDRV:tdrv_init_mla_phase1  Could not open the nd0", "no_device"),
        ("RuntimeError: nrt_load: NRT_UNSUPPORTED_NEFF_VERSION (10)", "artifact_mismatch"),
        ("[NCC_EOOM001] peak HBM usage 19.46GB exceeds the capacity of 16.00GB", "device_oom"),  # no code of its own
        ("/bin/sh: 1: neuronx-cc: not found", "path_missing"),
    ],
)
def test_other_words_for_the_same(line: str, kind: str) -> None:
    assert classified(f"INFO loading\n{line}\n").kind == kind


def test_notices_are_found_once_each_beside_a_failure() -> None:
    line = "max_num_seqs (32) exceeds worst-case KV cache capacity (18). Effective concurrency will be capped at 18"
    log = f"{line}\n{line}\nINFO Application startup complete.\n"
    assert [notice.id for notice in failures.notices(log)] == ["concurrency-capped"]
    assert "capped at 18" in failures.notices(log)[0].line
    assert failures.notices("INFO Application startup complete.\n") == []


# -- what ends a session -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "ERROR  NRT:nrt_execute  execution failed with NRT_EXEC_HW_ERR_HBM_UE (1201)",
        "RuntimeError: Failed to execute the model status=1203 message=hardware error",
        "ERROR  TDRV:exec  RDR_DATA_AXI_TIMEOUT on queue 3",
        "ERROR  NRT:nrt_init  Failed to initialize devices, error: NRT_TIMEOUT",
        "ERROR  NRT:nrt_allocate_neuron_cores  cores busy, ret=-16",
    ],
)
def test_a_device_that_hangs_ends_the_session(line: str) -> None:
    assert classified(line).fatal
    assert classified(line, status=-9).fatal  # whoever waits for it is killed in the end


@pytest.mark.parametrize(
    "line",
    [
        "[NCC_EOOM001] Estimated peak HBM usage exceeds 16.00GB",
        "RuntimeError: Failed to execute the model status=1003 message=Numerical Error",
        "ERROR  NRT:nrt_execute  execution status=5 message=NRT_TIMEOUT",
        "ERROR  NRT  nrt_tensor_allocate status=4",
        "RuntimeError: Failed to infer device type",
        "NRT:nrt_allocate_neuron_cores  Logical Neuron Core(s) not available - Requested:4 Available:2",
    ],
)
def test_what_concerns_one_point_does_not(line: str) -> None:
    failure = classified(line)
    assert failure.kind != UNCLASSIFIED
    assert not failure.fatal


def test_a_device_that_hangs_ends_the_session_whatever_was_logged_before() -> None:
    """Later points would be measured on it, or fail one by one."""
    failure = classified(
        "ERROR  NRT  nrt_tensor_allocate status=4\nRuntimeError: Engine core initialization failed\n"
        "ERROR  NRT:nrt_execute  execution failed with NRT_EXEC_HW_ERR_DMA_ABORT (1203)\nERROR  NRT  status=4\n"
    )
    assert failure.fatal
    assert failure.kind == "device_wedged"
    assert "DMA_ABORT" in failure.causal_line


@pytest.mark.parametrize("line", ["job status=10034 done", "nrt_load status=42", "worker status=10061"])
def test_longer_numbers_are_no_status_of_the_runtime(line: str) -> None:
    assert classified(line).kind == UNCLASSIFIED


def test_whether_trying_again_can_help() -> None:
    assert failures.retry("compiler-job-failed") == "once"
    assert failures.retry("cached-failed-neff") == "yes"
    assert failures.retry("hardware-error") == "no"
    assert failures.retry("unheard-of") == "no"


def test_ordinary_logs_are_not_taken_for_failures() -> None:
    log = (LOGS / "boot_ok.log").read_text(encoding="utf-8")
    assert match(log, phase="boot", extra_rules=failures.rules()) is None
    assert failures.notices(log) == []
