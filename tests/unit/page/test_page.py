"""The files of the live page: what they are, and that they need nobody else."""

import re

import pytest

from page.routes import page_files
from tests.fakes import AsgiClient

FROM_ELSEWHERE = re.compile(
    rb"""(?:src|href)\s*=\s*["'](?:[a-z]+:)?//|url\(|@import|(?:fetch|import)\(?\s*["'`](?:[a-z]+:)?//"""
)


def test_the_page_and_each_of_its_files_is_served(client: AsgiClient) -> None:
    files = page_files()
    assert {"index.html", "app.js", "style.css", "uplot.js", "uplot-license.txt"} <= set(files)
    page = client.get("/ui")
    assert page.body == files["index.html"]
    for name, content in files.items():
        reply = client.get(f"/ui/{name}")
        assert (reply.status, reply.body) == (200, content)
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
    assert client.get("/ui/style.css").headers["content-type"].startswith("text/css")
    assert client.get("/ui/app.js").headers["content-type"].startswith("text/javascript")


def test_the_root_leads_to_the_page(client: AsgiClient) -> None:
    reply = client.get("/")
    assert (reply.status, reply.headers["location"]) == (307, "ui")


def test_the_page_as_a_folder_is_the_page(client: AsgiClient) -> None:
    reply = client.get("/ui/")
    assert (reply.status, reply.headers["location"]) == (308, "../ui")


@pytest.mark.parametrize("name", ["nothing.js", "%2e%2e", "routes.py"])
def test_nothing_else_is_served(client: AsgiClient, name: str) -> None:
    assert client.get(f"/ui/{name}").status == 404


def test_it_is_small() -> None:
    assert sum(map(len, page_files().values())) < 200 * 1024


def test_no_file_asks_for_another_host() -> None:
    for name, content in page_files().items():
        assert not FROM_ELSEWHERE.search(content), name


def test_nothing_in_the_page_is_inline() -> None:
    page = page_files()["index.html"]
    assert not re.search(rb"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=", page)


def test_each_file_that_the_page_or_a_module_names_is_there() -> None:
    files = page_files()
    named = set(re.findall(rb'(?:src|href)="ui/([^"]+)"', files["index.html"]))
    for name, content in files.items():
        if name.endswith(".js") and name != "uplot.js":
            named |= set(re.findall(rb'from "\./([^"]+)"', content))
    assert len(named) > 10
    assert {name.decode() for name in named} <= set(files)
