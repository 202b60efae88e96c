"""The page in a browser, against a server that answers by script and against the real one."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from page_rig import LIMIT, MODELS, Page, World, chunk, ending, told
from scripted_server import Body, Said, Scripted, as_events, as_json, scripted
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from server_rig import serving

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium or chromedriver is missing"),
]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,800"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield found
    found.quit()


@pytest.fixture
def page(driver: Any) -> Iterator[Page]:
    world = World()
    with scripted(world) as server:
        driver.get_log("browser")
        driver.get(server.url)
        found = Page(driver, world, server)
        found.until(lambda: found.texts("#model option") == list(MODELS))
        found.until(lambda: len(found.all("#spec option")) == 4)
        yield found
        assert found.faults() == []


def test_send_and_stream(page: Page) -> None:
    more = threading.Event()

    def parts() -> Iterator[bytes]:
        first = b"".join(as_events([chunk([("**bo", None)])], done=False).parts)
        yield first[:9]
        yield first[9:]
        assert more.wait(LIMIT)
        rest = [chunk([("ld**\n\n<b>x</b>\n", None)]), chunk([("```py\nif 1: pass\n```", None)])]
        yield from as_events([*rest, *ending("length")]).parts

    page.world.answer = lambda body: Said(parts(), kind="text/event-stream")
    page.one("#prompt").send_keys("two", Keys.SHIFT, Keys.ENTER, Keys.NULL, "lines", Keys.ENTER)
    page.until(lambda: page.texts(".assistant .text:not(details *)") == ["**bo"])
    assert page.one("#stop").is_displayed() and not page.one("#send").is_displayed()
    assert page.one(".assistant").get_attribute("aria-busy") == "true"
    more.set()
    page.answered()
    assert page.texts(".user .said") == ["two\nlines"] and not page.one("#empty").is_displayed()
    assert page.texts(".assistant strong") == ["bold"]
    assert "<b>x</b>" in page.texts(".assistant .text p") and page.all(".assistant b") == []
    assert page.texts(".code-keyword") == ["if", "pass"]
    note = page.one(".note").text
    for word in ("7 tokens", "50.0 t/s", "3 of 4 drafts kept (75 %)", "cut at the length limit"):
        assert word in note
    assert page.one("#announcer").get_attribute("textContent").startswith("Answer: **bold**")
    assert page.one(".assistant").get_attribute("aria-busy") == "false"
    (body,) = page.chats()
    assert body["messages"] == [{"role": "user", "content": "two\nlines"}]
    assert (body["model"], body["stream"], body["return_drafted"]) == ("one", True, True)
    assert page.driver.switch_to.active_element.get_attribute("id") == "prompt"


def test_copy(page: Page) -> None:
    page.world.answer = lambda body: told([("**bold**\n```py\nif 1: pass\n```", None)])
    page.say("go")
    page.answered()
    kept = "navigator.clipboard.writeText = async (text) => { window.kept = text; }"
    page.driver.execute_script(kept)
    for within, wanted in ((".program", "if 1: pass"), (".assistant > .bar", "**bold**\n```py")):
        page.press("Copy", within)
        page.until(lambda where=within: "Copied" in page.one(where).text)
        assert page.driver.execute_script("return window.kept").startswith(wanted)
    refused = "navigator.clipboard.writeText = async () => { throw new Error(); }"
    page.driver.execute_script(refused)
    page.until(lambda: page.one(".program button").text == "Copy")
    page.press("Copy", ".program")
    page.until(lambda: page.texts(".program button") == ["Not allowed"])


def test_nothing_is_not_sent(page: Page) -> None:
    page.say("  ")
    page.press("Send")
    assert page.all(".message") == [] and page.chats() == []


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop(how: str, page: Page) -> None:
    def parts() -> Iterator[bytes]:
        while True:
            yield from as_events([chunk([("word ", None)])], done=False).parts
            time.sleep(0.01)

    page.world.answer = lambda body: Said(parts(), kind="text/event-stream")
    page.say("go")
    page.until(lambda: "word word" in page.one(".assistant").text)
    if how == "button":
        page.press("Stop")
    else:
        page.one("#prompt").send_keys(Keys.ESCAPE)
    page.answered()
    assert "stopped" in page.one(".note").text and page.texts(".assistant .fault") == [""]
    page.until(lambda: page.server.gone == 1)
    page.world.answer = lambda body: told([("again", None)])
    page.say("more")
    page.answered(2)
    assert [m["role"] for m in page.chats()[1]["messages"]] == ["user", "assistant", "user"]
    assert page.chats()[1]["messages"][1]["content"].startswith("word word")


def test_regenerate_and_edit(page: Page) -> None:
    count = iter(range(100))
    page.world.answer = lambda body: told([(f"answer {next(count)}", None)])
    for n, text in enumerate(("a", "b")):
        page.say(text)
        page.answered(n + 1)
    page.press("Regenerate", ".assistant:last-child")
    page.until(lambda: page.texts(".assistant .text p") == ["answer 0", "answer 2"])
    page.answered(2)
    sent = page.chats()[2]["messages"]
    assert [m["content"] for m in sent] == ["a", "answer 0", "b"]
    page.press("Edit", ".user")
    field = page.one(".edit textarea")
    page.until(lambda: page.driver.switch_to.active_element == field)
    field.send_keys("c", Keys.ESCAPE)
    assert page.texts(".user .said") == ["a", "b"]
    page.press("Edit", ".user")
    page.one(".edit textarea").send_keys("x", Keys.ENTER)
    page.until(lambda: page.texts(".assistant .text p") == ["answer 3"])
    page.answered(1)
    assert page.texts(".user .said") == ["ax"]
    assert page.chats()[3]["messages"] == [{"role": "user", "content": "ax"}]
    page.press("New chat")
    assert page.all(".message") == [] and page.one("#empty").is_displayed()


def test_drafts_are_marked(page: Page) -> None:
    pieces = [("Two *wo", "ngram-mod"), ("rds* ", None), ("here", "mtp"), (" now", "other-one")]
    page.world.answer = lambda body: told(pieces[:2], pieces[2:])
    page.say("go")
    page.answered()
    marks = [
        (m.get_property("textContent"), m.get_attribute("title"))
        for m in page.all(".assistant .by")
    ]
    assert marks == [
        ("Two ", "drafted by ngram-mod"),
        ("wo", "drafted by ngram-mod"),
        ("here", "drafted by mtp"),
        (" now", "drafted by other-one"),
    ]
    assert page.texts(".assistant em") == ["words"]
    looks = {
        tuple(m.value_of_css_property(p) for p in ("text-decoration-style", "background-color"))
        for m in page.all(".assistant .by")
    }
    assert len(looks) == 3
    assert page.texts("#legend li") == ["mtp 20 %", "ngram-mod 35 %", "other-one 20 %"]
    page.press("Settings")
    page.one("#show-drafts").click()
    page.press("Close", "#settings")
    assert not page.one("#legend-bar").is_displayed()
    mark = page.one(".assistant .by")
    assert mark.value_of_css_property("text-decoration-line") == "none"


def test_reasoning_folds(page: Page) -> None:
    chunks = [
        chunk([("<think>", None), ("hm, ", None)], reasoning_content="hm, "),
        chunk([("well", "mtp")], reasoning_content="well"),
        chunk([("</think>yes", None)], content="yes"),
    ]
    page.world.answer = lambda body: as_events([*chunks, *ending()])
    page.say("go")
    page.answered()
    fold = page.one("details.reasoning")
    assert fold.is_displayed() and fold.get_attribute("open") is None
    fold.find_element(By.TAG_NAME, "summary").click()
    assert page.texts("details .text") == ["hm, well"] and page.texts("details .by") == ["well"]
    page.world.answer = lambda body: told([("plain", None)])
    page.say("more")
    page.answered(2)
    assert not page.all("details.reasoning")[1].is_displayed()
    assert page.chats()[1]["messages"][1]["reasoning_content"] == "hm, well"


def test_settings(page: Page) -> None:
    typed = {"temperature": "0.5", "top-p": "0.9", "seed": "7", "max-tokens": "12"}
    typed |= {"system": "Be brief.", "api-key": "k1", "draft-max": "3"}
    page.press("Settings")
    for name, value in typed.items():
        page.one(f"#{name}").send_keys(value)
    options = page.texts("#spec option")
    assert options == ["On (ngram-mod, mtp)", "Only ngram-mod", "Only mtp", "Off"]
    page.all("#spec option")[2].click()
    page.press("Close", "#settings")
    page.all("#model option")[1].click()
    page.driver.refresh()
    page.until(lambda: page.texts("#model option") == list(MODELS))
    page.say("go")
    page.answered()
    wanted = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 12, "model": "two"}
    body = page.chats()[-1]
    assert {name: body.get(name) for name in wanted} == wanted
    assert not [name for name in body if name.startswith("speculative")]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    headers = next(h for path, _, h in reversed(page.server.asked) if "chat" in path)
    assert headers["Authorization"] == "Bearer k1"
    asked = [path for path, _, _ in page.server.asked if path.startswith("/props")]
    assert asked and all(path == "/props?model=one" for path in asked)
    page.all("#model option")[0].click()
    page.until(lambda: page.one("#spec").get_property("value") == "mtp")
    page.say("go")
    page.answered(2)
    body = page.chats()[-1]
    assert (body["speculative"], body["speculative.n_max"]) == ("mtp", 3)
    page.press("Settings")
    page.all("#spec option")[3].click()
    page.press("Close", "#settings")
    page.say("go")
    page.answered(3)
    assert page.chats()[-1]["speculative"] is False
    assert "speculative.n_max" not in page.chats()[-1]
    page.press("Settings")
    page.press("Reset", "#settings")
    assert page.stored()["temperature"] == "" and page.stored()["api-key"] == "k1"


def test_a_model_that_is_loaded_when_it_is_asked(page: Page) -> None:
    page.all("#model option")[1].click()
    page.until(lambda: page.texts("#spec option") == ["On, where there are drafters", "Off"])

    def answer(body: Body) -> Said:
        page.world.loaded.add(body["model"])
        return told([("fine", None)])

    page.world.answer = answer
    page.say("go")
    page.answered()
    page.until(lambda: len(page.all("#spec option")) == 4)
    assert "/props?model=two" in [path for path, _, _ in page.server.asked]


def test_faults_are_told(page: Page) -> None:
    page.world.answer = lambda body: as_events(
        [chunk([("half", None)]), {"error": {"message": "out of pages"}}]
    )
    page.say("go")
    page.answered()
    assert page.texts(".assistant .fault") == ["out of pages"]
    assert page.texts(".assistant .text p") == ["half"]
    page.world.answer = lambda body: as_events([chunk([("half", None)])], done=False)
    page.press("Regenerate")
    page.until(lambda: "broke off" in page.one(".assistant .fault").text)
    page.answered()
    page.world.answer = lambda body: as_json({"error": {"message": "<i>no key</i>"}}, 401)
    page.press("Regenerate")
    page.until(lambda: "<i>no key</i> (Settings" in page.one(".assistant .fault").text)
    page.answered()
    page.world.answer = lambda body: told([("fine", None)])
    page.say("more")
    page.answered(2)
    assert [m["content"] for m in page.chats()[-1]["messages"]] == ["go", "more"]
    assert all("401" in fault for fault in page.faults())


def test_the_end_stays_in_sight_unless_one_looks_elsewhere(page: Page) -> None:
    more = threading.Event()
    lines = [chunk([(f"line {i}\n\n", None)]) for i in range(60)]

    def parts() -> Iterator[bytes]:
        yield from as_events(lines, done=False).parts
        assert more.wait(LIMIT)
        yield from as_events([*lines, *ending()]).parts

    def left() -> float:
        script = "const s = document.getElementById('scroll');"
        script += "return s.scrollHeight - s.scrollTop - s.clientHeight"
        return page.driver.execute_script(script)

    page.world.answer = lambda body: Said(parts(), kind="text/event-stream")
    page.say("go")
    page.until(lambda: len(page.all(".assistant .text p")) == 60)
    page.until(lambda: left() < 2)
    page.driver.execute_script("document.getElementById('scroll').scrollTop = 0")
    more.set()
    page.answered()
    assert len(page.all(".assistant .text p")) == 120 and left() > 1000
    page.world.answer = lambda body: told([("fine", None)])
    page.say("more")
    page.answered(2)
    assert left() < 2


def test_what_the_server_does(page: Page) -> None:
    button = page.one("#show-server")
    assert not page.one("#server").is_displayed()
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    page.until(lambda: page.texts("#slots tr") == ["0 free"])
    facts = dict(zip(page.texts("#facts dt"), page.texts("#facts dd"), strict=True))
    assert facts["model"] == "one" and facts["context"] == "512 tokens"
    assert facts["prompt from caches"] == "25 %" and facts["drafters"] == "ngram-mod, mtp"
    page.world.busy = True
    page.until(lambda: page.texts("#slots tr") == ["0 generating 9 (4 cached) 5"])
    button.click()
    assert not page.one("#server").is_displayed()


def test_colours_and_keys(page: Page) -> None:
    def ground() -> str:
        return page.one("body").value_of_css_property("background-color")

    seen = []
    for theme in ("light", "dark", "auto"):
        page.one("#theme").click()
        assert page.stored()["theme"] == theme
        seen.append(ground())
    assert len(set(seen)) == 2
    page.driver.refresh()
    page.until(lambda: page.texts("#model option") == list(MODELS))
    page.until(lambda: len(page.all("#spec option")) == 4)
    skip = page.one(".skip")
    assert skip.rect["y"] < 0
    page.driver.execute_script("arguments[0].focus()", skip)
    assert skip.text == "Skip to the message field" and skip.rect["y"] >= 0
    skip.send_keys(Keys.ENTER)
    assert page.driver.switch_to.active_element.get_attribute("id") == "prompt"


@contextlib.contextmanager
def window(page: Page, width: int) -> Iterator[None]:
    """The page in a window of that width; a phone's below 500."""
    sizes = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    try:
        yield
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(width: int, page: Page) -> None:
    long = "x" * 300
    text = f"{long}\n\n```\n{long}\n```\n\n| a | b |\n|--|--|\n| {long} | {long} |\n"
    page.world.answer = lambda body: told([(text, None)])
    with window(page, width):
        page.say(long)
        page.answered()
        page.press("Server")
        page.until(lambda: page.texts("#slots tr") != [])
        script = "return [document.documentElement.scrollWidth, innerWidth]"
        assert page.driver.execute_script(script) == [width, width]
        script = "const s = document.getElementById('scroll'); return s.scrollWidth - s.clientWidth"
        assert page.driver.execute_script(script) <= 0
        assert page.one("#send").is_displayed()


@pytest.mark.parametrize("width", [390, 1280])
def test_words_of_tables_are_not_broken(width: int, page: Page) -> None:
    words = ["quicksort", "mergesort", "heapsort", "insertion", "selection", "bubblesort"]
    rows = [words, ["--"] * len(words), [*words[:-1], "many words that take the room " * 9]]
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    page.world.answer = lambda body: told([(text, None)])
    with window(page, width):
        page.say("go")
        page.answered()
        script = (
            "return [...document.querySelectorAll('.assistant th')].map((cell) => {"
            " const all = document.createRange(); all.selectNodeContents(cell);"
            " return new Set([...all.getClientRects()].map((line) => line.top)).size; })"
        )
        assert page.driver.execute_script(script) == [1] * len(words)


def test_with_the_real_server(driver: Any) -> None:
    with serving(spec="ngram-mod", n_ctx=512) as real:
        driver.get_log("browser")
        driver.get(real.url)
        page = Page(driver, World(), Scripted(real.url))
        page.until(lambda: "ngram-mod" in " ".join(page.texts("#spec option")))
        page.one("#show-server").click()
        page.until(lambda: len(page.all("#slots tr")) == 4)
        page.say("x = 1")
        page.answered()
        assert "token" in page.one(".note").text and page.texts(".assistant .fault") == [""]
        page.until(lambda: "512 tokens" in page.texts("#facts dd"))
        assert page.faults() == []
