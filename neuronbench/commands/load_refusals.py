"""What a server's refusal of the first request means, and what to do about it."""

from __future__ import annotations

import re
from typing import Final

from neuronbench.redaction import redact
from neuronbench.serving.verify import GenerationError

LOG: Final = "Look at the server's log; measure again when it answers."
_NO_SUCH_MODEL: Final = re.compile(
    r"(?i)\bmodel\b.{0,200}?\b(does not exist|doesn't exist|not found|not available|not served|not loaded|unknown)\b"
    r"|\b(no such|unknown|invalid) model\b"
)
"""A refusal in which a model is said not to be there, as servers word it."""


def refusal(error: BaseException, model: str) -> tuple[str, str] | None:
    """Message and remedy for the answer behind `error`; None where its own words are right.

    That a model is not served is only said of an answer that says so: status 404, or words to that effect. A server
    that is ill (5xx) or busy (429) has said nothing about the model.
    """
    problem: BaseException | None = error
    while problem is not None and not isinstance(problem, GenerationError):
        problem = problem.__cause__
    if problem is None or problem.kind == "endpoint_auth":
        return None
    if problem.kind == "not_openai_compatible":
        said = redact(problem.body[:300].strip())
        return (
            f"{problem}" + (f": {said}" if said else ""),
            "Check that this is the address of an OpenAI-compatible server; if it is, look at the server's log.",
        )
    named = problem.status == 404 or (problem.status < 500 and _NO_SUCH_MODEL.search(problem.body))
    if problem.kind == "generation_failed" and not named:
        remedy = "Do what the server says; its log may say more."
        if problem.status == 429:
            remedy = "It lets nobody in for now: wait, or ask whoever runs it for a higher limit."
        elif problem.status >= 500:
            remedy = LOG
        return redact(f"asked for {model!r}, {problem}" if model else str(problem)), remedy
    if model and not named:  # an answer that is no generation says nothing about the name
        return redact(f"asked for {model!r}: {problem}"), LOG
    return None
