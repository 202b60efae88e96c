"""The server's page in a browser: one that answers by script, and the page as people have it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("selenium", reason="driving a browser needs selenium")
pytest.importorskip("starlette", reason="the server needs starlette")
from riverrun.server.endpoints.page import POLICY, files
from scripted_server import Body, Said, Scripted, as_events, as_json
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

LIMIT = 20.0
MODELS = ("one", "two")
KINDS = ["ngram-mod", "mtp"]
TIMINGS = {"predicted_per_second": 50.0, "draft_n": 4, "draft_n_accepted": 3}


def chunk(pieces: list[tuple[str, str | None]], **delta: str) -> Body:
    """A chunk with these pieces; their text is the content unless told otherwise."""
    said = delta or {"content": "".join(text for text, _ in pieces)}
    choice = {"index": 0, "delta": said, "finish_reason": None, "drafted": pieces, "tokens": [1]}
    return {"choices": [choice]}


def ending(reason: str = "stop") -> list[Body]:
    last = {"index": 0, "delta": {}, "finish_reason": reason}
    usage = {"prompt_tokens": 9, "completion_tokens": 7}
    return [{"choices": [last], "timings": TIMINGS}, {"choices": [], "usage": usage}]


class World:
    """A server of the page. answer: gives what is said to the body of a chat."""

    def __init__(self) -> None:
        self.answer: Callable[[Body], Said] = lambda body: told([("fine", None)])
        self.loaded = {"one"}
        self.busy = False

    def __call__(self, path: str, body: Body) -> Said:
        path, _, query = path.partition("?")
        if path in ("/", *(f"/page/{name}" for name in files())):
            content, kind, _ = files()[path.removeprefix("/page/").strip("/") or "index.html"]
            return Said([content], kind=kind, headers={"Content-Security-Policy": POLICY})
        if path == "/v1/chat/completions":
            return self.answer(body)
        if path == "/v1/models":
            return as_json({"data": [{"id": name} for name in MODELS]})
        if path.startswith("/v1/models/"):
            return as_json({"meta": {"loaded": path.rsplit("/", 1)[1] in self.loaded}})
        if path == "/props":
            spec = {"kinds": KINDS, "draft_max": 16}
            return as_json({"model_alias": query[6:], "n_ctx": 512, "speculative": spec})
        if path == "/slots":
            return as_json([self.slot()])
        if path == "/metrics":
            text = b"riverrun_cached_tokens_total 1.0\nriverrun_prompt_tokens_total 3.0\n"
            return Said([text], kind="text/plain")
        return as_json({"error": {"message": "nothing here"}}, 404)

    def slot(self) -> Body:
        busy = {"stage": "generating", "n_prompt_tokens": 9, "n_prompt_tokens_cache": 4}
        more = {**busy, "n_decoded": 5} if self.busy else {}
        return {"id": 0, "model": "one", "n_ctx": 512, "is_processing": self.busy, **more}


def told(*chunks: list[tuple[str, str | None]], reason: str = "stop") -> Said:
    return as_events([*map(chunk, chunks), *ending(reason)])


class Page:
    """The page as a person has it."""

    def __init__(self, driver: Any, world: World, server: Scripted) -> None:
        self.driver, self.world, self.server = driver, world, server

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        # In one call, since elements may be replaced between two.
        return self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])]"
            ".map((each) => each.innerText.replace(/[\\t ]+/g, ' ').trim())",
            selector,
        )

    def say(self, text: str) -> None:
        self.one("#prompt").send_keys(text, Keys.ENTER)

    def until(self, found: Callable[[], Any]) -> Any:
        """What `found` gives as soon as it is true."""
        end = time.monotonic() + LIMIT
        while not (value := found()):
            assert time.monotonic() < end, self.one("body").text
            time.sleep(0.02)
        return value

    def answered(self, count: int = 1) -> None:
        """So many answers are there, and none is coming."""
        self.until(
            lambda: len(self.all(".assistant")) == count and not self.all(".assistant.growing")
        )

    def press(self, label: str, within: str = "body") -> None:
        buttons = self.one(within).find_elements(By.TAG_NAME, "button")
        next(each for each in buttons if each.text == label).click()

    def chats(self) -> list[Body]:
        return [body for path, body, _ in self.server.asked if path == "/v1/chat/completions"]

    def stored(self) -> Body:
        return json.loads(self.driver.execute_script("return localStorage['riverrun.settings']"))

    def faults(self) -> list[str]:
        return [line["message"] for line in self.driver.get_log("browser")]
