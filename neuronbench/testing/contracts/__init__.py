"""Contract suites: what neuronbench relies on in a plugin, as tests that a plugin's author runs.

```python
# tests/test_contract.py of a plugin
import acme_chip
from neuronbench.testing.contracts import BackendContract, ProviderContract

class TestBackend(BackendContract):
    plugin = acme_chip          # the module with its hooks
    backend = "acme1"

class TestServer(ProviderContract):
    plugin = acme_chip
    provider, backend = "endpoint/acme", "acme1"
    params = {"model": "packaged:SmolLM2-135M-Instruct"}
```

Each test says in its docstring what breaks for users where it fails. Nothing in here starts an accelerator's software
by itself: what boots is booted by the plugin.
"""

from neuronbench.testing.contracts.backend import BackendContract
from neuronbench.testing.contracts.base import PluginContract
from neuronbench.testing.contracts.handler import HandlerContract
from neuronbench.testing.contracts.lane import LaneContract
from neuronbench.testing.contracts.provider import ProviderContract
from neuronbench.testing.contracts.sink import SinkContract, sample_receipt

__all__ = [
    "BackendContract", "HandlerContract", "LaneContract", "PluginContract", "ProviderContract", "SinkContract",
    "sample_receipt",
]  # fmt: skip
