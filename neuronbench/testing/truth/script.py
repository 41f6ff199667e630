"""What one answer will do: every way in which it can differ from a plain one is a field here.

A scenario is nothing but a setting of these fields, so that the code that plays an answer knows no scenario.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Usage = Literal["asked", "absent", "early", "choices", "continuous"]
Ending = Literal["complete", "close", "reset", "cut", "hang", "die"]
After = Literal["keep", "header", "close", "idle", "reuse"]


@dataclass(slots=True, kw_only=True)
class Refusal:
    """An answer that is not a generation: status, body (None: the standard error object) and extra header lines."""

    status: int
    message: str
    kind: str = "server_error"
    headers: bytes = b""


@dataclass(slots=True, kw_only=True)
class Script:
    """One answer. Times are nanoseconds; positions count generated tokens from 0.

    tokens: how many are generated; finish: the reason given; both follow from the request before a scenario looks.
    """

    ttft_ns: int
    tpot_ns: int
    tokens: int
    finish: str | None

    # timing
    role_ns: int | None = None  # when the role chunk leaves; None: together with the first token
    pauses: dict[int, int] = field(default_factory=dict)  # token -> how much later it and all after it leave

    # what the tokens are
    per_chunk: int = 1
    first_chunk: int | None = None  # tokens of the first chunk, when not `per_chunk`
    hidden: int = 0  # of the tokens, how many never appear in a chunk
    empty: frozenset[int] = frozenset()  # tokens whose chunk carries an empty string
    reasoning: int = 0  # the first tokens are reasoning
    reasoning_field: str = "reasoning"
    delta: Literal["content", "tool_calls", "refusal"] = "content"
    odd_text: str = ""  # put in front of every token's text
    first_text: str = ""  # text of the first chunk of a stream, whatever was generated
    text_from: int = 0  # the answer's first word is that of this token
    drafted: int = 0  # speculative decoding: tokens drafted a step, per_chunk - 1 of them kept
    steps: tuple[int | None, ...] = ()  # of those, kept in each step in turn, in place of per_chunk; None: no draft
    step_ns: int = 0  # with `steps`: how long a step takes, whatever it keeps
    draft_ns: int = 0  # with `steps`: more for each token it drafts
    differs_at: int | None = None  # from this token on the answer is another one
    overcounted: int = 0  # tokens the counter of kept ones has too many, per answer

    # events
    usage: Usage = "asked"
    tells_cached: bool = True  # whether usage has the prompt's cached tokens
    uncounted: int = 0  # tokens the server's counters have and the usage has not
    done: bool = True
    error_at: int | None = None  # chunk in whose place an error comes
    error_form: Literal["data", "event"] = "data"

    # how events become bytes
    newline: bytes = b"\n"
    blank: bytes = b" "
    comment_every: int = 0
    multiline: bool = False
    coalesce: int = 1  # chunks handed to the kernel in one send
    split_gap_ns: int | None = None
    split_chunks: bool = False
    body: Literal["chunked", "length", "close"] = "chunked"
    continues: int = 0  # unasked `100 Continue` before the headers
    headers: bool = True

    # how it ends
    stop_at: int | None = None  # number of chunks after which `ending` happens; None: after all of them
    ending: Ending = "complete"
    exit_code: int = 1
    after: After = "keep"
    idle_ns: int = 0

    refusal: Refusal | None = None
    plain: bool = True

    def step(self, index: int) -> tuple[int, int]:
        """Tokens drafted and kept in the step that made chunk `index`, from 1: the first comes with the prompt."""
        if not self.steps:
            return self.drafted, self.per_chunk - 1
        kept = self.steps[(index - 1) % len(self.steps)]
        return (0, 0) if kept is None else (self.drafted, min(kept, self.drafted))

    def steps_ns(self, index: int) -> int:
        """When chunk `index` leaves, counted from the anchor, where steps have a duration."""
        drafted = sum(self.step(number)[0] for number in range(1, index + 1))
        return self.ttft_ns + index * self.step_ns + drafted * self.draft_ns

    def due_ns(self, token: int) -> int:
        """When a token leaves, counted from the anchor."""
        due = self.ttft_ns + token * self.tpot_ns
        for at, pause in self.pauses.items():
            if token >= at:
                due += pause
        return due
