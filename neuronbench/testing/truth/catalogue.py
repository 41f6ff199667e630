"""The scenarios, one table: name, what happens, parameters.

Each is a setting of the fields of a `Script`; those that depend on what came before have a function of their own.
"""

from __future__ import annotations

from typing import Any

from neuronbench.testing.truth.scenarios import MS, Apply, Context, Parameter, Scenario, ScenarioError
from neuronbench.testing.truth.script import Refusal, Script


def _set(**fields: Any) -> Apply:
    """A scenario that sets fields of the script; a value may be a function of the parameters."""

    def apply(script: Script, values: dict[str, Any], context: Context) -> None:
        for name, value in fields.items():
            setattr(script, name, value(values) if callable(value) else value)

    return apply


def _value(name: str) -> Any:
    return lambda values: values[name]


def _ns(name: str) -> Any:
    return lambda values: round(values[name] * MS)


def _refuse(status: int, message: str, kind: str) -> Apply:
    """Refuse the first `first` requests with the same model string; all of them when that is 0."""

    def apply(script: Script, values: dict[str, Any], context: Context) -> None:
        if values["first"] == 0 or context.seen < values["first"]:
            headers = b"retry-after: %d\r\n" % values["retry_after"] if values.get("retry_after") else b""
            script.refusal = Refusal(status=status, message=message, kind=kind, headers=headers)

    return apply


def _stall(script: Script, values: dict[str, Any], context: Context) -> None:
    script.pauses[values["at"]] = round(values["ms"] * MS)


def _fake_first(script: Script, values: dict[str, Any], context: Context) -> None:
    early_ns = min(script.ttft_ns, round(values["ms"] * MS))
    script.pauses[1] = script.ttft_ns - early_ns
    script.ttft_ns = early_ns
    script.first_text = values["text"]


def _other_answers(script: Script, values: dict[str, Any], context: Context) -> None:
    if context.seen >= values["after"]:
        script.text_from = 1000


def _trickle(script: Script, values: dict[str, Any], context: Context) -> None:
    script.tpot_ns = round(values["ms"] * MS)


def _reasoning(script: Script, values: dict[str, Any], context: Context) -> None:
    script.reasoning = values["count"] or script.tokens // 2
    script.reasoning_field = values["field"]


def _split(script: Script, values: dict[str, Any], context: Context) -> None:
    gap_ns = round(values["gap_ms"] * MS)
    script.split_gap_ns, script.odd_text = gap_ns, "€"
    script.split_chunks = values["framing"] == "http"
    script.newline = b"\r\n" if values["newline"] == "crlf" else b"\n"
    # Tokens that came faster than their pieces would share segments after all.
    script.tpot_ns = max(script.tpot_ns, 3 * gap_ns)


def _spec(script: Script, values: dict[str, Any], context: Context) -> None:
    script.drafted = values["drafted"]
    script.per_chunk = min(values["accepted"], script.drafted) + 1
    script.first_chunk = 1


def _speculate(script: Script, values: dict[str, Any], context: Context) -> None:
    script.drafted = values["drafted"]
    words = values["kept"].split("-")
    if not all(word == "x" or word.isdecimal() for word in words):
        raise ScenarioError(f"kept={values['kept']}: expected numbers and x, such as 3-0-x")
    script.steps = tuple(None if word == "x" else int(word) for word in words)
    script.step_ns, script.draft_ns = round(values["step_ms"] * MS), round(values["draft_ms"] * MS)
    script.first_chunk = 1
    script.differs_at = values["differs_at"] if values["differs_at"] >= 0 else None
    script.overcounted = values["over"]


def _short(script: Script, values: dict[str, Any], context: Context) -> None:
    script.tokens = max(0, script.tokens - values["by"])
    script.finish = values["finish"]


def _drift(script: Script, values: dict[str, Any], context: Context) -> None:
    script.tpot_ns = round(script.tpot_ns * (1 + values["percent_per_s"] / 100 * context.since_first_ns / 1e9))


def _prefix_cheat(script: Script, values: dict[str, Any], context: Context) -> None:
    script.ttft_ns = round(script.ttft_ns * (1 - context.cached_share * (1 - values["floor"])))
    script.tells_cached = False


def _staircase(script: Script, values: dict[str, Any], context: Context) -> None:
    bucket = values["first"]
    while bucket < context.prompt_tokens:
        bucket *= 2
    script.ttft_ns = script.ttft_ns * bucket // values["first"]
    if bucket not in context.state:
        context.state[bucket] = True
        script.ttft_ns += round(values["cold_ms"] * MS)


def _compile(script: Script, values: dict[str, Any], context: Context) -> None:
    if "done" not in context.state and context.since_first_ns >= values["after_ms"] * MS:
        context.state["done"] = True
        script.ttft_ns += round(values["ms"] * MS)


def _freeze(script: Script, values: dict[str, Any], context: Context) -> None:
    if context.seen == values["after"]:
        context.freeze(round(values["ms"] * MS))


def _die(script: Script, values: dict[str, Any], context: Context) -> None:
    if context.seen >= values["after"]:
        script.ending, script.stop_at, script.exit_code = "die", values["at"], values["code"]


def _slow_accept(script: Script, values: dict[str, Any], context: Context) -> None:
    context.slow_accept(round(values["ms"] * MS))


_AT = (8, "chunks that leave before")
_FIRST = (0, "how many requests it hits; 0: all of them")

_ROWS: list[tuple[str, str, Apply, dict[str, tuple[Any, ...]]]] = [
    ("plain", "a correct answer; what a bare model name gives", _set(), {}),
    # what the tokens are
    ("role_early", "the role chunk leaves long before the first token", _set(role_ns=_ns("ms")),
     {"ms": (5.0, "when the role chunk leaves")}),
    ("reasoning", "the answer starts with reasoning", _reasoning,
     {"field": ("reasoning", "name of the field", ("reasoning", "reasoning_content")),
      "count": (0, "reasoning tokens; 0: half of all")}),
    ("empty", "the chunk of one token carries an empty string", _set(empty=lambda values: frozenset((values["at"],))),
     {"at": (3, "the token")}),
    ("chunks", "several tokens in each chunk", _set(per_chunk=lambda values: max(1, values["size"])),
     {"size": (5, "tokens a chunk")}),
    ("hidden", "tokens that are generated and counted but never shown", _set(hidden=_value("count")),
     {"count": (5, "how many, right after the first token")}),
    ("spec", "speculative decoding: after the first, each chunk is a draft's kept tokens and one more", _spec,
     {"drafted": (4, "tokens drafted a step"), "accepted": (2, "of those, kept")}),
    ("speculate", "speculative decoding whose steps take as long as they take, whatever they keep", _speculate,
     {"drafted": (4, "tokens drafted a step; 0: no speculation"),
      "kept": ("2", "of those, kept in each step in turn: 3-0-x, where x is a step without a draft"),
      "step_ms": (10.0, "a step"), "draft_ms": (0.0, "more for each drafted token"),
      "differs_at": (-1, "token from which the answer is another one"),
      "over": (0, "tokens that the counter of kept ones has too many, per answer")}),
    ("tool_calls", "the answer is a tool call's arguments (chat)", _set(delta="tool_calls", finish="tool_calls"), {}),
    ("refusal", "the answer is a refusal (chat)", _set(delta="refusal"), {}),
    ("one_token", "one token, then stop", _set(tokens=1, finish="stop"), {}),
    ("no_tokens", "no token at all, then stop", _set(tokens=0, finish="stop"), {}),
    ("short", "fewer tokens than asked for, also under ignore_eos", _short,
     {"by": (5, "how many fewer"), "finish": ("length", "finish reason", ("length", "stop"))}),
    # events and usage
    ("usage", "the usage chunk is not where it belongs", _set(usage=_value("form")),
     {"form": ("absent", "absent, after the first chunk, with choices, or in every chunk",
               ("absent", "early", "choices", "continuous"))}),
    ("miscount", "the server's counters count more tokens than its answer's usage says", _set(uncounted=_value("by")),
     {"by": (5, "how many more")}),
    ("no_finish", "no chunk has a finish_reason", _set(finish=None), {}),
    ("no_done", "a complete answer without `data: [DONE]` (responses: without its last event)",
     _set(done=False, ending=lambda values: {"clean": "complete", "close": "close"}[values["end"]]),
     {"end": ("clean", "whether the body ends properly", ("clean", "close"))}),
    ("error", "an error object inside the stream, then [DONE]; without stream: HTTP 500", _set(error_at=_value("at")),
     {"at": _AT}),
    ("error_event", "`event: error` inside the stream, and its end", _set(error_at=_value("at"), error_form="event"),
     {"at": _AT}),
    # bytes
    ("coalesce", "many events in one TCP segment", _set(coalesce=lambda values: max(1, values["count"])),
     {"count": (20, "events a segment")}),
    ("split", "every event over three segments, cut inside a UTF-8 character and inside the blank line",
     _split,
     {"gap_ms": (2.0, "time between the segments"),
      "framing": ("tcp", "one HTTP chunk in three segments, or three HTTP chunks", ("tcp", "http")),
      "newline": ("lf", "line ends", ("lf", "crlf"))}),
    ("no_blank", "`data:` without the blank after the colon", _set(blank=b""), {}),
    ("crlf", "line ends are CR LF", _set(newline=b"\r\n"), {}),
    ("comments", "comment lines between the events, as keep-alives",
     _set(comment_every=lambda values: max(1, values["every"])),
     {"every": (2, "chunks between two comments")}),
    ("multiline", "each event's JSON over several `data:` lines", _set(multiline=True), {}),
    ("u2028", "U+2028 unescaped in the JSON: no line end to SSE, one to str.splitlines", _set(odd_text="\u2028"), {}),
    # transport
    ("content_length", "the stream has a Content-Length instead of chunks", _set(body="length"), {}),
    ("until_close", "the stream has neither length nor chunks: it ends with the connection", _set(body="close"), {}),
    ("continues", "`100 Continue` that nobody asked for, before the answer", _set(continues=_value("count")),
     {"count": (1, "how many")}),
    ("no_keep_alive", "`Connection: close` on the answer", _set(after="header"), {}),
    ("close_race", "the server closes a connection it had said it would keep",
     _set(after=_value("when"), idle_ns=_ns("ms")),
     {"when": ("reuse", "right after the answer, after idling, or as the next request comes",
               ("close", "idle", "reuse")),
      "ms": (20.0, "how long it idles")}),
    ("close", "FIN inside the answer, between two events", _set(ending="close", stop_at=_value("at")), {"at": _AT}),
    ("cut", "FIN inside the answer, inside an event", _set(ending="cut", stop_at=_value("at")), {"at": _AT}),
    ("reset", "RST inside the answer", _set(ending="reset", stop_at=_value("at")), {"at": _AT}),
    # time
    ("stall", "one long pause inside the answer", _stall,
     {"at": (10, "token before which it pauses"), "ms": (5000.0, "length of the pause")}),
    ("hang", "the answer stops and the connection stays", _set(ending="hang", stop_at=_value("at")), {"at": _AT}),
    ("silent", "never a first token", _set(ending="hang", stop_at=0, headers=lambda values: values["headers"] == "yes"),
     {"headers": ("yes", "whether the response headers are sent", ("yes", "no"))}),
    ("trickle", "tokens that come very slowly", _trickle, {"ms": (500.0, "from token to token")}),
    ("fake_first", "a first token long before the others, as if to flatter TTFT", _fake_first,
     {"ms": (5.0, "when it leaves"), "text": ("", "what it says instead of the token itself")}),
    ("other_answers", "from some request on the answers are other ones, as of a model that went wrong", _other_answers,
     {"after": (4, "requests with this model string that are answered as before")}),
    ("drift", "the time from token to token grows: no steady state", _drift,
     {"percent_per_s": (10.0, "growth, from the first request with this model string on")}),
    ("prefix_cheat", "a prompt seen before gets its first token early, and no usage or counter tells", _prefix_cheat,
     {"floor": (0.05, "share of the time that is left when all of the prompt was seen")}),
    ("staircase", "time to the first token grows with the prompt's bucket, a power of two", _staircase,
     {"first": (128, "tokens of the smallest bucket"), "cold_ms": (0.0, "more for the first request of each bucket")}),
    ("compile", "one request takes long, as if a graph were compiled", _compile,
     {"after_ms": (1000.0, "since the first request with this model string"), "ms": (5000.0, "how long")}),
    ("freeze", "the whole server does nothing for a while, then what came due at once", _freeze,
     {"after": (0, "requests with this model string before the one that starts it"), "ms": (2000.0, "how long")}),
    # refusals and ends
    ("rate_limited", "429 with Retry-After", _refuse(429, "too many requests", "RateLimitError"),
     {"first": _FIRST, "retry_after": (1, "seconds")}),
    ("unavailable", "503 for the first requests", _refuse(503, "the engine is not ready", "ServiceUnavailableError"),
     {"first": (3, _FIRST[1])}),
    ("bad_request", "400", _refuse(400, "this request is never right", "BadRequestError"), {"first": _FIRST}),
    ("server_error", "500", _refuse(500, "the engine core died", "InternalServerError"), {"first": _FIRST}),
    ("json_error", "status 200 with an error object as the body",
     _refuse(200, "the engine core died", "InternalServerError"), {"first": _FIRST}),
    ("slow_accept", "the server accepts no new connection for a while, then answers as usual", _slow_accept,
     {"ms": (500.0, "how long")}),
    ("die", "the server process exits abruptly", _die,
     {"after": (0, "requests with this model string that are answered before"),
      "at": (0, "chunks of the fatal answer that still leave"), "code": (1, "exit status")}),
]  # fmt: skip

SCENARIOS: dict[str, Scenario] = {
    name: Scenario(
        name=name,
        meaning=meaning,
        apply=apply,
        parameters={
            key: Parameter(default=value[0], meaning=value[1], choices=value[2] if len(value) > 2 else ())
            for key, value in parameters.items()
        },
    )
    for name, meaning, apply, parameters in _ROWS
}
