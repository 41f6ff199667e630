"""From a data set to arrays of token ids of one fixed width, made once and kept under the digest of all that matters.

Examples are held out by what they say, before anything is packed: the examples whose SHA-256 is smallest are the
hold-out set, equal ones together, whatever the seed of the training is. Rows are of `sequence_length` tokens: packed
without padding, or one example each and padded. An item is a row, or for preferences two: the chosen answer's and the
rejected one's. Loss is on answers, not on prompts; on all tokens of plain text and
in pretraining.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FORMS = {
    "instructions": ("instruction", "response"),
    "preferences": ("prompt", "chosen", "rejected"),
    "text": ("text",),
}
SPLITS = ("train", "holdout")
SYNTHETIC_HOLDOUT = 1
"""Added to the seed of synthetic data for the set that is held out."""


@dataclass(frozen=True)
class Split:
    """Rows of one set. All arrays have a row per sequence."""

    ids: Any
    """[rows, sequence_length] int32; padding on the right."""
    lengths: Any
    """[rows] int32: tokens that are not padding."""
    loss: Any
    """[rows, sequence_length] uint8: 1 where the token is one to be learnt."""
    rows_per_item: int = 1

    @property
    def items(self) -> int:
        return len(self.ids) // self.rows_per_item

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def padding_tokens(self) -> int:
        return int(self.ids.size) - self.tokens

    def digest(self) -> str:
        found = hashlib.sha256()
        for array in (self.ids, self.lengths, self.loss):
            found.update(f"{array.dtype} {array.shape} ".encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()

    def rows(self, items: Sequence[int]) -> list[int]:
        """Rows of items, in the order in which a batch has them: of pairs, all that are chosen first."""
        each = self.rows_per_item
        return [each * item + part for part in range(each) for item in items]


@dataclass(frozen=True)
class Prepared:
    """A data set as a job trains on it."""

    train: Split
    holdout: Split
    facts: dict[str, Any]

    def split(self, name: str) -> Split:
        if name not in SPLITS:
            raise ValueError(f"split: expected {' or '.join(SPLITS)}, found {name!r}")
        return self.train if name == "train" else self.holdout


@dataclass(frozen=True)
class Tokens:
    """A tokenizer of transformers, and what a digest of its output must cover."""

    tokenizer: Any
    digest: str
    """Of the files it is made of."""
    vocabulary: int
    """Ids below this can be looked up in the model."""

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @property
    def end(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def padding(self) -> int:
        found = self.tokenizer.pad_token_id
        return self.end if found is None else int(found)


def prepare(
    job: dict[str, Any], source: dict[str, Any], tokens: Tokens, cache: Path, say: Callable[[str], None]
) -> Path:
    """The folder with the arrays for `job`, made now if it was not there.

    `source`: `{"path": file of JSON lines}`, or `{"synthetic": seed}`.
    """
    parts = {name: job[name] for name in ("dataset_limit", "holdout", "packing", "sequence_length")}
    pairs = job["method"] in ("dpo", "orpo")
    parts.update(pairs=pairs, everything=job["method"] == "pretrain", tokenizer=tokens.digest)
    parts["code"] = _sha256(Path(__file__).read_bytes())
    if "path" in source:
        content = Path(source["path"]).read_bytes()
        parts["file"] = _sha256(content)
    else:
        content = b""
        wanted = job["steps"] * job["batch_size"] * job["accumulation"] * job["world_size"]
        parts.update(synthetic=source["synthetic"], items=job["dataset_limit"] or wanted)
    folder = cache / _sha256(json.dumps(parts, sort_keys=True).encode())[:32]
    if (folder / "facts.json").is_file():
        return folder
    say(f"tokenising {job['dataset']}")
    begun = time.monotonic()
    if "path" in source:
        train, holdout, facts = _from_text(job, content.decode("utf-8"), tokens, pairs)
    else:
        train, holdout, facts = _synthetic(job, source["synthetic"], parts["items"], tokens, pairs)
    facts = {
        "name": job["dataset"], "digest": train.digest(), "sequences": len(train.ids), "items": train.items,
        "tokens": train.tokens, "padding_tokens": train.padding_tokens, "loss_tokens": int(train.loss.sum()),
        "holdout_digest": holdout.digest() if holdout.items else None, "holdout_sequences": len(holdout.ids),
        "holdout_tokens": holdout.tokens, "file_digest": parts.get("file"), "tokenizer": tokens.digest,
        **facts, "prepare_s": time.monotonic() - begun,
    }  # fmt: skip
    making = folder.with_name(f".{folder.name}-{os.getpid()}-{secrets.token_hex(4)}")
    making.mkdir(parents=True)
    for name, split in (("train", train), ("holdout", holdout)):
        np.savez(making / f"{name}.npz", ids=split.ids, lengths=split.lengths, loss=split.loss)
    (making / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    try:
        making.rename(folder)
    except OSError:  # another process was faster; what it made is the same
        shutil.rmtree(making)
    return folder


def load(folder: Path, pairs: bool) -> Prepared:
    """What `prepare` made."""

    def split(name: str) -> Split:
        with np.load(folder / f"{name}.npz") as arrays:
            return Split(arrays["ids"], arrays["lengths"], arrays["loss"], 2 if pairs else 1)

    return Prepared(split("train"), split("holdout"), json.loads((folder / "facts.json").read_text(encoding="utf-8")))


# -- text


def _from_text(job: dict[str, Any], text: str, tokens: Tokens, pairs: bool) -> tuple[Split, Split, dict[str, Any]]:
    rows = [json.loads(line) for line in text.splitlines() if line.strip()][: job["dataset_limit"]]
    if not rows:
        raise ValueError(f"data set {job['dataset']!r} has no rows")
    form = next((form for form, fields in FORMS.items() if all(field in rows[0] for field in fields)), None)
    if form is None or pairs != (form == "preferences"):
        wanted = "prompt, chosen, rejected" if pairs else "instruction and response, or text"
        raise ValueError(
            f"data set {job['dataset']!r}: {job['method']} learns from rows with {wanted}; found {sorted(rows[0])}"
        )
    everything = form == "text" or job["method"] == "pretrain"
    held = _held_out([_key(row, form) for row in rows], job["holdout"])
    examples: dict[str, list[Any]] = {"train": [], "holdout": []}
    for row, out in zip(rows, held, strict=True):
        example = _encode(row, form, tokens)
        if everything:
            example = [(ids, [1] * len(ids)) for ids, _ in example]
        examples["holdout" if out else "train"].append(example)
    width, pad = job["sequence_length"], tokens.padding
    if pairs or not job["packing"]:
        made = {name: _padded(few, width, pad, 2 if pairs else 1) for name, few in examples.items()}
    else:
        made = {name: _packed(few, width, pad, keep_rest=name == "holdout") for name, few in examples.items()}
    total = sum(len(ids) for example in examples["train"] for ids, _ in example)
    if not made["train"].items:
        raise ValueError(
            f"data set {job['dataset']!r} does not fill one sequence: expected at least {width} tokens to train on, "
            f"found {total} in {len(examples['train'])} examples. Use a shorter sequence_length or more data"
        )
    facts = {
        "form": form, "examples": len(examples["train"]), "holdout_examples": len(examples["holdout"]),
        "dropped_tokens": total - made["train"].tokens, "packed": not pairs and job["packing"],
        "loss_on": "all tokens" if everything else "answers",
    }  # fmt: skip
    return made["train"], made["holdout"], facts


def _key(row: dict[str, Any], form: str) -> str:
    """What an example says: examples of equal text are held out together or not at all."""
    fields = {field: row[field] for field in FORMS[form]}
    return _sha256(json.dumps({**fields, "context": row.get("context") or ""}, sort_keys=True).encode())


def _held_out(keys: list[str], share: float) -> list[bool]:
    """Which examples are held out: those of the smallest digests until there are enough, at least one if any."""
    if not share:
        return [False] * len(keys)
    wanted = max(round(share * len(keys)), 1)
    chosen: set[str] = set()
    count = 0
    for key in sorted(set(keys)):
        if count >= wanted:
            break
        chosen.add(key)
        count += keys.count(key)
    return [key in chosen for key in keys]


Example = list[tuple[list[int], list[int]]]
"""A sequence's ids and where its loss is; two of them for a pair."""


def _encode(row: dict[str, Any], form: str, tokens: Tokens) -> Example:
    if form == "text":
        ids = [*tokens.ids(row["text"]), tokens.end]
        return [(ids, [1] * len(ids))]
    if form == "preferences":
        return [_answered(row["prompt"], row[name], tokens) for name in ("chosen", "rejected")]
    asked = row["instruction"] if not row.get("context") else f"{row['instruction']}\n\n{row['context']}"
    return [_answered(asked, row["response"], tokens)]


def _answered(asked: str, answer: str, tokens: Tokens) -> tuple[list[int], list[int]]:
    """A prompt and its answer in the words of the model's chat template, which a server applies too."""
    words = tokens.tokenizer
    if words.chat_template:
        messages = [{"role": "user", "content": asked}]
        prompt = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        whole = words.apply_chat_template([*messages, {"role": "assistant", "content": answer}], tokenize=False)
        completion = whole[len(prompt) :] if whole.startswith(prompt) else answer
        completion = completion.rstrip("\n")
    else:
        prompt, completion = f"### Question\n{asked}\n\n### Answer\n", answer
    first, then = tokens.ids(prompt), tokens.ids(completion)
    if then[-1:] != [tokens.end]:
        then.append(tokens.end)
    return [*first, *then], [0] * len(first) + [1] * len(then)


def _packed(examples: list[Example], width: int, pad: int, keep_rest: bool) -> Split:
    """Examples one after the other, cut into rows; what is left at the end is a padded row, or left out."""
    stream = [token for example in examples for token in example[0][0]]
    where = [flag for example in examples for flag in example[0][1]]
    whole = len(stream) // width * width
    cuts = list(range(0, len(stream) if keep_rest else whole, width))
    return _rows([(stream[at : at + width], where[at : at + width]) for at in cuts], width, pad, 1)


def _padded(examples: list[Example], width: int, pad: int, each: int) -> Split:
    """One example a row. Those of whose answer nothing is left within the width teach nothing, and are left out."""
    cut = [[(ids[:width], loss[:width]) for ids, loss in example] for example in examples]
    kept = [example for example in cut if all(any(loss) for _, loss in example)]
    return _rows([part for example in kept for part in example], width, pad, each)


def _rows(parts: Sequence[tuple[list[int], list[int]]], width: int, pad: int, each: int) -> Split:
    ids = np.full((len(parts), width), pad, dtype=np.int32)
    loss = np.zeros((len(parts), width), dtype=np.uint8)
    lengths = np.zeros(len(parts), dtype=np.int32)
    for row, (found, where) in enumerate(parts):
        ids[row, : len(found)], loss[row, : len(found)], lengths[row] = found, where, len(found)
    return Split(ids, lengths, loss, each)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- synthetic


def _synthetic(
    job: dict[str, Any], seed: int, items: int, tokens: Tokens, pairs: bool
) -> tuple[Split, Split, dict[str, Any]]:
    """Rows full of ordinary tokens drawn at random: the shapes of packed text and nothing to learn."""
    special = set(tokens.tokenizer.all_special_ids)
    ordinary = np.array([token for token in range(tokens.vocabulary) if token not in special], dtype=np.int32)
    width, each = job["sequence_length"], 2 if pairs else 1

    def draw(count: int, more: int) -> Split:
        ids = np.random.default_rng([seed, more]).choice(ordinary, size=(count * each, width))
        loss = np.ones_like(ids, dtype=np.uint8)
        if pairs:  # a prompt that both share, and an answer
            half = max(width // 2, 1)
            ids[1::2, :half], loss[:, :half] = ids[0::2, :half], 0
        return Split(ids, np.full(count * each, width, dtype=np.int32), loss, each)

    held = max(round(job["holdout"] * items), 1) if job["holdout"] else 0
    facts = {
        "form": "synthetic", "examples": items, "holdout_examples": held, "dropped_tokens": 0,
        "packed": not pairs, "loss_on": "answers" if pairs else "all tokens",
    }  # fmt: skip
    return draw(items, 0), draw(held, SYNTHETIC_HOLDOUT), facts
