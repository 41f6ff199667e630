"""What the workers of a real stack inherit from tests, so that they cost no more than what is proved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

WORKERS: Mapping[str, str] = {
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait by spinning take the cores from whatever else runs
    "TORCHINDUCTOR_VEC_ISA_OK": "1",  # what /proc/cpuinfo says is believed: trying it costs six runs of g++ a compile
}


@pytest.fixture(scope="module")
def workers_inherit() -> Iterator[None]:
    """For `rig` fixtures: the environment that workers get, for as long as the file's tests run."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WORKERS.items():
            patch.setenv(name, value)
        yield
