"""The MLflow sink: receipts become runs, artifacts, figures and request traces.

What stands for what: experiment `neuronbench/<lane>`; a parent run per session and lane; a child run per repeat, per
boot and compile, and one summary child per point that was repeated. Everything is made from receipts, so MLflow's
store may be lost and made again (`push`). Importing this loads no mlflow; the first delivery does.
"""

from neuronbench.sinks.mlflow.push import PushResult, push, ui_command, ui_environment, ui_pages
from neuronbench.sinks.mlflow.sink import MlflowSink

__all__ = ["MlflowSink", "PushResult", "push", "ui_command", "ui_environment", "ui_pages"]
