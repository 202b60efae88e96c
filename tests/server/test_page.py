"""The page at /: what the server gives out, and what its files hold, without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from paths import ROOT
from riverrun.speculative.known import declared_drafters
from server_rig import Server, serving

FOLDER = ROOT / "server" / "page"
FILES = sorted(path for path in FOLDER.iterdir() if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(api_keys=("secret",)) as found:
        yield found


def test_files_are_given_out_without_a_key(server: Server) -> None:
    assert len(FILES) > 10
    for path in FILES:
        answer = server.client.get(f"/page/{path.name}")
        assert answer.status_code == 200 and answer.content == path.read_bytes(), path
        kind = answer.headers["content-type"]
        assert kind.split(";")[0] == TYPES[path.suffix[1:]], path
        assert "charset=utf-8" in kind or path.suffix == ".svg"
    assert server.client.get("/").content == (FOLDER / "index.html").read_bytes()
    assert server.client.get("/v1/models").status_code == 401


def test_browsers_are_told_to_take_nothing_from_elsewhere(server: Server) -> None:
    for path in ("/", "/page/main.js"):
        headers = server.client.get(path).headers
        policy = dict(
            part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'self'"
        others = ("base-uri", "form-action", "frame-ancestors", "object-src")
        assert all(policy[name] == "'none'" for name in others)
        assert headers["x-content-type-options"] == "nosniff"


def test_copies_that_are_still_the_same_are_not_sent_again(server: Server) -> None:
    first = server.client.get("/page/main.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'"other", W/{tag}'):
        again = server.client.get("/page/main.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag and "content-security-policy" in again.headers
    other = server.client.get("/page/main.js", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200 and other.content == first.content
    assert server.client.get("/page/api.js").headers["etag"] != tag
    assert server.client.head("/").status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2e%2e/app.py", ".", "a/b.js", ""])
def test_other_files_are_not_given_out(name: str, server: Server) -> None:
    assert server.client.get(f"/page/{name}").status_code == 404


def test_the_page_of_another_site_is_refused(server: Server) -> None:
    assert server.client.get("/", headers={"Host": "evil.example"}).status_code == 403
    assert server.client.get("/", headers={"Origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: object) -> None:
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    outside = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'<)]*", text))
    assert outside <= {"http://www.w3.org/2000/svg"}, outside
    assert "@import" not in text and "url(" not in text


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_text_never_becomes_html_or_code(path: object) -> None:
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in text
    assert not re.search(r"new Function|setTimeout\(\s*[\"'`]|DOMParser|createContextual", text)


def test_imports_lead_to_files_and_all_files_are_used() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    used = set(re.findall(r'(?:src|href)="page/([\w.]+)"', page))
    for path in SCRIPTS:
        named = re.findall(r'from "\./([\w.]+)"', path.read_text(encoding="utf-8"))
        assert path.name not in named
        used |= set(named)
    assert used == {path.name for path in FILES} - {"index.html"}


def test_ids_are_there_once_and_used_ids_are_there() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([\w-]+)"', page)
    assert len(ids) == len(set(ids)) > 20
    asked = set(re.findall(r'(?:for|aria-controls|aria-labelledby)="([\w-]+)"', page))
    asked |= {link for link in re.findall(r'href="#([\w-]+)"', page)}
    for path in SCRIPTS:
        asked |= set(re.findall(r'byId\("([\w-]+)"\)', path.read_text(encoding="utf-8")))
    settings = (FOLDER / "settings.js").read_text(encoding="utf-8")
    table = settings.split("const NUMBERS = {")[1].split("};")[0]
    asked |= set(re.findall(r'^ +"?([\w-]+)"?: \[', table, re.M))
    assert asked <= set(ids), asked - set(ids)


def test_everything_that_is_asked_for_has_a_name() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    labelled = set(re.findall(r'<label[^>]* for="([\w-]+)"', page))
    fields = re.findall(r'<(?:input|select|textarea)\b[^>]*\bid="([\w-]+)"', page)
    assert set(fields) == labelled and len(fields) > 8
    assert '<html lang="en"' in page and 'role="status" aria-live="polite"' in page
    assert " style=" not in page and not re.search(r"\son\w+=", page)


def test_each_drafter_has_a_colour_and_a_line_of_its_own() -> None:
    script = (FOLDER / "drafts.js").read_text(encoding="utf-8")
    count = int(re.search(r"COLOURS = (\d+)", script)[1])  # type: ignore[index]
    known = re.findall(r'"([\w-]+)"', script.split("const KNOWN = [")[1].split("]")[0])
    assert set(known) <= dict(declared_drafters(ROOT / "speculative")).keys()
    assert len(known) == count - 1
    style = (FOLDER / "text.css").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^\.by-(\d) \{ (.*) \}$", style, re.M))
    assert len(lines) == count
    kinds = [re.sub(r"--c: [^;]+; ", "", lines[str(i)]) for i in range(count)]
    colours = [found for line in lines.values() for found in re.findall(r"--c: [^;]+", line)]
    assert len(set(kinds)) == count and len(set(colours)) == count - 1


def test_the_fields_of_its_requests_are_honoured(server: Server) -> None:
    chunks = server.client.post(
        "/v1/chat/completions",
        headers={"Authorization": "Bearer secret"},
        json={
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "def f("}],
            "stream": True,
            "stream_options": {"include_usage": True},
            **{"return_drafted": True, "return_tokens": True, "temperature": 0.5, "top_p": 0.9},
            **{"seed": 3, "max_tokens": 6, "speculative": False, "speculative.n_max": 2},
        },
    )
    assert chunks.status_code == 200, chunks.text
    assert (
        '"usage":{' in chunks.text and '"drafted":[' in chunks.text and '"timings":{' in chunks.text
    )
