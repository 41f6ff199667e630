"""The client's own error on this host: measured against a server of known timing, kept, cited by every record.

`calibrate` takes a minute, once per host and version; `nearest(load(settings), 64, 6400)` is what the client adds at
about that load; `client_error` is what a record says of it.
"""

from neuronbench.calibration.cite import client_error
from neuronbench.calibration.points import Calibration, CalibrationPoint, Spread, nearest
from neuronbench.calibration.run import PRESETS, CalibrationError, calibrate
from neuronbench.calibration.store import load, path_of, save

__all__ = [
    "PRESETS",
    "Calibration",
    "CalibrationError",
    "CalibrationPoint",
    "Spread",
    "calibrate",
    "client_error",
    "load",
    "nearest",
    "path_of",
    "save",
]
