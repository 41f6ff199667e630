"""Two sets of receipts beside each other: what has changed, what has not, and what cannot be said.

Pure: it reads receipts and returns data. See README.md for the rules.
"""

from neuronbench.compare.noise import Bands
from neuronbench.compare.protocol import Difference
from neuronbench.compare.result import Comparison, OutcomeChange, Row, Verdict
from neuronbench.compare.rows import Options, keeper
from neuronbench.compare.selecting import BOOTS, KINDS, SelectionError, Selector, Side, split_by
from neuronbench.compare.verdicts import compare

__all__ = [
    "BOOTS",
    "KINDS",
    "Bands",
    "Comparison",
    "Difference",
    "Options",
    "OutcomeChange",
    "Row",
    "SelectionError",
    "Selector",
    "Side",
    "Verdict",
    "compare",
    "keeper",
    "split_by",
]
