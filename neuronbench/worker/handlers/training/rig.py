"""A model and data sets at hand: all that the jobs of a trainer have in common."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
import transformers  # type: ignore[import-not-found,unused-ignore]

from ..families.common import Source
from . import data, model


class Rig:
    """A model and data sets at hand: all that jobs have in common. One per process."""

    def __init__(
        self,
        progress: Callable[[str], None],
        *,
        source: dict[str, Any],
        model: str | None,
        datasets: dict[str, str],
        cache: str,
        root: str,
        threads: int,
        optimizers: Sequence[str],
    ) -> None:
        """`source`: of `common.Source`; `model`: the reference it is of; `datasets`: reference → file; `optimizers`:
        names that a job may ask for."""
        torch.set_num_threads(threads)
        if torch.get_num_interop_threads() != 1:
            torch.set_num_interop_threads(1)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.say, self.source, self.model = progress, Source(**source), model
        self._files, self._cache, self._root = datasets, Path(cache), Path(root)
        self._optimizers = optimizers
        self._tokens: data.Tokens | None = None

    @property
    def tokens(self) -> data.Tokens:
        if self._tokens is None:
            self._tokens = model.tokenizer_of(self.source)
        return self._tokens

    def mind(self, job: dict[str, Any]) -> None:
        """Raise `ValueError` for a job of another model than the one that is here."""
        own: dict[str, Any] = {"model": self.model, "weights": self.source.weights, "weights_seed": self.source.seed}
        if not self.model:
            own["architecture"] = self.source.architecture
        for name, value in own.items():
            if job[name] != value:
                raise ValueError(f"{name}: this trainer was started with {value!r}, the job asks for {job[name]!r}")
        if job["optimizer"] not in self._optimizers:
            known = ", ".join(self._optimizers)
            raise ValueError(f"optimizer: expected one of {known}; found {job['optimizer']!r}")

    def prepare(self, job: dict[str, Any]) -> Path:
        """The folder of the job's arrays."""
        kind, _, name = job["dataset"].partition(":")
        source: dict[str, Any]
        if kind == "synthetic":
            source = {"synthetic": int(name)}
        elif job["dataset"] in self._files:
            source = {"path": self._files[job["dataset"]]}
        elif kind == "file":
            source = {"path": str(self._root / Path(name).expanduser())}
        else:
            raise ValueError(
                f"data set {job['dataset']!r} was not fetched when this trainer was started (it has "
                f"{', '.join(sorted(self._files))}); name it in the point's parameter dataset"
            )
        return data.prepare(job, source, self.tokens, self._cache, self.say)

    def data(self, job: dict[str, Any]) -> data.Prepared:
        return data.load(self.prepare(job), job["method"] in ("dpo", "orpo"))


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
