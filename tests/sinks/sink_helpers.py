"""What the sink's tests share besides fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuronbench.config import Settings
from neuronbench.sinks.mlflow.gateway import Patience

QUICK = Patience(first_s=2, request_s=5, busy_s=0.1, lock_s=20.0)
"""For stores that are files, and for servers that are not there."""
PATIENT = Patience(first_s=120, request_s=120, busy_s=20.0, lock_s=60.0)
"""For real servers: on a host that others keep busy each answer takes what it takes."""


def settings_at(root: Path, **changes: Any) -> Settings:
    changes.setdefault("traces", 6)
    return Settings(root=root, data_root=root / "mlruns", **changes)


class Reader:
    """MLflow as anybody else reads it."""

    def __init__(self, uri: str) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)

    def experiment(self, name: str = "neuronbench/serving") -> Any:
        return self.client.get_experiment_by_name(name)

    def runs(self, **tags: str) -> list[Any]:
        words = [f"tags.`{key.replace('_', '.')}` = '{value}'" for key, value in tags.items()]
        found = self.experiment()
        if found is None:
            return []
        return list(self.client.search_runs([found.experiment_id], filter_string=" and ".join(words), max_results=500))

    def run(self, receipt: str) -> Any:
        (found,) = self.runs(nb_receipt=receipt)
        return found

    def artifacts(self, run: Any, path: str = "") -> set[str]:
        return {item.path for item in self.client.list_artifacts(run.info.run_id, path or None)}

    def download(self, run: Any, path: str, to: Path) -> Path:
        to.mkdir(parents=True, exist_ok=True)
        return Path(self.client.download_artifacts(run.info.run_id, path, str(to)))

    def traces(self, run: Any) -> list[Any]:
        return list(
            self.client.search_traces(
                locations=[self.experiment().experiment_id], run_id=run.info.run_id, max_results=200
            )
        )
