"""Which endpoint does what, who waits, and what is remembered."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson

from neuronbench.testing.truth import dialects, pooling, requests, scenarios
from neuronbench.testing.truth.catalogue import SCENARIOS
from neuronbench.testing.truth.connection import Connection, Incoming
from neuronbench.testing.truth.counters import Counters
from neuronbench.testing.truth.dialects import Dialect
from neuronbench.testing.truth.loop import Loop, Play
from neuronbench.testing.truth.playback import Answer
from neuronbench.testing.truth.records import Records, RequestRecord
from neuronbench.testing.truth.requests import BadRequest, Generation
from neuronbench.testing.truth.scenarios import MS, Chosen, Context, ScenarioError
from neuronbench.testing.truth.script import Refusal, Script
from neuronbench.testing.truth.settings import Settings

CACHE_BLOCK = 16

_GENERATING: dict[str, tuple[type[Dialect], Callable[[dict[str, Any], Settings], Generation]]] = {
    "/v1/completions": (Dialect, requests.completion),
    "/v1/chat/completions": (dialects.Chat, requests.chat),
    "/v1/responses": (dialects.Responses, requests.responses),
}
_POOLING = {
    "/v1/embeddings": pooling.embeddings,
    "/v1/rerank": pooling.rerank,
    "/rerank": pooling.rerank,
    "/v1/score": pooling.score,
    "/score": pooling.score,
}


class Service:
    """Answers requests. One thread only."""

    def __init__(self, settings: Settings, loop: Loop, slow_accept: Callable[[int], None]) -> None:
        self.settings = settings
        self.counters = Counters(settings.served[0])
        self.records = Records(settings.keep_records)
        self._loop = loop
        self._slow_accept = slow_accept
        self._running: dict[Connection, Answer] = {}
        self._waiting: deque[Answer] = deque()
        self._seen: dict[str, tuple[int, int, dict[Any, Any]]] = {}
        self._cache: set[int] = set()
        self._first_request = True
        self._ttft_ns = round(settings.ttft_ms * MS)
        self._tpot_ns = round(settings.tpot_ms * MS)
        self._control: dict[tuple[str, str], Callable[[Connection, Incoming, str], None]] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/truth"): self._truth,
            ("POST", "/truth/reset"): self._reset,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
        }

    # -- what connections call ------------------------------------------------------------------------------------

    def handle(self, connection: Connection, request: Incoming) -> None:
        """Answer one request, now or by a play."""
        path, _, query = request.target.decode("latin-1").partition("?")
        method = request.method.decode("latin-1")
        control = self._control.get((method, path))
        try:
            if control is not None:
                control(connection, request, query)
                connection.done(keep_alive=request.keep_alive)
            elif method == "POST" and (path in _GENERATING or path in _POOLING):
                self._measured(connection, request, path)
            else:
                known = {known for _, known in self._control} | _GENERATING.keys() | _POOLING.keys()
                wrong_method = path in known
                raise BadRequest(
                    f"{path} does not take {method}"
                    if wrong_method
                    else f"no endpoint {path}; there are: " + ", ".join(sorted(known)),
                    405 if wrong_method else 404,
                )
        except BadRequest as error:
            self._refuse(connection, request, Refusal(status=error.status, message=str(error), kind="BadRequestError"))

    def lost(self, connection: Connection) -> None:
        """The client left; what it was being sent is aborted."""
        answer = self._running.get(connection)
        if answer is None:
            answer = next((waiting for waiting in self._waiting if waiting.connection is connection), None)
        if answer is not None:
            answer.record.done_ns = time.monotonic_ns()
            self.finish(answer, "client_closed")

    # -- answers --------------------------------------------------------------------------------------------------

    def _measured(self, connection: Connection, request: Incoming, path: str) -> None:
        key = self.settings.api_key
        if key is not None and request.headers.get(b"authorization") != b"Bearer " + key.encode():
            raise BadRequest("the API key is missing or wrong", 401)
        data = requests.load(request.body)
        model = requests.model_of(data, self.settings)
        try:
            chosen = scenarios.choose(model, self.settings.served, SCENARIOS)
        except ScenarioError as error:
            raise BadRequest(str(error), 404) from None
        given = request.headers.get(b"x-request-id", b"").decode("latin-1") or None
        generating = _GENERATING.get(path)
        api = generating[0].api if generating else path.rsplit("/", 1)[1]
        record = self.records.open(given, api, request.received_ns, request.parsed_ns)
        record.model, record.scenario = model, chosen.scenario.name
        try:
            script, generation, payload = self._script(path, data, record, chosen)
        except BadRequest as error:
            record.status, record.outcome, record.done_ns = error.status, "refused", time.monotonic_ns()
            raise
        if script.refusal is not None:
            record.status, record.outcome, record.done_ns = script.refusal.status, "refused", time.monotonic_ns()
            self._refuse(connection, request, script.refusal)
            return
        answer = Answer(
            self,
            connection,
            record,
            script,
            keep_alive=request.keep_alive,
            dialect=generating[0](record.id, model) if generating else None,
            request=generation,
            payload=payload,
        )
        answer.begin()
        self._admit(answer, request)

    def _script(
        self, path: str, data: dict[str, Any], record: RequestRecord, chosen: Chosen
    ) -> tuple[Script, Generation | None, dict[str, Any] | None]:
        generation, payload, cached_share = None, None, 0.0
        script = Script(ttft_ns=self._ttft_ns, tpot_ns=self._tpot_ns, tokens=0, finish=None)
        if path in _GENERATING:
            generation = _GENERATING[path][1](data, self.settings)
            record.stream, record.prompt_tokens = generation.stream, generation.prompt_tokens
            script.tokens, script.finish = generation.tokens, generation.finish
            # The plain path has no usage and no ids inside its chunks and knows two of the dialects.
            script.plain = not (generation.continuous_usage or generation.token_ids or path == "/v1/responses")
            if self.settings.prefix_cache or chosen.scenario.name == "prefix_cheat":
                cached_share = self._cached(generation, record)
        else:
            payload, record.prompt_tokens = _POOLING[path](data, record.model, record.id)
        if self.settings.prefix_cache:
            script.ttft_ns = round(script.ttft_ns * (1 - cached_share))
        now = record.parsed_ns
        seen, first_ns, state = self._seen.get(record.model, (0, now, {}))
        self._seen[record.model] = (seen + 1, first_ns, state)
        context = Context(
            seen=seen,
            since_first_ns=now - first_ns,
            prompt_tokens=record.prompt_tokens,
            cached_share=cached_share,
            state=state,
            freeze=self._loop.freeze,
            slow_accept=self._slow_accept,
        )
        try:
            scenarios.apply(chosen, script, context)
        except ScenarioError as error:
            raise BadRequest(str(error), 404) from None
        return script, generation, payload

    def _cached(self, generation: Generation, record: RequestRecord) -> float:
        """Look the prompt's blocks up, keep them, and return the share that was there."""
        ids = requests.prompt_ids(generation.prompt)
        chain, hits, following = 0, 0, True
        for start in range(0, len(ids) - CACHE_BLOCK + 1, CACHE_BLOCK):
            chain = hash((chain, tuple(ids[start : start + CACHE_BLOCK])))
            following = following and chain in self._cache
            hits += CACHE_BLOCK if following else 0
            self._cache.add(chain)
        record.cached_tokens = hits
        if self.settings.prefix_cache:  # a cheat does not tell
            self.counters.cache_hits += hits
        return hits / len(ids) if ids else 0.0

    def _admit(self, answer: Answer, request: Incoming) -> None:
        bound = self.settings.max_concurrency
        if bound is not None and len(self._running) >= bound:
            self._waiting.append(answer)
            return
        anchor = request.received_ns if self.settings.anchor == "arrival" else request.parsed_ns
        self._start(answer, anchor)
        if self._first_request:
            self._first_request = False
            if self.settings.freeze_at_s is not None:
                self._loop.play(self._freeze_later(anchor + round(self.settings.freeze_at_s * 1e9)))

    def _freeze_later(self, at_ns: int) -> Play:
        yield at_ns
        self._loop.freeze(round(self.settings.freeze_s * 1e9))

    def _start(self, answer: Answer, anchor_ns: int) -> None:
        record = answer.record
        record.anchor_ns = record.admitted_ns = anchor_ns
        self._running[answer.connection] = answer
        self.counters.queue_time.observe((anchor_ns - min(anchor_ns, record.received_ns)) / 1e9)
        self.counters.cache_queries += record.prompt_tokens
        self._loop.play(answer.play())

    def finish(self, answer: Answer, outcome: str) -> None:
        """Close the books of an answer and let the next one in. Called once per answer."""
        record, counters = answer.record, self.counters
        generated = answer.script.tokens if outcome == "complete" else record.generated()
        if answer.request is None:
            generated = 0
        record.completion_tokens = generated
        record.finish_reason = answer.script.finish if outcome == "complete" else None
        record.outcome = outcome
        counters.generation_tokens += generated + answer.script.uncounted
        if outcome == "complete":
            counters.finished[record.finish_reason if record.finish_reason == "length" else "stop"] += 1
            counters.end_to_end.observe((record.done_ns - record.received_ns) / 1e9)
        else:
            counters.finished["abort" if outcome == "client_closed" else "error"] += 1
        if record.sent_ns:
            counters.first_token.observe((record.sent_ns[0] - record.received_ns) / 1e9)
        if self._running.get(answer.connection) is answer:
            del self._running[answer.connection]
        elif answer in self._waiting:
            self._waiting.remove(answer)
        bound = self.settings.max_concurrency
        if self._waiting and bound is not None and len(self._running) < bound:
            self._start(self._waiting.popleft(), time.monotonic_ns())

    def close_idle(self, connection: Connection, after_ns: int) -> None:
        """Close the connection that long from now unless the client has asked for something by then."""
        self._loop.play(self._close_later(connection, time.monotonic_ns() + after_ns))

    def _close_later(self, connection: Connection, at_ns: int) -> Play:
        yield at_ns
        if connection not in self._running:
            connection.close()

    def _refuse(self, connection: Connection, request: Incoming, refusal: Refusal) -> None:
        body = orjson.dumps(dialects.error_body(refusal.message, refusal.kind, refusal.status))
        closing = b"" if request.keep_alive else b"connection: close\r\n"
        connection.respond(refusal.status, body, extra=refusal.headers + closing)
        connection.done(keep_alive=request.keep_alive)

    # -- control --------------------------------------------------------------------------------------------------

    def _json(self, connection: Connection, data: Any) -> None:
        connection.respond(200, orjson.dumps(data))

    def _health(self, connection: Connection, request: Incoming, query: str) -> None:
        connection.respond(200, b"")

    def _models(self, connection: Connection, request: Incoming, query: str) -> None:
        length = self.settings.max_model_len
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "neuronbench", "root": name,
                 "parent": None, "max_model_len": length} for name in self.settings.served]  # fmt: skip
        self._json(connection, {"object": "list", "data": data})

    def _metrics(self, connection: Connection, request: Incoming, query: str) -> None:
        connection.respond(200, self.exposition().encode(), kind=b"text/plain; version=0.0.4; charset=utf-8")

    def exposition(self) -> str:
        """The text of /metrics; another server's part may add to it."""
        running = list(self._running.values())
        generating = sum(answer.record.generated() for answer in running if answer.request is not None)
        held = sum(answer.record.prompt_tokens for answer in running) + generating
        return self.counters.text(
            running=len(running),
            waiting=len(self._waiting),
            kv_usage=min(1.0, held / self.settings.kv_tokens),
            generating=generating,
        )

    def _truth(self, connection: Connection, request: Incoming, query: str) -> None:
        data: dict[str, Any] = {"summary": self.records.summary(self._loop.effective_ns)}
        data["frozen_ns"] = self._loop.frozen
        if "records=0" not in query:
            data["requests"] = [record.as_dict(chunks="chunks=0" not in query) for record in self.records]
        self._json(connection, data)

    def _reset(self, connection: Connection, request: Incoming, query: str) -> None:
        self.records.clear()
        self._seen.clear()
        self._cache.clear()
        self._loop.frozen.clear()
        self._first_request = True
        gc.collect()
        self._json(connection, {"reset": True})

    def _tokenize(self, connection: Connection, request: Incoming, query: str) -> None:
        self._json(connection, pooling.tokenize(requests.load(request.body), self.settings.max_model_len))

    def _detokenize(self, connection: Connection, request: Incoming, query: str) -> None:
        self._json(connection, pooling.detokenize(requests.load(request.body)))
