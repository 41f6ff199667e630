from __future__ import annotations

from pathlib import Path

import pytest

from neuronbench import grid
from neuronbench.model import FrozenMap

SHORT = """
title = "Short"
[settings]
model = "@smoke"
window_s = 60.0
[axes]
concurrency = [1, 4]
input_tokens = [64, 512]
[[exclude]]
concurrency = 4
input_tokens = 512
[[include]]
concurrency = 32
input_tokens = 64
[sizes.quick.axes]
input_tokens = [64]
[sizes.quick.settings]
window_s = 5.0
[backends.inf2.settings]
max_model_len = 2048
[backends.inf2.sizes.quick.axes]
concurrency = [2]
"""
ROLES = '[smoke]\ncpu = "packaged:Small"\ndefault = "hub:org/small"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "serving").mkdir()
    (tmp_path / "models.toml").write_text(ROLES)
    (tmp_path / "serving" / "short.toml").write_text(SHORT)
    return tmp_path


def expand(folder: Path, backend: str = "cpu", size: str = "full", **overrides: tuple[str, ...]) -> list[dict]:
    loaded = grid.load(grid.find("serving/short", [folder]))
    return [dict(point.params) for point in loaded.expand(backend, size, overrides)]


def test_axes_are_crossed_in_file_order_and_settings_are_shared(folder: Path) -> None:
    assert [(row["concurrency"], row["input_tokens"]) for row in expand(folder)] == [
        (1, 64),
        (1, 512),
        (4, 64),
        (32, 64),
    ]
    assert all(row["model"] == "packaged:Small" and row["window_s"] == 60.0 for row in expand(folder))


def test_size_and_backend_layers_win_in_order(folder: Path) -> None:
    quick = expand(folder, size="quick")
    assert [(row["concurrency"], row["input_tokens"]) for row in quick] == [(1, 64), (4, 64), (32, 64)]
    assert {row["window_s"] for row in quick} == {5.0}
    inf2 = expand(folder, "inf2", "quick")
    assert [row["concurrency"] for row in inf2] == [2, 32]
    assert {row["max_model_len"] for row in inf2} == {2048}
    assert {row["model"] for row in inf2} == {"hub:org/small"}


def test_a_quick_grid_that_is_not_defined_is_the_grid_itself(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text("[axes]\na = [1, 2]\n")
    assert len(grid.load(tmp_path / "g.toml").expand("cpu", "quick")) == 2


def test_overrides_replace_axes_and_settings_and_read_types(folder: Path) -> None:
    rows = expand(folder, concurrency=("1", "16"), window_s=("2.5",), dtype=("float32",))
    assert {row["concurrency"] for row in rows} == {1, 16}
    assert {row["window_s"] for row in rows} == {2.5}
    assert {row["dtype"] for row in rows} == {"float32"}


def test_an_override_with_several_values_makes_a_setting_an_axis(folder: Path) -> None:
    loaded = grid.load(grid.find("serving/short", [folder]))
    found = loaded.expand("cpu", "quick", {"window_s": ("1", "2")})
    assert {point.params["window_s"] for point in found} == {1, 2}
    assert all("window_s" in point.axes for point in found)
    assert len({point.label for point in found}) == len(found)


def test_labels_are_short_and_unique(folder: Path) -> None:
    loaded = grid.load(grid.find("serving/short", [folder]))
    labels = [point.label for point in loaded.expand("cpu")]
    assert labels[0] == "c1-in64"
    assert len(set(labels)) == len(labels)


def test_points_do_not_repeat(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text("[axes]\na = [1, 1, 2]\n[[include]]\na = 2\n")
    found = grid.load(tmp_path / "g.toml").expand("cpu")
    assert [point.params for point in found] == [FrozenMap(a=1), FrozenMap(a=2)]


def test_exclude_takes_lists_and_shared_settings(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text(
        '[settings]\ndtype = "bf16"\n[axes]\na = [1, 2, 3]\n[[exclude]]\na = [1, 3]\ndtype = "bf16"\n'
    )
    assert [point.params["a"] for point in grid.load(tmp_path / "g.toml").expand("cpu")] == [2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axes = 3", "axes"),
        ("[axes]\na = []", "at least one value"),
        ("[axes]\na = 4", "expected a list"),
        ("[axis]\na = [1]", "did you mean 'axes'"),
        ("[sizes]\nquick = 3", "table of tables"),
        ("[sizes.quick]\naxe = 1", "did you mean 'axes'"),
        ("include = 4", "array of tables"),
        ("[axes\n", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(grid.GridError, match=message) as caught:
        grid.load(path)
    assert str(path) in str(caught.value)


def test_unknown_grid_size_and_role_say_what_there_is(folder: Path) -> None:
    with pytest.raises(grid.GridError, match=r"did you mean 'serving/short'.*there are: serving/short"):
        grid.find("serving/shrt", [folder])
    with pytest.raises(grid.GridError, match=r"no size 'quik' \(did you mean 'quick'\?\); it has: full, quick"):
        expand(folder, size="quik")
    (folder / "serving" / "bad.toml").write_text('[settings]\nmodel = "@smoek"\n')
    with pytest.raises(grid.GridError, match="did you mean 'smoke'"):
        grid.load(folder / "serving" / "bad.toml").expand("cpu")


def test_several_values_for_a_key_that_the_grid_lacks_do_not_multiply_its_points(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text("[axes]\na = [1, 2]\n")
    loaded = grid.load(tmp_path / "g.toml")
    assert len(loaded.expand("cpu", "full", {"other": ("1", "2")})) == 2
    assert {point.params["other"] for point in loaded.expand("cpu", "full", {"other": ("1",)})} == {1}
