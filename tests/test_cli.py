"""The `neuronbench` command: what it prints, what it ends with, and that it fails in words."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import types
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from neuronbench import BackendInfo, Outcome, Point, Probe, ProviderInfo, Record, cli, config, hookimpl
from neuronbench.commands.host import CommandError, Host, ProgressLine
from neuronbench.definitions import metric
from neuronbench.doctor import Check, examine
from neuronbench.model import Failure, FrozenMap, Gate
from neuronbench.plugins import Plugins
from neuronbench.receipts import ReceiptStore

ROOT = Path(__file__).resolve().parent.parent


class Project:
    """A project's folder, and the command run in it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys
        (root / config.CONFIG_FILE).write_text("")
        self.store = ReceiptStore(root / "mlruns" / "receipts")

    def run(self, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        status = cli.main(["--root", str(self.root), *arguments])
        captured = self._capsys.readouterr()
        return status, captured.out, captured.err

    def configure(self, text: str) -> None:
        (self.root / config.CONFIG_FILE).write_text(text)

    def session(self) -> str:
        return self.store.begin_session(config.load(self.root, environ={}), command=["pytest", "benchmarks"])

    def receipt(self, session: str, outcome: Outcome = Outcome.OK, *, concurrency: int = 1, repeat: int = 1) -> Path:
        point = Point(
            benchmark="serving/bench_x.py::bench_x",
            lane="serving",
            backend="cpu",
            params=FrozenMap(concurrency=concurrency),
            axes=("concurrency",),
            id=f"serving.bench_x[c{concurrency}]",
        )
        record = Record(session=session, point=point, repeat=repeat, started_at="2026-11-30T12:00:00.000000+00:00")
        if outcome is Outcome.OK:
            record.add(metric("ttft", 12.5, stat="p50", n=64), metric("tpot", 3.25, stat="p50", n=64))
            record.gate(Gate(id="window", passed=True))
        else:
            record.error = Failure(
                kind="port_in_use", phase="boot", message="m", causal_line="address in use", remedy="another port"
            )
        staging = self.store.open(record)
        record.close(outcome, ended_at="2026-11-30T12:00:09.000000+00:00", duration_s=9.0)
        return self.store.commit(record, staging)


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in [name for name in os.environ if name.startswith("NEURONBENCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Project(tmp_path, capsys)


# -- the command itself -----------------------------------------------------------------------------------------------


def test_help_names_every_command_and_how_to_measure(project: Project) -> None:
    status, out, _ = project.run("--help")
    assert status == 0
    for name in ("doctor", "list", "plugins", "models", "push", "ui", "reap"):
        assert f"\n  {name} " in out
    assert "pytest benchmarks -m cpu" in out


@pytest.mark.parametrize("command", ["doctor", "list", "plugins", "models", "push", "ui", "reap"])
def test_every_command_has_help_that_says_more_than_its_name(project: Project, command: str) -> None:
    status, out, _ = project.run(command, "--help")
    assert status == 0
    assert len(out) > 150


def test_version(project: Project) -> None:
    assert project.run("--version") == (0, "neuronbench 0.1.0\n", "")


@pytest.mark.parametrize(
    "arguments", [["doctr"], ["list", "--lines"], ["list", "--number", "0"], ["ui", "--port", "x"]]
)
def test_wrong_usage_ends_with_2(project: Project, arguments: list[str]) -> None:
    status, out, err = project.run(*arguments)
    assert (status, out) == (2, "")
    assert "Error" in err


def test_a_wrong_setting_is_one_message(project: Project) -> None:
    project.configure("repeat = 3")
    status, out, err = project.run("list")
    assert (status, out) == (2, "")
    assert err.startswith(
        f"neuronbench: {project.root / config.CONFIG_FILE}: unknown key 'repeat' (did you mean 'repeats'?)"
    )
    assert len(err.splitlines()) == 1


def test_the_project_is_found_upwards(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = project.root / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert Host(plugins=Plugins(entry_points=False)).settings.root == project.root


def test_a_reader_that_leaves_early_is_no_traceback(project: Project) -> None:
    code = "import sys; from neuronbench.cli import main; sys.exit(main(['plugins', '--json']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
        assert process.wait(timeout=60) in (0, 1)


# -- list -------------------------------------------------------------------------------------------------------------


def test_list_without_anything(project: Project) -> None:
    status, out, _ = project.run("list")
    assert status == 0
    assert out.startswith(f"No sessions in {project.root}/mlruns/receipts yet")
    assert project.run("list", "--json")[:2] == (0, "[]\n")
    status, _, err = project.run("list", "--session", "last")
    assert status == 1
    assert "no receipts in" in err
    assert "To do: measure something first" in err


def test_list_sessions(project: Project) -> None:
    first, second = project.session(), project.session()
    project.receipt(first)
    project.receipt(first, concurrency=4)
    project.receipt(first, Outcome.ERROR, concurrency=8)
    project.store.end_session(first, 1)
    status, out, err = project.run("list")
    assert (status, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.strip().startswith(first)]
    assert "2 ok, 1 error" in line
    assert line.rstrip().endswith("1")
    assert second in out
    latest = project.run("list", "-n", "1")[1]
    assert max(first, second) in latest
    assert min(first, second) not in latest
    document = json.loads(project.run("list", "--json")[1])
    assert [row["session"] for row in document] == sorted([first, second])
    row = next(row for row in document if row["session"] == first)
    assert row["outcomes"] == {"ok": 2, "error": 1}
    assert (row["exit_status"], row["lanes"], row["command"]) == (1, ["serving"], ["pytest", "benchmarks"])


def test_list_the_points_of_a_session(project: Project) -> None:
    session = project.session()
    project.receipt(session)
    project.receipt(session, Outcome.ERROR, concurrency=8)
    for name in (session, session[:-1], "last"):
        status, out, err = project.run("list", "--session", name)
        assert (status, err) == (0, "")
        assert "12.5" in out
        assert "port_in_use in boot" in out
        assert "remedy: another port" in out
        assert f"Receipts: {project.root}/mlruns/receipts/{session}" in out
    document = json.loads(project.run("list", "--session", "last", "--json")[1])
    assert [record["outcome"] for record in document] == ["ok", "error"]
    assert document[0]["metrics"]["ttft_p50_ms"]["value"] == 12.5
    assert "No receipts" not in project.run("list", "--lane", "serving")[1]


def test_list_what_is_not_there(project: Project) -> None:
    session = project.session()
    status, _, err = project.run("list", "--session", "2099")
    assert status == 2
    assert f"there is no session '2099'; the latest are: {session}" in err
    project.session()
    assert "several sessions start with '2'" in project.run("list", "--session", "2")[2]
    status, _, err = project.run("list", "--lane", "serv")
    assert status == 2
    assert "no lane 'serv'; known: serving" in err
    assert "No receipts" in project.run("list", "--session", session)[1]


def test_a_damaged_receipt_is_named_and_the_rest_shown(project: Project) -> None:
    session = project.session()
    project.receipt(session)
    damaged = project.receipt(session, concurrency=4) / "record.json"
    damaged.write_text("{")
    for arguments in (("list",), ("list", "--session", "last")):
        status, out, err = project.run(*arguments)
        assert status == 1
        assert str(damaged) in err
        assert "Traceback" not in err
        assert session in out


# -- plugins and models -----------------------------------------------------------------------------------------------


def test_plugins_as_json(project: Project) -> None:
    status, out, _ = project.run("plugins", "--json")
    assert status == 0
    core = {report["name"]: report for report in json.loads(out)}["neuronbench.defaults"]
    assert core["source"] == "core"
    assert "serving" in core["registers"]["lanes"]


def tiny_model(folder: Path) -> Path:
    """A folder that looks like a model: a configuration and one tensor of two numbers."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["TinyForCausalLM"], "vocab_size": 10}))
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    return folder


def test_fetch_a_model_by_path_and_by_role(project: Project) -> None:
    folder = tiny_model(project.root / "tiny")
    status, out, err = project.run("models", "fetch", "file:tiny")
    assert status == 0, err
    assert out.startswith(f"file:tiny: {folder}")
    assert "TinyForCausalLM" in out
    assert "from: local" in out
    grids = project.root / "benchmarks" / "grids"
    grids.mkdir(parents=True)
    (grids / "models.toml").write_text(f'[smoke]\ndefault = "file:{folder}"\n[other]\ninf2 = "file:{folder}"\n')
    assert project.run("models", "fetch", "--role", "smoke")[0] == 0
    status, _, err = project.run("models", "fetch", "--role", "smokey")
    assert (status, err) == (2, "neuronbench: no role 'smokey' (did you mean 'smoke'?); known: smoke, other\n")
    status, _, err = project.run("models", "fetch", "--role", "other")
    assert (status, "means no model on 'cpu' and has no default" in err) == (2, True)
    document = json.loads(project.run("models", "list", "--json")[1])
    assert document["roles"]["smoke"] == {"default": f"file:{folder}"}


def test_fetch_what_cannot_be_had(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, _, err = project.run("models", "fetch", "no-such-org/no-such-model")
    assert status == 1
    assert "To do:" in err
    assert "Traceback" not in err
    assert project.run("models", "fetch")[0] == 2
    assert project.run("models", "fetch", "x", "--role", "smoke")[0] == 2
    assert "no backend 'gpu'" in project.run("models", "fetch", "file:x", "--backend", "gpu")[2]


def test_models_that_are_known(project: Project) -> None:
    status, out, _ = project.run("models", "list")
    assert status == 0
    assert "smollm2-135m-instruct" in out


# -- reap -------------------------------------------------------------------------------------------------------------


def test_reap_closes_what_a_killed_run_left_open(project: Project) -> None:
    status, out, _ = project.run("reap")
    assert (status, out) == (0, f"nothing is left running or open by runs in {project.root}/mlruns/receipts\n")
    session = project.session()
    script = (
        "import os, sys; from pathlib import Path; from neuronbench import Point, Record;"
        "from neuronbench.model import FrozenMap; from neuronbench.receipts import ReceiptStore;"
        "point = Point(benchmark='b', lane='serving', backend='cpu', params=FrozenMap(), id='x');"
        f"ReceiptStore(Path({str(project.store.root)!r})).open(Record(session={session!r}, point=point)); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 9
    status, out, _ = project.run("reap", "--dry-run")
    assert (status, out) == (0, f"nothing is left running by runs in {project.root}/mlruns/receipts\n")
    assert project.run("reap")[:2] == (0, f"{session}/x--r1: closed as interrupted\n")
    assert [h.outcome for h in project.store.headers(session)] == [Outcome.INTERRUPTED]


# -- doctor -----------------------------------------------------------------------------------------------------------


class Bench:
    """A backend that is there, or not, or breaks."""

    def __init__(self, info: BackendInfo) -> None:
        self.info = info

    def probe(self) -> Probe:
        if self.info.name == "broken":
            raise OSError("no")
        return Probe(available=self.info.name == "here", reason="no device", cores=2)

    def stack(self, kind: str, settings: Any) -> Any:
        raise LookupError(f"no Python environment for {kind!r}; looked at:\n  - nowhere\n  To do: make one")


def plugins_with(*names: str) -> Plugins:
    plugins = Plugins(entry_points=False)
    plugins.backends.remove_owner("neuronbench.backends.cpu")
    plugins.providers.remove_owner("neuronbench.backends.cpu")

    @hookimpl
    def register_backends(register: Callable[[BackendInfo], None]) -> None:
        for name in names:
            register(BackendInfo(name=name, title=name, target=f"{__name__}:Bench", family="made"))

    @hookimpl
    def register_resources(register: Callable[[ProviderInfo], None]) -> None:
        register(ProviderInfo(name="endpoint/made", kind="endpoint", families=("made",), target=f"{__name__}:Bench"))

    made = types.ModuleType("made")
    vars(made).update(register_backends=register_backends, register_resources=register_resources)
    plugins.register(made, name="made", source="test", strict=True)
    return plugins


def checks(project: Project, plugins: Plugins, **overrides: Any) -> dict[str, Check]:
    settings = config.load(project.root, environ={"XDG_CACHE_HOME": str(project.root / "cache")}, overrides=overrides)
    return {check.name: check for check in examine(settings, plugins)}


def test_doctor_says_what_is_there_and_what_is_not(project: Project) -> None:
    found = checks(project, plugins_with("here", "away", "broken"))
    assert (found["backend here"].status, found["backend here"].found) == ("ok", "here, capacity 2")
    assert (found["backend away"].status, found["backend away"].found) == ("info", "not here: no device")
    assert found["backend broken"].status == "fail"
    assert "plugin 'made' cannot look for it: OSError: no" in found["backend broken"].found
    assert found["stack serving"].status == "fail"
    assert "looked at" in found["stack serving"].found
    assert found["stack serving"].remedy == "make one"
    assert "backends" not in found


def test_doctor_without_any_hardware_fails(project: Project) -> None:
    assert checks(project, plugins_with("away"))["backends"].status == "fail"


def test_doctor_names_plugins_that_are_left_out(project: Project) -> None:
    plugins = plugins_with("here")
    bad = types.ModuleType("bad")
    vars(bad).update(NEURONBENCH_API="99")
    with pytest.warns(UserWarning, match="is left out"):
        plugins.register(bad, name="bad", source="entry point")
    found = checks(project, plugins)
    assert (found["plugin"].status, found["plugins"].status) == ("warn", "ok")
    assert "bad is left out: PluginError: is written for hook version 99" in found["plugin"].found


@pytest.mark.parametrize(
    ("variables", "file", "status", "word"),
    [
        ({"HF_TOKEN": "hf_secret"}, "", "ok", "set (HF_TOKEN)"),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_secret"}, "", "ok", "set (HUGGING_FACE_HUB_TOKEN)"),
        ({}, "hf_secret", "ok", "there ("),
        ({}, "", "info", "none"),
    ],
)
def test_doctor_looks_for_a_token_and_never_shows_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], file: str, status: str, word: str
) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HF_HOME": str(project.root), **variables}.items():
        monkeypatch.setenv(name, value)
    if file:
        (project.root / "token").write_text(file, encoding="utf-8")
    check = checks(project, plugins_with("here"))["hub token"]
    assert check.status == status
    assert word in check.found
    assert "hf_secret" not in f"{check.found}{check.remedy}"


def test_doctor_asks_a_backend_for_checks_of_its_own(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = plugins_with("here", "away")
    for name in ("here", "away"):
        own = [Check(name=f"own {name}", status="warn", found="something", remedy="this")]
        monkeypatch.setattr(plugins.backend(name), "checks", lambda settings, own=own: iter(own), raising=False)
    found = checks(project, plugins)
    assert (found["own here"].status, found["own here"].remedy) == ("warn", "this")
    assert "own away" not in found  # what is not here is not looked at


def test_doctor_on_folders(project: Project) -> None:
    found = checks(project, plugins_with("here"))
    assert found["receipts"].status in ("ok", "warn")
    assert found["model cache"].found == f"{project.root}/cache/neuronbench: empty"
    (project.root / "file").touch()
    found = checks(project, plugins_with("here"), data_root="file/x", cache_dir="file/y")
    assert (found["receipts"].status, found["model cache"].status) == ("fail", "fail")
    assert "set data_root" in found["receipts"].remedy


def test_doctor_on_mlflow(project: Project) -> None:
    plugins = plugins_with("here")
    assert checks(project, plugins)["mlflow"].status == "ok"
    assert checks(project, plugins, tracking_uri="off")["mlflow"].status == "info"
    (project.root / "mlruns").mkdir(exist_ok=True)
    database = project.root / "mlruns" / "mlflow.db"
    holder = sqlite3.connect(database, isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        locked = checks(project, plugins)["mlflow"]
    finally:
        holder.close()
    assert (locked.status, "database is locked" in locked.found) == ("warn", True)
    assert "neuronbench push" in locked.remedy
    assert checks(project, plugins)["mlflow"].status == "ok"
    database.write_text("this is no database, and long enough to be taken for one " * 20)
    assert "not a database" in checks(project, plugins)["mlflow"].found


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """Answers /health with the status that is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(getattr(self.server, "status", 200)))
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_doctor_on_an_mlflow_server(project: Project, server: HTTPServer) -> None:
    plugins = plugins_with("here")
    uri = f"http://user:secret@127.0.0.1:{server.server_port}"
    plain = f"http://127.0.0.1:{server.server_port}"
    assert checks(project, plugins, tracking_uri=plain)["mlflow"].status == "ok"
    server.status = 404  # type: ignore[attr-defined]
    assert checks(project, plugins, tracking_uri=plain)["mlflow"].status == "ok"
    server.status = 503  # type: ignore[attr-defined]
    assert "answers with status 503" in checks(project, plugins, tracking_uri=plain)["mlflow"].found
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://user:secret@127.0.0.1:{free.getsockname()[1]}"
        found = checks(project, plugins, tracking_uri=closed)["mlflow"]
    assert (found.status, "cannot be reached" in found.found) == ("warn", True)
    assert "secret" not in found.found
    assert "secret" not in checks(project, plugins, tracking_uri=uri)["mlflow"].found


def test_doctor_survives_a_check_that_breaks(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuronbench.environment.host_warnings", lambda: 1 / 0)
    found = checks(project, plugins_with("here"))
    assert found["host"] == Check(
        name="host", status="fail", found="cannot be checked: ZeroDivisionError: division by zero"
    )


def test_doctors_exit_status_and_output(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        Check(name="one", status="ok", found="fine"),
        Check(name="two", status="warn", found="first\nsecond", remedy="do this"),
    ]
    monkeypatch.setattr("neuronbench.doctor.examine", lambda settings, plugins: iter(made))
    status, out, _ = project.run("doctor")
    assert status == 0
    indent = " " * 24
    assert out == (
        f"ok    one               fine\nwarn  two               first\n{indent}second\n{indent}→ do this\n\n"
        "0 failed, 1 warning\n"
    )
    made.append(Check(name="three", status="fail", found="bad"))
    status, out, _ = project.run("doctor")
    assert (status, "FAIL  three" in out) == (1, True)
    status, out, _ = project.run("doctor", "--json")
    assert status == 1
    assert json.loads(out)[1] == {"name": "two", "status": "warn", "found": "first\nsecond", "remedy": "do this"}
    made[:] = made[:1]
    assert project.run("doctor")[1].endswith("\nall is well\n")


# -- MLflow -----------------------------------------------------------------------------------------------------------


def test_push_delivers_each_receipt_once(project: Project) -> None:
    session = project.session()
    project.receipt(session)
    assert project.run("push", "--session", "last")[:2] == (0, "1 delivered, 0 were there already, 0 still pending\n")
    assert project.run("push")[:2] == (0, "nothing is pending\n")
    with sqlite3.connect(project.root / "mlruns" / "mlflow.db") as database:
        (value,) = database.execute("SELECT value FROM latest_metrics WHERE key = 'ttft/p50_ms'").fetchone()
    database.close()
    assert value == 12.5
    damaged = project.receipt(session, concurrency=4) / "record.json"
    damaged.write_text("{")
    status, _, err = project.run("push")
    assert (status, str(damaged) in err) == (1, True)


def test_push_and_ui_when_mlflow_is_off(project: Project) -> None:
    project.configure('tracking_uri = "off"')
    for command in ("push", "ui"):
        status, _, err = project.run(command, *(["--port", "0"] if command == "ui" else []))
        assert (status, "switched off" in err) == (2, True)


def test_ui_refuses_a_port_in_use(project: Project) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, _, err = project.run("ui", "--port", str(taken.getsockname()[1]))
    assert status == 1
    assert "To do: give another one (--port 5001), or any that is free (--port 0)" in err


def test_ui_serves_until_ctrl_c(project: Project) -> None:
    command = [sys.executable, "-m", "neuronbench.cli", "--root", str(project.root), "ui", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        deadline = time.monotonic() + 90
        while True:
            assert process.poll() is None
            assert time.monotonic() < deadline, "MLflow did not answer"
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                    assert answer.status == 200
                break
            except OSError:
                time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=30)
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"{url}/health", timeout=5)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


# -- small things -----------------------------------------------------------------------------------------------------


def test_a_command_error_says_what_to_do() -> None:
    error = CommandError("it is so", remedy="do that")
    assert (str(error), error.status) == ("it is so\n  To do: do that", 1)


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine(heartbeat_s=3600.0)
    for number in range(5):
        line(f"step {number}")
    line.done()
    assert capsys.readouterr().err == "step 0\n"
