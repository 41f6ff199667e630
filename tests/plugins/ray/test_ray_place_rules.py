"""Points on a fleet without Ray: which go together, who may hand in what, what is refused before anything runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from neuronbench_ray.place import arguments, code, commands, fleet, groups, landing, prepare
from neuronbench_ray.place.groups import Box
from neuronbench_ray.place.items import Item, Plan
from neuronbench_ray.place.ledger import Attempt, Ledger
from neuronbench_ray.place.marks import LOST

from neuronbench import Outcome, Point, cli
from neuronbench.compare.outcomes import state
from neuronbench.model import Environment, FrozenMap, Provenance
from neuronbench.receipts import ReceiptStore


def item(number: int, *, resource: str = "", repeat: int = 1, skip: str = "", **params: object) -> Item:
    point = Point(
        benchmark="benchmarks/bench_x.py::bench_x", lane="serving", backend="inf2",
        params=FrozenMap({"number": number, **params}), id=f"p{number}",
    )  # fmt: skip
    return Item(
        name=f"p{number}--r{repeat}", nodeid=f"x[{number}]", point=point, repeat=repeat, resource=resource, skip=skip
    )


def box(name: str, items: list[Item], cores: int = 2) -> Box:
    return Box(id=name, name=name, cores=cores, plan=Plan(items=items))


def boxes(count: int, items: list[Item], cores: int = 2) -> list[Box]:
    return [box(f"n{number}", items, cores) for number in range(1, count + 1)]


# -- groups -----------------------------------------------------------------------------------------------------------


def test_points_of_one_resource_stay_together_while_no_box_idles() -> None:
    items = [item(n, resource="a") for n in range(1, 6)] + [item(n, resource="b") for n in range(6, 8)]
    made = groups.make(boxes(2, items))
    assert [[i.name for i in group.items] for group in made] == [
        [f"p{n}--r1" for n in range(1, 6)], ["p6--r1", "p7--r1"],
    ]  # fmt: skip


def test_a_large_group_is_split_where_boxes_would_idle_and_never_between_repeats() -> None:
    items = [item(n, resource="a", repeat=r) for r in (1, 2) for n in range(1, 9)]
    made = groups.make(boxes(3, items))
    assert [len(group.points) for group in made] == [4, 2, 2]
    where = [{i.point.id for i in group.items} for group in made]
    assert sum(len(one) for one in where) == len(set().union(*where)), "repeats of a point are apart"
    assert sorted(i.name for group in made for i in group.items) == sorted(i.name for i in items)


def test_three_points_are_not_worth_a_second_boot() -> None:
    assert len(groups.make(boxes(4, [item(n, resource="a") for n in (1, 2, 3)]))) == 1


def test_points_go_only_where_they_can_run() -> None:
    one, two = item(1, resource="a"), item(2, resource="b", tp_degree=8)
    small = box("small", [one, two], cores=2)
    large = box("large", [replace(one, skip="no driver"), two], cores=24)
    made = groups.make([small, large])
    assert {group.items[0].name: group.boxes for group in made} == {
        "p1--r1": frozenset({"small"}), "p2--r1": frozenset({"large"}),
    }  # fmt: skip


def test_cores_beside_each_other_are_given_out_once() -> None:
    cores = [str(core) for core in range(12)]
    first = groups.core_sets(cores, 2, [])
    second = groups.core_sets(cores, 4, [first or ()])
    assert (first, second) == (("0", "1"), ("4", "5", "6", "7"))
    assert groups.core_sets(cores, 8, [first or ()]) is None


# -- the ledger -------------------------------------------------------------------------------------------------------


def placed(ledger: Ledger, where: Box, among: list[Box]) -> Attempt:
    attempt = ledger.place(where, ["0", "1"], among)
    assert attempt is not None
    return attempt


def test_a_box_has_one_group_at_a_time_and_all_of_its_cores() -> None:
    nodes = boxes(1, [item(1, resource="a"), item(2, resource="b")])
    ledger = Ledger(groups.make(nodes))
    first = placed(ledger, nodes[0], nodes)
    assert first.cores == ("0", "1")
    assert ledger.place(nodes[0], ["0", "1"], nodes) is None
    ledger.take(first, first.group.items[0].name)
    assert ledger.over(first) == []
    placed(ledger, nodes[0], nodes)


def test_shared_boxes_give_disjoint_cores() -> None:
    nodes = boxes(1, [item(n, resource=str(n), tp_degree=2) for n in (1, 2, 3)], cores=4)
    ledger = Ledger(groups.make(nodes), share=True)
    given = [attempt.cores for _ in range(3) if (attempt := ledger.place(nodes[0], list("0123"), nodes))]
    assert given == [("0", "1"), ("2", "3")]


def test_a_lost_attempt_is_fenced_off_and_the_rest_of_it_placed_elsewhere() -> None:
    nodes = boxes(2, [item(n, resource="a") for n in (1, 2, 3)])
    ledger = Ledger(groups.make(nodes))
    lost = placed(ledger, nodes[0], nodes)
    ledger.take(lost, "p1--r1")
    lost.running = "p2--r1"
    loss = ledger.lose(lost)
    assert loss is not None
    assert (loss.item.name, loss.number, loss.gave_up) == ("p2--r1", 1, False)
    assert "declared lost" in ledger.refusal(lost, "p2--r1")
    with pytest.raises(ValueError, match="declared lost"):
        ledger.take(lost, "p2--r1")
    assert ledger.lose(lost) is None, "lost twice"
    assert ledger.place(nodes[0], ["0", "1"], nodes) is None, "back to where it was lost, with another box there"
    again = placed(ledger, nodes[1], nodes)
    assert [i.name for i in again.group.items] == ["p2--r1", "p3--r1"]
    assert again.id == "g1.2"


def test_where_no_other_box_is_left_it_goes_back() -> None:
    nodes = boxes(1, [item(1)])
    ledger = Ledger(groups.make(nodes))
    ledger.lose(placed(ledger, nodes[0], nodes))
    placed(ledger, nodes[0], nodes)


def test_no_receipt_comes_in_twice() -> None:
    nodes = boxes(1, [item(1), item(2)])
    ledger = Ledger(groups.make(nodes))
    attempt = placed(ledger, nodes[0], nodes)
    ledger.take(attempt, "p1--r1")
    assert ledger.refusal(attempt, "p1--r1")
    assert ledger.refusal(attempt, "p2--r1") == ""


def test_a_point_that_is_lost_again_and_again_is_given_up_and_the_others_go_on() -> None:
    nodes = boxes(1, [item(1), item(2)])
    ledger = Ledger(groups.make(nodes), retries=1)
    for number in (1, 2):
        attempt = placed(ledger, nodes[0], nodes)
        attempt.running = "p1--r1"
        loss = ledger.lose(attempt)
        assert loss is not None
        assert (loss.number, loss.gave_up) == (number, number == 2)
    assert [i.name for i in ledger.missing] == ["p2--r1"]
    assert ledger.given_up == {"p1--r1"}


def test_a_barred_box_gets_nothing_and_what_it_did_not_run_goes_elsewhere() -> None:
    nodes = boxes(2, [item(n, resource="a") for n in (1, 2)])
    ledger = Ledger(groups.make(nodes))
    attempt = placed(ledger, nodes[0], nodes)
    ledger.take(attempt, "p1--r1")
    ledger.bar("n1", "its device hangs")
    ledger.again(attempt, {"p2--r1"})
    assert ledger.place(nodes[0], ["0", "1"], nodes) is None
    assert ledger.could_run([nodes[0]]) is False
    assert placed(ledger, nodes[1], nodes).group.items[0].name == "p2--r1"
    assert ledger.losses == []


# -- before anything runs ---------------------------------------------------------------------------------------------


def test_more_cores_than_any_node_has_are_refused_up_front() -> None:
    with pytest.raises(prepare.Refused, match="needs 8 neuron cores, and the largest node has 2") as refused:
        prepare.check(boxes(3, [item(1, tp_degree=8)]))
    assert refused.value.usage
    with pytest.raises(prepare.Refused, match="needs 4 neuron cores"):
        prepare.check(boxes(3, [item(1)]), cores=4)


def test_what_no_node_can_run_is_refused_with_the_reasons() -> None:
    with pytest.raises(prepare.Refused, match="the only point:\n  inf2: no Neuron device") as refused:
        prepare.check(boxes(2, [item(1, skip="inf2: no Neuron device")]))
    assert refused.value.nothing
    with pytest.raises(prepare.Refused, match="no benchmark was collected") as refused:
        prepare.check(boxes(2, []))
    assert refused.value.nothing  # pytest's 5


def test_nodes_that_are_kept_for_load_are_not_measured_on() -> None:
    def node(**has: object) -> fleet.Node:
        facts = {"alive": True, "cores": 0, "cpus": 4.0, "sends_load": False, **has}
        return fleet.Node(id="a", name="n1", address="", head=False, accelerator="", **facts)  # type: ignore[arg-type]

    assert node().measures
    assert not node(sends_load=True).measures  # leased whole, it could send none
    assert node(sends_load=True, cores=2).measures
    assert not node(cpus=0.0).measures
    assert not node(alive=False).measures


def test_what_is_wrong_on_all_nodes_in_the_same_way_is_told_once() -> None:
    told = prepare.together([("n2", "SyntaxError, in 4.9s"), ("n1", "SyntaxError, in 4.41s"), ("n3", "no such module")])
    assert told == ["n1, n2: SyntaxError, in 4.9s", "n3: no such module"]


def test_a_store_that_takes_nothing_is_found_out_before_nodes_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "receipts").touch()
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURONBENCH_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.2:9")
    assert cli.main(["--root", str(tmp_path), "ray", "run"]) == 1
    told = capsys.readouterr().err
    assert "receipts cannot be kept" in told
    assert "127.0.0.2" not in told  # before the cluster is reached for


def test_an_interrupt_before_anything_is_measured_is_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(address: str) -> None:
        raise KeyboardInterrupt

    (tmp_path / "benchmarks").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_cluster", interrupted)
    assert cli.main(["--root", str(tmp_path), "ray", "run"]) == 2  # pytest's, not the shell's 130
    assert "interrupted" in capsys.readouterr().err


def test_points_that_differ_between_nodes_are_refused() -> None:
    nodes = [box("n1", [item(1)]), box("n2", [replace(item(1), point=replace(item(1).point, source_hash="x"))])]
    with pytest.raises(prepare.Refused, match="differ between nodes"):
        prepare.check(nodes)


def test_a_node_with_other_code_is_told_with_both_sides() -> None:
    node = fleet.Node(id="a", name="n1", address="", alive=True, cores=2, cpus=1, head=False, accelerator="")
    told = {"parts": {"python": "3.11.8", "neuronbench": "b" * 64}, "error": "", "plan": ""}
    found = prepare.meet(node, told, {"python": "3.11.8", "neuronbench": "a" * 64})
    assert found == "its code is not the head's: neuronbench: aaaaaaaaaaaa on the head, bbbbbbbbbbbb there"


def test_a_project_is_sent_without_results_and_arrives_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    for name, text in {"benchmarks/bench_x.py": "x = 1", "mlruns/receipts/r.json": "{}", ".venv/a.py": ""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shipment = code.ship(root)
    monkeypatch.setattr(code, "scratch", lambda: tmp_path / "node")
    there = code.unpack(shipment)
    assert [path.name for path in there.rglob("*.*")] == ["bench_x.py"]
    (there / "benchmarks" / "bench_x.py").write_text("x = 2")
    with pytest.raises(code.CodeError, match="on the head"):
        code.unpack(shipment)
    here = code.ship(root, send=False)
    assert code.unpack(here) == root
    (root / "benchmarks" / "bench_x.py").write_text("x = 3")
    with pytest.raises(code.CodeError, match="bring both to the same state"):
        code.unpack(here)


@pytest.mark.parametrize(
    "words", [["--nb-resume", "last"], ["--nb-resume", "latest"], ["--nb-resume=latest"], ["--nb-resume"]]
)
def test_arguments_that_the_head_keeps(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "benchmarks").mkdir()
    given = [str(tmp_path / "benchmarks"), "-m", "inf2", *words, "--nb-tracking-uri=off"]
    asked = arguments.read(given, root=tmp_path, here=tmp_path)
    assert asked == arguments.Asked(args=("benchmarks", "-m", "inf2"), resume="last", tracking_uri="off")
    with pytest.raises(arguments.ArgumentError, match="needs no box"):
        arguments.read(["--nb-endpoint=http://x"], root=tmp_path, here=tmp_path)
    with pytest.raises(arguments.ArgumentError, match="one after the other"):
        arguments.read(["benchmarks", "-n2"], root=tmp_path, here=tmp_path)
    with pytest.raises(arguments.ArgumentError, match="below the project"):
        arguments.read(["/etc"], root=tmp_path, here=tmp_path)
    own = {"NEURONBENCH_GRID": "full", "NEURONBENCH_DATA_ROOT": "/x", "NEURON_CC_FLAGS": "-O1"}
    assert arguments.environ(["NEURON_CC_FLAGS", "A=1"], own) == {
        "NEURONBENCH_GRID": "full", "NEURON_CC_FLAGS": "-O1", "A": "1",
    }  # fmt: skip


def test_errors_of_ray_are_told_apart() -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    assert fleet.kind_of(exceptions.ActorUnavailableError("x", b"0" * 16)) == "away"
    assert fleet.kind_of(exceptions.RayActorError()) == "gone"
    assert fleet.kind_of(OSError("disk full")) == ""
    died = Exception(
        "The actor died unexpectedly before finishing this task.\nThe actor died because its node has died."
    )
    assert fleet.why(died)[0]


# -- receipts ---------------------------------------------------------------------------------------------------------


def test_receipts_come_in_whole_once_and_as_they_were_sent(tmp_path: Path) -> None:
    from neuronbench.sinks.contents import RestoreError, contents

    node, head = ReceiptStore(tmp_path / "node"), ReceiptStore(tmp_path / "head")
    session = head.begin_session()
    nodes = boxes(1, [item(1)])
    ledger = Ledger(groups.make(nodes))
    attempt = placed(ledger, nodes[0], nodes)
    sent = landing.Landing(node, session).lost(
        attempt, groups_loss(ledger, attempt), kind="session_died", cause="killed", started_at="",
        environment=Environment(key="e"), provenance=Provenance.SIMULATED, log="the end\n",
    )  # fmt: skip
    folder = node.root / sent.receipt_id
    facts = {path: (fact.sha256, fact.bytes) for path, fact in contents(folder).items()}

    def read(path: str, offset: int, size: int) -> bytes:
        return (folder / path).read_bytes()[offset : offset + min(size, 100)]

    here = landing.Landing(head, session)
    with pytest.raises(RestoreError, match="what came is not what was sent"):
        here.land(sent.receipt_name, facts, lambda path, offset, size: b"x" * size)
    assert [entry.name for entry in (head.root / session).iterdir()] == ["session.json"]
    record = here.land(sent.receipt_name, facts, read)
    assert record.to_json() == json.loads((folder / "record.json").read_text())
    assert (head.root / record.receipt_id / "pytest.log").read_text() == "the end\n"
    assert (record.outcome, record.error.kind, record.tags[LOST]) == (Outcome.INTERRUPTED, "session_died", "1")  # type: ignore[union-attr]


def groups_loss(ledger: Ledger, attempt: Attempt):  # type: ignore[no-untyped-def]
    attempt.running = attempt.group.items[0].name
    return ledger.lose(attempt)


def test_a_lost_attempt_says_nothing_of_a_point_that_was_measured_again() -> None:
    def reading(outcome: Outcome, repeat: int, **tags: str) -> SimpleNamespace:
        return SimpleNamespace(
            outcome=outcome,
            repeat=repeat,
            tags=tags,
            measured=outcome is Outcome.OK,
            error="",
            validity="valid",
            failed=(),
        )

    lost = reading(Outcome.INTERRUPTED, 1, lost_attempt="1")
    assert state([lost, reading(Outcome.OK, 1)])[0] == "ok"  # type: ignore[list-item]
    assert state([lost, reading(Outcome.OK, 2)])[0] == "failed"  # type: ignore[list-item]


def test_a_session_of_several_hosts_has_one_id_and_boots_of_their_own(tmp_path: Path) -> None:
    from neuronbench import config

    environ = {"NEURONBENCH_SESSION": "20261130-012345-ab12", "NEURONBENCH_SESSION_PART": "g1.1"}
    settings = config.load(tmp_path, environ=environ)
    assert (settings.session, settings.part) == ("20261130-012345-ab12", "g1.1")
    assert ReceiptStore(tmp_path / "receipts").begin_session(settings) == "20261130-012345-ab12"
    with pytest.raises(ValueError, match="expected an id"):
        ReceiptStore(tmp_path / "receipts").begin_session(replace(settings, session="../x"))
