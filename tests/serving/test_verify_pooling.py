"""Servers that generate nothing are verified by what they do instead."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from neuronbench.serving.verify import GenerationError, generate

Answers = dict[str, tuple[int, Any]]
NOT_FOUND = (404, {"detail": "Not Found"})
NOT_SUPPORTED = (400, {"error": {"message": "The model does not support Completions API"}})


@pytest.fixture
def serving() -> Iterator[Callable[[Answers], str]]:
    """A server with the given status and body by path; 404 for all others."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: Answers) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                status, body = answers.get(self.path, NOT_FOUND)
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def vector(*values: float) -> tuple[int, Any]:
    return 200, {"data": [{"index": 0, "embedding": list(values)}], "usage": {"prompt_tokens": 6}}


@pytest.mark.parametrize("completions", [NOT_FOUND, NOT_SUPPORTED])
def test_an_embedder_is_verified_by_a_vector(serving: Callable[[Answers], str], completions: tuple[int, Any]) -> None:
    url = serving(
        {"/v1/completions": completions, "/v1/chat/completions": completions, "/v1/embeddings": vector(0.6, -0.8)}
    )
    found = generate(url, "m", timeout_s=10)
    assert (found.api, found.text, found.tokens) == ("embeddings", "", 0)


def test_a_reranker_is_verified_by_its_scores(serving: Callable[[Answers], str]) -> None:
    scores = {"results": [{"index": 0, "relevance_score": 0.9}, {"index": 1, "relevance_score": 0.1}]}
    assert generate(serving({"/v1/rerank": (200, scores)}), "m", timeout_s=10).api == "rerank"


@pytest.mark.parametrize("values", [(0.0, 0.0, 0.0), (float("nan"), 1.0), ()])
def test_a_vector_that_says_nothing_is_no_answer(serving: Callable[[Answers], str], values: tuple[float, ...]) -> None:
    with pytest.raises(GenerationError, match="is not made of numbers that differ") as caught:
        generate(serving({"/v1/embeddings": vector(*values)}), "m", timeout_s=10)
    assert caught.value.kind == "generation_invalid"


def test_a_server_that_offers_nothing_fails_as_before(serving: Callable[[Answers], str]) -> None:
    with pytest.raises(GenerationError, match="the first request failed with status 404"):
        generate(serving({}), "m", timeout_s=10)


def test_a_model_that_is_not_served_is_not_taken_for_an_embedder(serving: Callable[[Answers], str]) -> None:
    unknown = (404, {"error": {"message": "The model `m` does not exist."}})
    url = serving({"/v1/completions": unknown, "/v1/embeddings": vector(1.0, 2.0)})
    with pytest.raises(GenerationError, match="does not exist"):
        generate(url, "m", timeout_s=10)
