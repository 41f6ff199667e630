"""Names of the samplers that the summaries read. A series is addressed as `sampler/series`."""

from __future__ import annotations

from typing import Final

SERVER: Final = "server"
"""The server's process tree: `server/cpu_percent`, `server/rss_bytes`, `server/threads`, `server/processes`."""
METRICS: Final = "metrics"
"""The server's own metrics: `metrics/vllm:num_requests_running{engine="0"}`, ..."""
HOST: Final = "host"
"""The machine: `host/cpu_percent`, `host/steal_percent`, ..."""
OWN: Final = "telemetry"
"""The telemetry process itself: `telemetry/cpu_s`, `telemetry/errors/NAME`, `telemetry/missed/NAME`."""
ACCELERATOR: Final = "accelerator"
"""The device by its own monitor; what its series mean is said in `telemetry/accelerator.py`."""
ACCELERATOR_POWER: Final = "accelerator_power"
"""The device by its driver's slow counters: `accelerator_power/DEVICE/power_percent`, ..."""
