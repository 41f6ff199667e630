"""Pages of HTML that are cut off, made to hurt, or would have something run, loaded or expanded."""

from __future__ import annotations

from pathlib import Path

import aws_pages
import pytest
from test_hostile_files import TEXTS, refused

from neuronbench.importers import KINDS, gather

HTML = aws_pages.table_html(aws_pages.grid(aws_pages.ENCODER, aws_pages.rows("encoder")[:2]))


def test_a_page_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    _, name, whole = TEXTS["aws-html"]
    for part in range(0, len(whole.rstrip()) - len("</html>"), 997):
        (tmp_path / name).write_text(whole[:part])
        refused("aws", tmp_path / name)


@pytest.mark.parametrize(
    "page",
    [
        "<table>" * 100_000,
        "<div>" * 100_000 + "<table>",
        "<table><tr>" + "<td>" * 5_000,
        "<!--" + "x" * 3_000_000,
        "<a " + "b=c " * 1_000_000,
        "<script>" + "<table>" * 100_000,
        HTML.replace("<td>", "<td colspan=99999999>", 1),
        HTML.replace("<td>", "<td rowspan=99999999>", 1),
        "<html><body><p>" + "&amp;lt;" * 200_000 + "</p>",
        "<table><tr><td>" + "&#" * 500_000,
    ],
    ids=["tables", "divs", "cells", "comment", "attributes", "script", "colspan", "rowspan", "references", "numbers"],
)
def test_pages_that_are_made_to_hurt(page: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page)
    refused("aws", path)


def test_a_page_runs_nothing_loads_nothing_and_expands_nothing(tmp_path: Path) -> None:
    bomb = "<!DOCTYPE html [<!ENTITY a 'lol'>" + "".join(
        f"<!ENTITY a{index} '&a{index - 1 or ''};&a{index - 1 or ''};'>" for index in range(1, 40)
    )
    page = tmp_path / "page.html"
    page.write_text(
        bomb + "]><html><body><img src='http://127.0.0.1:9/x'><iframe src='file:///etc/passwd'></iframe>"
        f"<p>&a39;</p>{HTML}<td>&a39;</td></body></html>"
    )
    found = gather(KINDS["aws"], page)
    assert [item.params["model"] for item in found] == ["albert-base-v2", "bert-base-cased"]


def test_scripts_and_styles_are_no_text(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(HTML.replace("albert-base-v2", "<script>evil()</script><b>albert</b>-base-v2<style>x</style>"))
    assert gather(KINDS["aws"], page)[0].params["model"] == "albert-base-v2"
