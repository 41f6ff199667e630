"""Train, merge, ship, serve: is what is served what was trained, and does it serve like the model it came from?"""

import time
from pathlib import Path

import pytest

import neuronbench as nb
from neuronbench import datasets

QUESTIONS = (Path(__file__).parent / "questions.txt").read_text(encoding="utf-8").splitlines()
"""None of them is in the data that is trained on; their answers are to have its form all the same."""
COMPARED = ("ttft_p50_ms", "tpot_p50_ms", "output_throughput_tok_s")


@pytest.fixture(scope="session")
def base_served():
    """What the base model's server did, by repeat: kept from the first benchmark for the second."""
    return {}


@nb.bench(lane="e2e", grid="e2e/finetune", leases=("trainer", "endpoint"))
def bench_base(measure, point, nb_repeat, base_served):
    """The model before: how it answers, and how its server performs."""
    with measure.lease("endpoint") as endpoint:
        share = ask(measure, endpoint)
        served = serve(measure, endpoint, point)
    base_served[nb_repeat, point.backend] = {"taught_share": share, **{key: served[key] for key in COMPARED}}


@nb.bench(lane="e2e", grid="e2e/finetune", leases=("trainer", "endpoint"))
def bench_finetune_to_serving(measure, point, nb_repeat, base_served):
    """The model after: trained, merged, put into the store, taken out of it, served, compared with the base."""
    job = nb.TrainJob.from_point(point)
    with measure.lease("trainer") as trainer:
        trained = measure.train(trainer, job)
        done = time.monotonic()
        exported = trained.folder / "exported"
        files = trainer.export(job, folder=trained.folder, into=exported)["files"]
        measure.metric("merge_time", time.monotonic() - done)
    shipped = measure.ship(exported, into=trained.folder / "shipped", store=point.get("store"), files=files)
    with measure.lease("endpoint", model=f"file:{trained.folder / 'shipped'}") as endpoint:
        measure.metric("train_to_serve_time", time.monotonic() - done)
        measure.same_weights(endpoint, shipped)
        share = ask(measure, endpoint)
        served = serve(measure, endpoint, point)
    base = base_served.get((nb_repeat, point.backend))
    if base is None:
        measure.note("the base model was not served in this session, so nothing is compared with it")
    else:
        measure.note(f"answers in the taught form: {share:.0%}, of the base model {base['taught_share']:.0%}")
        for key in COMPARED:
            ratio = served[key] / base[key] if served[key] and base[key] else None
            measure.metric("vs_base", ratio, stat=key, note="one window each, in one session")
    measure.check("taught_share", at_least=point["taught_share"])


def ask(measure, endpoint):
    """The share of questions that are answered in the form that the data set teaches."""
    answers = measure.answers(endpoint, QUESTIONS, max_tokens=16)
    share = sum(datasets.is_taught(answer) for answer in answers) / len(answers)
    measure.metric("taught", share, n=len(answers))
    return share


def serve(measure, endpoint, point):
    """A window of steady load."""
    return measure.serve(
        endpoint,
        nb.closed_loop(point["concurrency"], duration_s=point["window_s"]),
        nb.synthetic(input_tokens=point["input_tokens"], output_tokens=point["output_tokens"]),
    )
