"""Architectures by the name of a published model."""

from __future__ import annotations

import pytest

from neuronbench.catalog import published
from neuronbench.catalog.architectures import architecture_of, plain_name


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("hub:google-t5/t5-small", "t5-small"),
        ("google/flan-t5-xl@abc", "flan-t5-xl"),
        ("packaged:all-MiniLM-L6-v2", "all-minilm-l6-v2"),
        ("file:/some/where/bert-base-cased/", "bert-base-cased"),
        ("roberta-base", "roberta-base"),
    ],
)
def test_a_model_is_called_the_same_wherever_it_is_from(reference: str, name: str) -> None:
    assert plain_name(reference) == name


def test_every_model_of_the_published_tables_has_its_architecture() -> None:
    models = {row.model for row in published.rows() if row.group in ("encoder", "seq2seq")}
    assert len(models) == 16
    for model in models:
        architecture = architecture_of(f"hub:{model}")
        assert architecture is not None, model
        assert architecture["model_type"]
    assert architecture_of("no-such-model") is None
