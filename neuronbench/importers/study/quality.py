"""Receipts of what models answer: fixed prompts, retrieval, accuracy beside a reference, speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronbench.definitions import metric
from neuronbench.engines.base import number
from neuronbench.importers import loops
from neuronbench.importers.base import Imported, mapping, plain, text, whole
from neuronbench.importers.study.failed import failure_of
from neuronbench.importers.study.files import Place
from neuronbench.importers.study.made import as_figures, enough, null, number_of, result, samples_of, telemetry_gates
from neuronbench.model import Gate, Json


def answers(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """Greedy answers to fixed prompts: texts, and a count of tokens that can be seen to be right or not."""
    rows = [mapping(row, "results") for row in _list(data["results"], "results")]
    texts = [row.get("text") for row in rows]
    uncounted = sum(bool(said) and not whole(row.get("n_tokens")) for said, row in zip(texts, rows, strict=True))
    said = sum(isinstance(one, str) and bool(one) for one in texts)
    gate = Gate(
        id="tokens_counted",
        passed=None if not said else uncounted == 0,
        observed=uncounted,
        limit=0,
        unit="answers",
        message=f"{uncounted} of {said} answers have text and no token" if uncounted else "",
    )
    sampling = data.get("sampling")
    params = {"model": text(data["model"]), "output_tokens": whole((sampling or {}).get("max_tokens"))}
    return [result(place, data, lane=place.lane, params=params, gates=[gate],
                   own={"answers_with_text": said}, metrics=null("answers without a truth", "accuracy"))]  # fmt: skip


def embedding(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """The embedding model of the retrieval lane, one text a call and eight."""
    found = []
    for name, value in mapping(data["lanes"], "lanes").items():
        row = mapping(value, f"lanes.{name}")
        calls, size, wall = whole(row["calls"]), whole(row["call_batch"]), number(row["wall_s"])
        if not calls or not size or not wall:
            raise ValueError(f"lanes.{name}: expected calls, call_batch and wall_s above 0")
        why = "tokenising is in it, and where the timer ends is not told"
        metrics = [
            metric("throughput_wall", calls * size / wall, n=calls, note="tokenising is in it"),
            *enough([metric("latency", None, stat=stat, n=calls, note=why) for stat in ("p50", "p99")]),
        ]
        params = {"batch_size": size, "compiled_batch": whole(data.get("compiled_batch")),
                  "seq_len": whole(data.get("seq_len"))}  # fmt: skip
        one = result(place, {**row, "captured": data.get("captured")}, lane="embedding", params=params, metrics=metrics)
        found.append(_named(one, text(name, 40)))
    if not found:
        raise ValueError("lanes: expected at least one")
    return found


def _named(one: Imported, suffix: str) -> Imported:
    from dataclasses import replace

    return replace(one, name=f"{one.name}/{suffix}")


def ingest(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """Documents cut into chunks, embedded and stored."""
    chunks, wall = whole(data["chunks"]), number_of(data, "wall_s")
    rate = chunks / wall if chunks and wall else None
    if rate is None:
        raise ValueError("chunks, wall_s: expected numbers above 0")
    metrics = [metric("throughput_wall", rate, n=chunks or 0, note="chunks; reading and storing are in it")]
    return [result(place, data, lane="embedding", params={"documents": whole(data["docs"])}, metrics=metrics)]


def probes(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """Questions whose answer is searched for as a substring: a pass says little, an error all."""
    rows = [mapping(row, "probes") for row in _list(data["probes"], "probes")]
    errors = [text(row["error"], 4000) for row in rows if row.get("error")]
    fell = sum(bool(row.get("rerank_note")) for row in rows)
    asked = [row for row in rows if "reranked" in row]
    gate = Gate(
        id="reranked",
        passed=None if not asked else fell == 0,
        observed=fell,
        limit=0,
        unit="probes",
        message=f"{fell} of {len(asked)} probes were not reranked: the reranker failed and the order of retrieval stood"
        if fell
        else "",
    )
    error = failure_of(place, "\n".join(errors), phase="window") if rows and len(errors) == len(rows) else None
    metrics = [
        metric("error_rate", len(errors) / len(rows) if rows else None, n=len(rows)),
        *null("substrings of a retrieved text: no truth of the answer", "accuracy"),
    ]
    params = {"mode": text(data["mode"]), "model": plain(data.get("llm_model")), "lane": place.path.stem}
    return [result(place, data, lane="quality", params=params, metrics=metrics, gates=[gate], error=error)]


def speech(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """Word errors of transcripts."""
    counts, normal = mapping(data["counts"], "counts"), data.get("normalize")
    name = text(normal.get("primary")) if isinstance(normal, Mapping) else "not named"
    errors, words, n = whole(counts["errors"]), whole(counts["ref_words"]), whole(data.get("n_samples")) or 0
    wer = errors / words if errors is not None and words else None
    timing = mapping(data.get("timing") or {}, "timing")
    metrics = [
        metric("wer", wer, n=words or 0, note=f"normaliser: {name}"),
        metric("accuracy", None if wer is None else 1 - wer, n=n, note="1 − WER"),
        metric("rtf", number(timing.get("rtf")), n=n, note="of decoding alone"),
    ]
    unfinished = whole(data.get("n_unfinished") or data.get("truncated")) or 0
    gate = Gate(id="unfinished", passed=unfinished == 0, observed=unfinished, limit=0, unit="transcripts")
    return [result(place, data, lane=place.lane, params=_engine(data), metrics=metrics, gates=[gate])]


def zero_shot(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """Images classified by their likeness to captions."""
    n, hits = whole(data["n_samples"]), whole(data["top1_hits"])
    wrong = (whole(data.get("nonfinite_rows")) or 0) + (whole(data.get("degenerate_rows")) or 0)
    wrong += whole(data.get("nonfinite_classifier_entries")) or 0
    if not n or hits is None:
        raise ValueError("n_samples, top1_hits: expected whole numbers")
    metrics = [
        metric("accuracy", hits / n, n=n, note="first choice; rows without finite scores are misses"),
        *null("text tower and image tower apart, the timer not told", "throughput"),
    ]
    gate = Gate(id="finite_outputs", passed=wrong == 0, observed=wrong, limit=0, unit="rows")
    return [result(place, data, lane=place.lane, params=_engine(data), metrics=metrics, gates=[gate])]


def paired(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """A candidate beside its reference on the same samples, under the study's rule and under ours."""
    from neuronbench.accuracy.rule import ERROR_INCREASE, RATIO

    rule, n = mapping(data["mlperf_gate"], "mlperf_gate"), whole(data.get("n_samples")) or 0
    ratio, more = number(rule.get("ratio")), number(rule.get("relative_error_increase"))
    why = "without the interval of the ratio: theirs is of the difference"
    metrics = [
        metric("accuracy_ratio", ratio, n=n, note=why),
        metric("error_increase", more, n=n, note="" if more is not None else "not in the receipt"),
    ]
    both = None if ratio is None or more is None else ratio >= RATIO and more <= ERROR_INCREASE
    said = "error rate unknown" if more is None else f"and error rate {more:+.1%}, at most {ERROR_INCREASE:+.0%}"
    gate = Gate(id="accuracy", passed=both, observed=ratio, limit=RATIO, message=said)
    return [result(place, data, lane=place.lane, params={"lane": text(data.get("lane") or place.path.stem)},
                   metrics=metrics, gates=[gate])]  # fmt: skip


def _engine(data: Mapping[str, Any]) -> dict[str, Json | None]:
    meta = data.get("engine_meta")
    dtype = plain(meta.get("dtype")) if isinstance(meta, Mapping) else None
    return {"model": text(data["model"]), "engine": plain(data.get("engine")), "dtype": dtype,
            "samples": whole(data.get("n_samples"))}  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------


def drafted(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """Latencies of a model alone or with a draft, as its vendor's demonstration reports them."""
    found = list(loops.nxdi_blocks(data, place.path, name=place.name))
    return [_with_box(one, place) for one in found]


def _with_box(one: Imported, place: Place) -> Imported:
    from dataclasses import replace

    return replace(one, lane="serving", backend=place.box, metrics=enough(one.metrics))


def spec_bench(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """Prompts of several kinds through a drafted model: tokens over wall, of every prompt."""
    rows = [mapping(row, "per_prompt") for row in _list(data["per_prompt"], "per_prompt")]
    tokens = [whole(row.get("generated_tokens")) or 0 for row in rows]
    walls = [number(row.get("wall_s")) or 0.0 for row in rows]
    own: dict[str, Json] = {"sum_generated_tokens": sum(tokens), "sum_wall_s": sum(walls)}
    asked = whole(data.get("max_new_tokens"))
    beyond = sum(count > asked for count in tokens) if asked else 0
    gate = Gate(
        id="output_length", passed=None if not asked else beyond == 0, observed=beyond, limit=0, unit="prompts",
        message=f"{beyond} prompts have more than the {asked} tokens that were asked for" if beyond else "",
    )  # fmt: skip
    metrics = null("prompts one after the other, prefill included, counted by the demonstration", "output_throughput")
    metrics += null("generated tokens over calls, the prompt's own call among them", "accepted_per_step")
    return [result(place, data, lane="serving", params=as_figures(data, "k", "max_new_tokens"), metrics=metrics,
                   own=own, gates=[gate])]  # fmt: skip


def spec_note(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """That a demonstration ran, and in which file its figures are."""
    samples = samples_of(place)
    return [result(place, data, lane="serving", record="summary", params=as_figures(data, "tag"), samples=samples,
                   gates=telemetry_gates(samples),
                   notes=["its figures are in a text of the demonstration, beside it"])]  # fmt: skip


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what}: expected a list, found {type(value).__name__}")
    return value
