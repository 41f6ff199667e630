"""Where receipts are forwarded to. A sink reads receipts and never fails a point; MLflow is the first."""
