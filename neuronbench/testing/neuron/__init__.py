"""A Neuron host that is not there: files, tools and services as they were documented or captured, with faults to order.

```python
from neuronbench.testing.neuron import FakeBox

with FakeBox("inf2.xlarge", tmp_path / "box") as box:
    subprocess.run(["neuronbench", "doctor"], env=box.environ())
```

What is measured on one is recorded as simulated, always.
"""

from neuronbench.testing.neuron.box import FakeBox
from neuronbench.testing.neuron.imds import FakeImds
from neuronbench.testing.neuron.shapes import SHAPES, Shape, shape_of

__all__ = ["SHAPES", "FakeBox", "FakeImds", "Shape", "shape_of"]
