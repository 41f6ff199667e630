"""`neuronbench load`: laws of arrival, spread lengths, prefixes, traces, sessions, repeats, verdicts on limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuronbench import cli
from neuronbench.standalone.asked import Asked, lengths, rates
from neuronbench.testing.truth_server import TruthServer


@pytest.fixture(scope="module")
def truth() -> Iterator[TruthServer]:
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        yield server


def load(tmp_path: Path, url: str, *arguments: str) -> tuple[int, Any]:
    (tmp_path / "pyproject.toml").write_text("")
    path = tmp_path / "result.json"
    base = ["--output-tokens", "3"] if "--output-tokens" not in arguments else []
    status = cli.main(["--root", str(tmp_path), "load", url, *base, *arguments, "--json", str(path)])
    return status, json.loads(path.read_text()) if path.is_file() else None


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("--arrivals", "gamma", "--burstiness", "0.5", "--rate", "30"), "gamma"),
        (("--arrivals", "burst", "--burst-size", "4", "--rate", "30"), "burst"),
        (("--arrivals", "ramp", "--rate", "10", "--rate-end", "40"), "poisson"),
        (("--arrivals", "steps", "--rates", "10,30"), "poisson"),
        (("--rate", "8", "--turns", "2", "--think-time", "0.05"), "poisson"),
    ],
)
def test_arrivals_of_every_kind(truth: TruthServer, tmp_path: Path, arguments: tuple[str, ...], kind: str) -> None:
    status, document = load(tmp_path, truth.url, "--duration", "1", "--input-tokens", "8", *arguments)
    assert status == 0
    said = document["workload"]["arrivals"]
    assert said["kind"] == "open"
    assert said["law"] == kind
    assert document["requests"]["scheduled"] > 0
    assert document["requests"]["failed"] == 0
    assert document["asked"]["described"]


def test_spread_lengths_are_what_the_server_counted(truth: TruthServer, tmp_path: Path) -> None:
    status, document = load(
        tmp_path, truth.url, "--concurrency", "4", "--requests", "40", "--input-tokens", "10..40", "--out",
        str(tmp_path / "out"), "--output-tokens", "2..5",
    )  # fmt: skip
    assert status == 0
    import pyarrow.parquet as parquet

    table = parquet.read_table(tmp_path / "out" / "requests.parquet")
    given, answered = set(table["input_tokens"].to_pylist()), set(table["output_tokens"].to_pylist())
    assert len(given) > 5
    assert min(given) >= 10
    assert max(given) <= 40
    assert answered <= {2, 3, 4, 5}
    assert document["metrics"]["input_tokens_tokens"]["mean"] == pytest.approx(25, abs=8)


def test_shared_beginnings_hit_the_prefix_cache(tmp_path: Path) -> None:
    with TruthServer(ttft_ms=5, tpot_ms=1, prefix_cache=True) as server:
        status, _ = load(
            tmp_path, server.url, "--concurrency", "2", "--requests", "20", "--input-tokens", "96", "--shared-prefix",
            "64", "--prefix-groups", "2", "--output-tokens", "2",
        )  # fmt: skip
        hits = server.truth()["requests"]
    assert status == 0
    assert len(hits) >= 20


def test_a_trace_gives_instants_and_lengths(truth: TruthServer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"at_s": 0.05 * n, "input_tokens": 5 + n, "output_tokens": 2} for n in range(20)]
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    status, document = load(tmp_path, truth.url, "--trace", str(trace))
    assert status == 0
    assert document["requests"]["scheduled"] == 20
    assert "trace.jsonl" in document["asked"]["described"]


def test_responses(truth: TruthServer, tmp_path: Path) -> None:
    status, document = load(
        tmp_path, truth.url, "--api", "responses", "--requests", "8", "--input-tokens", "20", "--concurrency", "2"
    )
    assert status == 0
    assert document["asked"]["api"] == "responses"
    assert document["metrics"]["ttft_ms"]["p50"] is not None


def test_repeats_have_other_prompts_and_a_spread(truth: TruthServer, tmp_path: Path, capsys: Any) -> None:
    status, document = load(
        tmp_path, truth.url, "--repeats", "3", "--requests", "12", "--concurrency", "2", "--input-tokens", "9",
        "--slo", "ttft=1000", "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert status == 0
    assert len(document["repeats"]) == 3
    assert len({each["workload"]["digest"] for each in document["repeats"]}) == 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["repeat-1", "repeat-2", "repeat-3"]
    good = [each for each in document["repeats"] if each["validity"] != "invalid"]
    if good:
        spread = document["spread"]["ttft_p50_ms"]
        assert spread["n"] == len(good)
        assert spread["smallest"] <= spread["median"] <= spread["largest"]
        if len(good) > 1:
            assert spread["low"] <= spread["mean"] <= spread["high"]
    tests = document["repeats"][0]["slo_tests"]["ttft"]
    assert tests["within"] >= 12
    assert tests["beyond"] == 0
    assert tests["verdict"] == "undecided"
    assert tests["more"] == 459 - tests["within"]  # MLPerf's fewest for p99 with none beyond
    last = document["repeats"][-1]["slo_tests"]["ttft"]["more"]
    assert f"{last} more within it would show it" in capsys.readouterr().out


def test_limits_are_settled_at_the_share_asked_for(truth: TruthServer, tmp_path: Path, capsys: Any) -> None:
    base = ("--requests", "60", "--concurrency", "8", "--input-tokens", "9", "--slo-percentile", "90")
    _, document = load(tmp_path, truth.url, *base, "--slo", "ttft=0.001")
    assert document["slo_tests"]["ttft"]["verdict"] == "missed"
    assert "slo_shown" not in document  # nobody asked for a verdict to end with
    status, document = load(
        tmp_path, truth.url, *base, "--slo", "ttft=1000", "--slo-test", "--model", "truth:miscount,by=5"
    )
    assert document["slo_tests"]["ttft"]["verdict"] == "met"  # by the counts alone
    assert document["validity"] == "invalid"  # the server's counters say other tokens than its answers
    assert status == 1
    assert document["slo_shown"]["kept"] is False
    ending = "not as wanted: ttft ≤ 1000 ms: nothing is shown by an invalid measurement"
    assert capsys.readouterr().out.splitlines()[-1] == ending


def test_a_test_of_limits_sends_what_it_takes_and_ends_with_its_verdict(truth: TruthServer, tmp_path: Path) -> None:
    base = ("--concurrency", "8", "--input-tokens", "9", "--slo-test", "--slo-percentile", "50")
    status, document = load(tmp_path, truth.url, *base, "--slo", "ttft=2000")
    kept = document["validity"] != "invalid"  # which a busy host can make it, and then it shows nothing
    assert status == (0 if kept else 1)
    assert document["slo_shown"]["kept"] is kept
    assert document["slo_tests"]["ttft"]["verdict"] == "met"
    assert document["requests"]["scheduled"] >= 11  # the fewest for a median, by MLPerf's rule
    assert load(tmp_path, truth.url, *base, "--slo", "ttft=0.001")[0] == 1


@pytest.mark.parametrize("arguments", [(), ("--slo", "ttft=5", "--slo-percentile", "100")])
def test_a_test_of_no_limit_is_refused(truth: TruthServer, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert load(tmp_path, truth.url, "--slo-test", *arguments) == (2, None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"law": "gamma", "rate": 1.0}, "--burstiness"),
        ({"burstiness": 2.0, "rate": 1.0}, "--arrivals gamma"),
        ({"law": "burst", "rate": 1.0}, "--burst-size"),
        ({"law": "ramp", "rate": 1.0}, "--rate-end"),
        ({"law": "steps"}, "--rates"),
        ({"law": "constant"}, "--rate"),
        ({"turns": 2}, "--rate"),
        ({"turns": 2, "rate": 1.0, "law": "gamma", "burstiness": 1.0}, "poisson or constant"),
        ({"think_s": 1.0}, "--turns"),
        ({"trace": Path("x"), "rate": 1.0}, "--trace"),
        ({"prefix_tokens": 3, "prefix_hit_ratio": 0.5}, "either"),
        ({"prefixes": 3}, "--shared-prefix"),
    ],
)
def test_what_contradicts_itself_is_told(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Asked(**given)


@pytest.mark.parametrize("text", ["0", "-1", "a", "5..", "9..3", "lognormal:5", "lognormal:9:0:20", "1e3", ""])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="--input-tokens"):
        lengths("--input-tokens", text)


def test_lengths_and_rates() -> None:
    assert lengths("x", "256") == 256
    spread = lengths("x", "lognormal:200:0.5:900")
    assert not isinstance(spread, int)
    assert (spread.kind, spread.median, spread.high) == ("lognormal", 200.0, 900)
    assert rates("1,2.5") == (1.0, 2.5)
    with pytest.raises(ValueError, match="--rates"):
        rates("1,x")


def test_special_loads_refuse_what_does_not_go_with_them(truth: TruthServer, tmp_path: Path, capsys: Any) -> None:
    for arguments in (
        ("--arrivals", "gamma", "--burstiness", "1", "--rate", "5"),
        ("--arrivals", "gamma", "--burstiness", "1", "--rate", "5", "--duration", "1", "--concurrency", "2"),
        ("--arrivals", "burst", "--burst-size", "2", "--rate", "5", "--duration", "1", "--engine", "vllm"),
    ):
        status, document = load(tmp_path, truth.url, *arguments)
        assert (status, document) == (2, None)
        assert "neuronbench: " in capsys.readouterr().err
