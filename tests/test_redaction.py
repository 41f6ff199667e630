"""Secrets do not get into what is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronbench.redaction import REDACTED, is_secret_name, redact, redact_argv


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnopqrst", "hf_abc"),
        ("token hf_abcdefghijklmnopqrst in prose", "hf_abc"),
        ("--api-key sekrit --port 80", "sekrit"),
        ("--api-key=sekrit", "sekrit"),
        ("non-default args: {'api_key': ['s3krit'], 'port': 1}", "s3krit"),
        ('{"password": "hunter22"}', "hunter22"),
        ("MLFLOW_TRACKING_PASSWORD=hunter2", "hunter2"),
        ("postgresql://mlflow:s3cret@db:5432/x", "s3cret"),
        ("https://user:p%40ss@example.org/x", "p%40ss"),
        ("https://x/y?X-Amz-Signature=0a1b2c&a=1", "0a1b2c"),
        ("Authorization: Bearer abc123def456", "abc123"),
        ("Authorization: Bearer abcdefghijklmnopqrstuvwxyz", "abcdefghijklm"),
        ("Authorization: Basic dXNlcjpwYXNz1", "dXNlcj"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalr"),
        ("aws_access_key_id = AKIAIOSFODNN7EXAMPLE", "AKIA"),
        ("found AKIAIOSFODNN7EXAMPLE here", "AKIA"),
        ("aws_session_token = FwoGZXIvYXdzE", "Fwo"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_abc"),
        ("sk-abcdefghijklmnop1234", "sk-abc"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSM", "eyJh"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ],
)
def test_secrets_are_taken_out(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert REDACTED in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=32 prompt_tokens: 5 num_tokens=7",
        "tokenizer=/srv/model, skip_tokenizer_init=False",
        "time per output token: 3.1 ms",
        "eos_token=<|im_end|> bos_token_id=1",
        "api_key=None",
        "sort_key=abc environment key 1a2b",
        "the password reset was fine; basic information about things",
        "--max-num-batched-tokens 2048 --port 8000",
        "http://127.0.0.1:8000/v1",
        "sha256 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@given(st.text(max_size=300))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


def test_names() -> None:
    for name in (
        "HF_TOKEN",
        "api-key",
        "--api-key",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "WANDB_API_KEY",
        "SSH_KEY",
    ):
        assert is_secret_name(name), name
    for name in ("max_tokens", "TOKENIZERS_PARALLELISM", "eos_token", "HF_HOME", "key", "NEURON_CC_FLAGS"):
        assert is_secret_name(name) is (name == "key"), name


def test_command_lines() -> None:
    argv = ["vllm", "--api-key", "abc", "def", "--port", "8000", "--hf-token=xyz12345", "--max-num-batched-tokens", "9"]
    assert redact_argv(argv) == [
        "vllm", "--api-key", REDACTED, REDACTED, "--port", "8000", f"--hf-token={REDACTED}",
        "--max-num-batched-tokens", "9",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--api-key", "k1", "-m", "cpu"], ["--api-key", "[redacted]", "-m", "cpu"]),
        (["--api-key", "k1", "k2", "--port", "1"], ["--api-key", "[redacted]", "[redacted]", "--port", "1"]),
        (["--api-key", "-k1", "x"], ["--api-key", "[redacted]", "[redacted]"]),
        (["--api-key=key1", "words", "stay"], ["--api-key=[redacted]", "words", "stay"]),
    ],
)
def test_only_the_values_of_a_secret_option_are_hidden(argv: list[str], expected: list[str]) -> None:
    assert redact_argv(argv) == expected
