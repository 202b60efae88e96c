"""llama-server's own endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo import demo
from server_rig import GREEDY, PROMPT, Server, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(slot_save_path=folder, parallel=2) as made:
        yield made


def completion(server: Server, **more: Any) -> Any:
    body = {"prompt": PROMPT, "n_predict": 12, "temperature": 0, **more}
    return server.post("/completion", **body)


def test_completion(server: Server) -> None:
    expected = "".join(demo().generate(PROMPT, 12, temperature=0))
    found = completion(server, return_tokens=True, n_probs=2)
    assert found["content"] == expected
    assert found["stop_type"] == "limit"
    assert len(found["tokens"]) == len(found["completion_probabilities"]) == 12
    assert found["timings"]["predicted_n"] == 12
    events = server.stream("/completion", prompt=PROMPT, n_predict=12, temperature=0)
    assert "".join(event["content"] for event in events) == expected
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]


def test_prompts_of_tokens_and_texts(server: Server) -> None:
    ids = demo().tokenize(PROMPT)
    assert completion(server, prompt=ids)["content"] == completion(server)["content"]
    mixed = completion(server, prompt=["def quick", *ids[2:]])
    assert mixed["tokens_evaluated"] > 2


def test_why_it_stopped(server: Server) -> None:
    text = completion(server)["content"]
    found = completion(server, stop=[text[4:8]])
    assert (found["stop_type"], found["stopping_word"]) == ("word", text[4:8])


def test_infill_needs_tokens_for_it(server: Server) -> None:
    body = {"input_prefix": "def f(", "input_suffix": "    return x", "n_predict": 8}
    if {"pre", "suf", "mid"} <= demo().tokenizer.fim_ids.keys():
        found = server.post("/infill", **body, temperature=0)
        assert "<|fim_prefix|>" in found["prompt"]
    else:
        assert "fim_pre" in server.post("/infill", 400, **body)["error"]["message"]


def test_tokens(server: Server) -> None:
    found = server.post("/tokenize", content="import os", with_pieces=True)["tokens"]
    ids = [token["id"] for token in found]
    assert server.post("/tokenize", content="import os")["tokens"] == ids
    assert server.post("/detokenize", tokens=ids)["content"] == "import os"


def test_the_text_of_a_chat(server: Server) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    wanted = demo().chat_prompt([{"role": "user", "content": "hi"}]).text
    assert server.post("/apply-template", messages=messages)["prompt"] == wanted


def test_props_and_slots(server: Server) -> None:
    props = server.client.get("/props").json()
    assert (props["total_slots"], props["n_ctx"]) == (2, 512)
    slots = server.client.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1]
    assert not any(slot["is_processing"] for slot in slots)


def test_metrics(server: Server) -> None:
    completion(server)
    text = server.client.get("/metrics").text
    assert "riverrun_predicted_tokens_total" in text
    assert 'riverrun_http_requests_total{path="/completion",status="200"}' in text


def test_a_saved_slot_comes_back(server: Server, folder: Path) -> None:
    prompt = "# to be saved\n" * 20 + PROMPT
    first = completion(server, prompt=prompt)
    slot = first["id_slot"]
    saved = server.post(f"/slots/{slot}?action=save", filename="one.bin")
    assert saved["n_written"] == (folder / "one.bin").stat().st_size
    assert server.post(f"/slots/{slot}?action=erase")["n_erased"] == saved["n_saved"]
    restored = server.post(f"/slots/{slot}?action=restore", filename="one.bin")
    assert restored["n_restored"] == saved["n_saved"]
    longer = prompt + first["content"] + "\n"
    again = completion(server, prompt=longer)
    assert again["timings"]["cache_n"] > 0
    assert again["content"] == completion(server, prompt=longer, cache_prompt=False)["content"]


@pytest.mark.parametrize(
    "name", ["", "../x", "/etc/passwd", "a/b", ".hidden", "a\0b", "..", "x" * 300, "ü"]
)
def test_no_name_leads_out_of_the_folder(server: Server, name: str) -> None:
    for action in ("save", "restore"):
        error = server.post(f"/slots/0?action={action}", 400, filename=name)["error"]
        assert "filename" in error["message"]


def test_links_are_not_followed(server: Server, folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    server.post("/slots/0?action=save", 400, filename="link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_damaged_or_missing_file(server: Server, folder: Path) -> None:
    (folder / "bad.bin").write_bytes(b"no state at all")
    server.post("/slots/0?action=erase")
    assert server.post("/slots/0?action=restore", 400, filename="bad.bin")["error"]
    assert server.post("/slots/0?action=restore", 404, filename="none.bin")["error"]
    assert completion(server)["content"]


@pytest.mark.parametrize("slot", ["2", "-1", "x", "1e3"])
def test_slots_that_there_are_not(server: Server, slot: str) -> None:
    server.post(f"/slots/{slot}?action=erase", 400)


def test_actions_that_there_are_not(server: Server) -> None:
    server.post("/slots/0?action=eat", 400)
    assert server.post("/v1/completions", **GREEDY)["choices"]
