"""An OpenAI-compatible server of known timings: what clients are measured against.

    python -m neuronbench.testing.truth_server --ttft-ms 50 --tpot-ms 10

or, in a test, `with TruthServer(ttft_ms=50, tpot_ms=10) as server: ...`.

The first token of an answer leaves `ttft` after the request's last byte arrived, and token k `k * tpot` later. Every
event carries `x_mono_ns`, the CLOCK_MONOTONIC instant (ns) read right before it was handed to the kernel: on the same
host, a client's error is its own stamp minus that one. `GET /truth` returns all instants of all requests, and the
server's own lateness. `POST /truth/reset` forgets them.

The model name chooses what goes wrong: `truth` is plain, `truth:stall,at=10,ms=5000` pauses; `--list-scenarios` prints
all of them. `ttft`, `tpot` and `tokens` may be given with any: `truth:ttft=200,tpot=5`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from neuronbench.testing.truth.process import TruthServer
from neuronbench.testing.truth.settings import Settings

__all__ = ["Settings", "TruthServer", "main", "scenario_list"]


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and serve until stopped."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.list_scenarios:
        print(scenario_list())
        return
    values = {name: value for name, value in vars(options).items() if name in Settings.__dataclass_fields__}
    try:
        settings = Settings(**values | {"models": tuple(options.models)})
    except ValueError as error:
        parser.error(str(error))
    # Imported late: tests that only want the context manager need none of the server.
    from neuronbench.testing.truth.server import serve

    serve(settings, with_parent=options.with_parent)


def scenario_list() -> str:
    """All scenarios with their parameters, as text."""
    from neuronbench.testing.truth.catalogue import SCENARIOS
    from neuronbench.testing.truth.scenarios import COMMON

    lines = []
    for name, scenario in SCENARIOS.items():
        lines.append(f"{name:16}{scenario.meaning}")
        for key, parameter in scenario.parameters.items():
            choices = f" ({'|'.join(parameter.choices)})" if parameter.choices else ""
            lines.append(f"{'':18}{key}={parameter.default}  {parameter.meaning}{choices}")
    lines.append("with any of them:")
    lines += [f"{'':18}{key}=  {meaning}" for key, meaning in COMMON.items()]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m neuronbench.testing.truth_server",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Settings()
    add = parser.add_argument
    add("--host", default=default.host, help="address to listen on (default %(default)s)")
    add("--port", type=int, default=default.port, help="0: any free port; the ready line says which")
    add("--ttft-ms", type=float, default=default.ttft_ms, help="time to the first token (default %(default)s)")
    add("--tpot-ms", type=float, default=default.tpot_ms, help="time from token to token (default %(default)s)")
    add("--anchor", choices=("arrival", "parsed"), default=default.anchor,
        help="deadlines count from the kernel's receive stamp or from after parsing (default %(default)s)")  # fmt: skip
    add("--max-concurrency", type=int, metavar="N", help="answers in progress at once; others queue in order")
    add("--model", action="append", default=[], dest="models", metavar="NAME",
        help="serve this name besides `truth`; may be given several times")  # fmt: skip
    add("--natural-tokens", type=int, default=default.natural_tokens,
        help="length of an answer that ends by itself (default %(default)s)")  # fmt: skip
    add("--max-model-len", type=int, default=default.max_model_len, help="context length (default %(default)s)")
    add("--kv-tokens", type=int, default=default.kv_tokens, help="tokens that fill the KV cache (default %(default)s)")
    add("--prefix-cache", action="store_true", help="keep prompt blocks; the first token comes earlier on a hit")
    add("--keep-records", type=int, default=default.keep_records, help="requests that /truth remembers")
    add("--freeze-at-s", type=float, metavar="T", help="freeze the whole server T seconds after the first request")
    add("--freeze-s", type=float, default=default.freeze_s, help="for how long")
    add("--accept-delay-ms", type=float, default=default.accept_delay_ms, help="wait before accepting connections")
    add("--api-key", help="ask for this bearer token")
    add("--log", type=Path, metavar="FILE", help="write every record as a JSON line when the server ends")
    add("--with-parent", type=int, metavar="PID", help="end when this process, which must be the parent, ends")
    add("--list-scenarios", action="store_true", help="print the scenarios and exit")
    return parser


if __name__ == "__main__":
    main()
