"""The command: its one line, its exit codes, and files that survive it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest
from paths import DEMO


@contextmanager
def command(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`riverrun serve` as a process, and its address once it is ready."""
    words = [sys.executable, "-m", "riverrun", "serve", *options, "--port", "0", "-c", "256"]
    process = subprocess.Popen(
        [*words, "--no-warmup"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        yield process, _address(process.stderr)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _address(lines: IO[str]) -> str:
    seen = []
    for line in lines:
        seen.append(line)
        found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", line)
        if found:
            return found[1]
    raise AssertionError("".join(seen))


def test_it_ends_with_code_0() -> None:
    with command() as (process, url):
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == ""


def test_a_port_in_use_is_an_error_in_a_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        found = subprocess.run(
            [sys.executable, "-m", "riverrun", "serve", "--port", port],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert found.returncode == 1
    assert port in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "options",
    [
        ("--parallel", "0"),
        ("--port", "70000"),
        ("--models", "nowhere"),
        ("--slot-save-path", "nowhere"),
        ("--log-format", "xml"),
        ("--spec", "nothing"),
    ],
    ids=lambda options: options[0],
)
def test_wrong_options_are_usage_errors(options: tuple[str, str]) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "riverrun", "serve", *options],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 2
    assert options[0] in found.stderr


def test_models_of_a_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copy(DEMO, tmp_path / f"{name}.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with (
        command("--models", str(tmp_path), "--max-models", "1") as (_, url),
        httpx.Client(base_url=url, timeout=120) as client,
    ):
        names = [model["id"] for model in client.get("/v1/models").json()["data"]]
        assert names == ["broken", "one", "two"]
        for name in ("one", "two", "one"):
            body = {"model": name, "prompt": "x", "max_tokens": 2}
            answer = client.post("/v1/completions", json=body)
            assert answer.json()["model"] == name
            loaded = client.get("/v1/models").json()["data"]
            assert [m["id"] for m in loaded if m["meta"]["loaded"]] == [name]
        body = {"model": "broken", "prompt": "x"}
        assert client.post("/v1/completions", json=body).status_code == 500
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 400
        assert client.get("/health").status_code == 200


def test_killed_while_it_saves_a_slot(tmp_path: Path) -> None:
    """The file is the old one or the new one."""
    sizes = set[int]()
    prompt = list(range(5, 205))
    for moment in (0.0, 0.002, 0.005, 0.01):
        with command("--slot-save-path", str(tmp_path), "--parallel", "1") as (process, url):
            with httpx.Client(base_url=url, timeout=60) as client:
                client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
                path = tmp_path / "slot.bin"
                if not path.exists():
                    client.post("/slots/0?action=save", json={"filename": "slot.bin"})
                    sizes.add(path.stat().st_size)
                _save_and_kill(process, url, moment)
            assert path.stat().st_size in sizes
    with command("--slot-save-path", str(tmp_path), "--parallel", "1") as (_, url):
        body = {"filename": "slot.bin"}
        answer = httpx.post(f"{url}/slots/0?action=restore", json=body, timeout=60)
        assert answer.json()["n_restored"] == len(prompt) + 1


def _save_and_kill(process: subprocess.Popen[str], url: str, moment: float) -> None:
    host, port = url.removeprefix("http://").split(":")
    data = b'{"filename": "slot.bin"}'
    head = f"POST /slots/0?action=save HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head.encode() + b"\r\n" + data)
        time.sleep(moment)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)


@pytest.mark.parametrize("asked", [(), ("--cache-ram", "0")])
def test_texts_that_have_no_room_go_to_host_memory(asked: tuple[str, ...]) -> None:
    """Three prompts in turn, where attention memory has pages for two of them."""
    with command("--parallel", "1", *asked) as (_, url):
        for word in ("red ", "green ", "blue "):
            body = {"prompt": word * 60, "n_predict": 1, "temperature": 0}
            assert httpx.post(f"{url}/completion", json=body, timeout=60).status_code == 200
        text = httpx.get(f"{url}/metrics").text
    held = re.search(r'riverrun_memory\{.*what="host_bytes"\} (\S+)', text)
    assert held is not None and (float(held[1]) > 0) == (not asked)
