"""What a server says about itself: a scrape of its metrics in the Prometheus text format."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection, RemoteDisconnected
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

_MAX_BYTES = 32 << 20


class ScrapeError(RuntimeError):
    """The endpoint answered with something else than metrics, or not in time."""


class Prometheus:
    """Sampler of one `/metrics` endpoint, over one connection that is kept open.

    A series is named `name{a="b",c="d"}` with its labels sorted, or just `name`. Only names that start with one of
    `prefixes` are kept (all when empty), no `_created`, and no `_bucket` unless `buckets`: parsing them all would cost
    more than everything else, and sums and counts say what is needed. A scrape that takes longer than `timeout_s` or
    fails is an error of that sample.
    """

    def __init__(
        self,
        url: str,
        prefixes: Sequence[str] = (),
        api_key: str | None = None,
        timeout_s: float = 1.0,
        buckets: bool = False,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected a URL such as http://127.0.0.1:8000/metrics, found {url!r}")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._target = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        self._prefixes, self._timeout_s, self._buckets = tuple(prefixes), timeout_s, buckets
        self._headers = {"Accept": "text/plain", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
        self._connection: HTTPConnection | None = None

    def read(self) -> Mapping[str, float | None]:
        try:
            text = self._scrape()
        except BaseException:
            self.close()
            raise
        values: dict[str, float | None] = {}
        for family in text_string_to_metric_families("".join(self._wanted(text))):
            for sample in family.samples:
                values[series_name(sample.name, sample.labels)] = sample.value
        return values

    def _wanted(self, text: str) -> Iterator[str]:
        """The lines worth parsing. Comments only carry types, which do not change names or values."""
        for line in text.splitlines(keepends=True):
            if line[0] in "#\n" or (self._prefixes and not line.startswith(self._prefixes)):
                continue
            name = line.partition("{")[0].partition(" ")[0]
            if not name.endswith("_created") and (self._buckets or not name.endswith("_bucket")):
                yield line

    def _scrape(self) -> str:
        deadline = time.monotonic() + self._timeout_s
        if self._connection is not None:
            try:
                return self._ask(self._connection, deadline)
            except (RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                self.close()  # the server closed the idle connection: ask once more on a new one
        make = HTTPSConnection if self._secure else HTTPConnection
        self._connection = make(self._host, self._port, timeout=self._timeout_s)
        return self._ask(self._connection, deadline)

    def _ask(self, connection: HTTPConnection, deadline: float) -> str:
        connection.request("GET", self._target, headers=self._headers)
        try:
            response = connection.getresponse()
        except HTTPException as error:
            if isinstance(error, ConnectionResetError):
                raise
            raise ScrapeError(f"{self._target}: not an HTTP answer ({error!r})") from error
        if response.status != 200:
            raise ScrapeError(f"{self._target}: expected status 200, found {response.status} {response.reason}")
        chunks, size = [], 0
        while data := response.read1(1 << 18):
            chunks.append(data)
            size += len(data)
            if time.monotonic() > deadline:
                raise ScrapeError(f"{self._target}: took longer than {self._timeout_s:g} s")
            if size > _MAX_BYTES:
                raise ScrapeError(f"{self._target}: more than {_MAX_BYTES >> 20} MiB")
        response.close()  # `read1` does not see the end of a body of known length, and the connection would stay busy
        return b"".join(chunks).decode("utf-8", "replace")

    def close(self) -> None:
        """Close the connection; the next read opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def series_name(name: str, labels: Mapping[str, str]) -> str:
    """`name{a="b",c="d"}`: the same for the same labels in any order, escaped as the text format does."""
    if not labels:
        return name
    inner = ",".join(f'{key}="{_escape(value)}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inner}}}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
