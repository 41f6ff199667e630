"""The manifests for Kubernetes say what the catalogue of instances says, and agree with each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuronbench.catalog.instances import instances

FOLDER = Path(__file__).parents[3] / "plugins" / "ray" / "kubernetes"
CORES = "aws.amazon.com/neuroncore"


def documents(name: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")) if document]


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    (found,) = documents("raycluster.yaml")
    return found


def test_every_worker_is_a_whole_machine(cluster: dict[str, Any]) -> None:
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    known = {each.name: each for each in instances()}
    for group in cluster["spec"]["workerGroupSpecs"]:
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        machine = known[spec["nodeSelector"]["node.kubernetes.io/instance-type"]]
        limits = container["resources"]["limits"]
        assert limits == container["resources"]["requests"], "anything else may be put beside it"
        assert int(limits[CORES]) == machine.cores(), machine.name
        assert machine.vcpus * 0.7 <= int(limits["cpu"]) < machine.vcpus
        assert machine.name.startswith(group["groupName"])
        assert {"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]


def test_the_head_measures_nothing_and_keeps_receipts(cluster: dict[str, Any]) -> None:
    head = cluster["spec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    claims = {each["metadata"]["name"] for each in documents("service-account.yaml") if each["kind"] != "Namespace"}
    (volume,) = head["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] in claims


def test_pods_have_the_account_and_the_image_in_common(cluster: dict[str, Any]) -> None:
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    specs = [group["template"]["spec"] for group in groups]
    account = next(each for each in documents("service-account.yaml") if each["kind"] == "ServiceAccount")
    assert {spec["serviceAccountName"] for spec in specs} == {account["metadata"]["name"]}
    assert account["metadata"]["namespace"] == cluster["metadata"]["namespace"]
    assert len({container["image"] for spec in specs for container in spec["containers"]}) == 1


def test_there_is_a_node_group_for_every_kind_of_worker(cluster: dict[str, Any]) -> None:
    (config,) = documents("node-groups.yaml")
    there = {group["instanceType"]: group for group in config["managedNodeGroups"]}
    for group in cluster["spec"]["workerGroupSpecs"]:
        machines = there[group["template"]["spec"]["nodeSelector"]["node.kubernetes.io/instance-type"]]
        assert machines["taints"][0]["key"] == "aws.amazon.com/neuron"
        assert machines["maxSize"] == group["maxReplicas"]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_no_account_is_named(path: Path) -> None:
    assert not re.search(r"\b\d{12}\b", path.read_text(encoding="utf-8"))
