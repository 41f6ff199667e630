"""The receipts of the public study of Neuron instances "torchneuronx", in our words.

`forms` says which reader a receipt is for; `figures` computes what the study published again from its receipts;
`together` says what only several receipts show. The rules of `importers` hold: a figure gets one of our ids only where
the definition is the same.
"""

from neuronbench.importers.study.check import check
from neuronbench.importers.study.files import CSV, receipts
from neuronbench.importers.study.forms import read
from neuronbench.importers.study.together import together

SUFFIXES = (".json", CSV)

__all__ = ["SUFFIXES", "check", "read", "receipts", "together"]
