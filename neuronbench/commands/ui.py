"""`neuronbench ui`: look at the results in MLflow."""

from __future__ import annotations

import os
import socket
import sys
from typing import Annotated

import typer

from neuronbench.commands import host

ADDRESS = "127.0.0.1"


def ui(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 5000,
) -> None:
    """Serve MLflow's interface over this project's results, on this machine only. Ctrl-C ends it."""
    from neuronbench.sinks.mlflow import ui_command, ui_environment, ui_pages

    chosen, settings = _free(port), host.of(context).settings
    try:
        command = ui_command(settings, host=ADDRESS, port=chosen)
    except ValueError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    command += ["--workers", "1"]  # one reader; four of them take four times as long to start
    address = f"http://{ADDRESS}:{chosen}"
    host.say(f"MLflow: {address}  (there in a few seconds; Ctrl-C ends it)")
    pages = ui_pages(settings, address)
    for lane, page in pages.items():
        host.say(f"  {lane:<{max(map(len, pages))}}  {page}")
    sys.stderr.flush()
    # Its runner of background jobs is a process of its own that nothing here needs.
    environ = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **ui_environment()}
    os.execve(command[0], command, environ)  # in place of this process: signals and exit status are MLflow's own


def _free(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise host.CommandError(
                f"port {port} of {ADDRESS} cannot be used: {error.strerror}",
                remedy="give another one (--port 5001), or any that is free (--port 0)",
            ) from error
        return int(probe.getsockname()[1])
