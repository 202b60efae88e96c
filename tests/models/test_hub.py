"""Models of the Hub, from a server on this machine: which file, fetching, the cache."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli import DEVICE, LIMIT, run_cli, start_cli
from demo import demo
from hub_stub import COMMIT, Stub, serving
from paths import DEMO
from riverrun.errors import DownloadError, RequestError
from riverrun.models.hub import Hub, Wanted, choose, is_model

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install 'riverrun[hub]'")

FILES = [
    "README.md",
    "a-BF16.gguf",
    "a-F16.gguf",
    "a-IQ4_XS.gguf",
    "a-Q4_K_M.gguf",
    "a-Q4_K_S.gguf",
    "mmproj-Q4_K_M.gguf",
    "a.Q8_0.gguf",
    "big/a-Q6_K-00001-of-00003.gguf",
    "big/a-Q6_K-00002-of-00003.gguf",
    "big/a-Q6_K-00003-of-00003.gguf",
    "imatrix.gguf",
]


@pytest.mark.parametrize(
    ("tag", "want"),
    [
        ("", ["a-Q4_K_M.gguf"]),
        ("q4_k_m", ["a-Q4_K_M.gguf"]),
        ("Q4_K_S", ["a-Q4_K_S.gguf"]),
        ("Q8_0", ["a.Q8_0.gguf"]),
        ("F16", ["a-F16.gguf"]),
        ("bf16", ["a-BF16.gguf"]),
        ("Q6_K", [f"big/a-Q6_K-0000{i}-of-00003.gguf" for i in (1, 2, 3)]),
        ("big/a-Q6_K-00001-of-00003.gguf", FILES[8:11]),
        ("a-IQ4_XS.gguf", ["a-IQ4_XS.gguf"]),
        ("Q4", []),
        ("Q4_K", []),
        ("none.gguf", []),
        ("mmproj-Q4_K_M.gguf", []),
        ("Q4.K.M", []),
    ],
)
def test_the_file_that_is_meant(tag: str, want: list[str]) -> None:
    assert choose(FILES, tag) == want
    assert choose(reversed(FILES), tag) == want


def test_the_file_without_the_usual_ones() -> None:
    rest = [name for name in FILES if "Q4_K_M" not in name]
    assert choose(rest) == ["a.Q8_0.gguf"]
    assert choose([name for name in rest if "Q8_0" not in name]) == ["a-BF16.gguf"]
    assert choose(["README.md", "mmproj.gguf"]) == []
    assert not is_model("mtp-a.gguf") and is_model("mtp-b/a.gguf")


@pytest.mark.parametrize("text", ["", "a", "a/b/c", "a/..", "../b", "a b/c", "https://h/a/b"])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="OWNER/NAME"):
        Wanted.read(text)


def test_names() -> None:
    assert Wanted.read("a/b-GGUF:Q8_0") == Wanted("a/b-GGUF", "Q8_0")
    assert Wanted.read("hf.co/a/b") == Wanted("a/b")


def content(name: str, size: int = 100_000) -> bytes:
    return (name.encode() * (size // len(name) + 1))[:size]


@pytest.fixture
def stub() -> Iterator[Stub]:
    files = {name: content(name) for name in FILES}
    with serving(Stub({"me/small": files, "me/none": {"README.md": b"x"}})) as made:
        yield made


@pytest.fixture
def hub(stub: Stub, tmp_path: Path) -> Hub:
    return Hub(stub.url, tmp_path / "cache")


def test_a_model_is_fetched_once(hub: Hub, stub: Stub) -> None:
    path = hub.fetch(Wanted("me/small"))
    assert path.name == "a-Q4_K_M.gguf" and path.read_bytes() == content(path.name)
    assert stub.fetches() == [(path.name, None)]
    assert hub.fetch(Wanted("me/small", "Q4_K_M")) == path
    assert len(stub.fetches()) == 1
    assert COMMIT in path.parts, "where the library keeps files, so that other programs find it"


def test_all_shards_lie_side_by_side(hub: Hub) -> None:
    path = hub.fetch(Wanted("me/small", "Q6_K"))
    assert path.name.endswith("00001-of-00003.gguf")
    assert [p.name for p in sorted(path.parent.iterdir())] == [Path(f).name for f in FILES[8:11]]


def test_a_fetch_that_was_broken_off_goes_on(
    hub: Hub, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import file_download

    whole, get = content("a-Q4_K_M.gguf"), file_download.http_get

    def interrupted(url: str, file: io.BufferedRandom, **_: Any) -> None:
        file.write(whole[:40_000])
        raise KeyboardInterrupt

    monkeypatch.setattr(file_download, "http_get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hub.fetch(Wanted("me/small"))
    assert hub.cached() == []
    monkeypatch.setattr(file_download, "http_get", get)
    assert hub.fetch(Wanted("me/small")).read_bytes() == whole
    assert stub.fetches() == [("a-Q4_K_M.gguf", "bytes=40000-")]


def test_a_damaged_file_is_refused_and_fetched_anew(hub: Hub, stub: Stub) -> None:
    stub.damaged = 3
    with pytest.raises(DownloadError, match=r"me/small/a-Q4_K_M\.gguf: expected the SHA-256 sum"):
        hub.fetch(Wanted("me/small"))
    assert hub.cached() == []
    stub.damaged = 0
    assert hub.fetch(Wanted("me/small")).read_bytes() == content("a-Q4_K_M.gguf")
    assert stub.fetches()[-1] == ("a-Q4_K_M.gguf", None)


def test_two_processes_do_not_write_one_file(hub: Hub, stub: Stub) -> None:
    from riverrun.models import hub as module

    hub.fetch(Wanted("me/small"))
    (blob,) = hub.cached()[0].files[0][1:]
    hub.remove("me/small")
    blob.parent.mkdir(parents=True)
    with (
        module.locked(blob.with_name(f"{blob.name}.riverrun.part")),
        pytest.raises(DownloadError, match="another process"),
    ):
        hub.fetch(Wanted("me/small"))


def test_without_a_connection_the_cache_serves(hub: Hub, stub: Stub) -> None:
    path = hub.fetch(Wanted("me/small", "Q8_0"))
    stub.refuses = (503, "")
    gone = Hub("http://127.0.0.1:9", hub.cache)
    with pytest.warns(UserWarning, match="me/small: .*; using what was fetched before"):
        assert gone.fetch(Wanted("me/small")) == path
    with pytest.raises(DownloadError, match="me/small:Q4_K_M: "):
        gone.fetch(Wanted("me/small", "Q4_K_M"))


REFUSALS: dict[str, tuple[Callable[[Hub, Stub], object], str]] = {
    "repository": (lambda hub, _: hub.fetch(Wanted("me/other")), "no such repository"),
    "quantisation": (
        lambda hub, _: hub.fetch(Wanted("me/small", "Q2_K")),
        "there is no 'Q2_K'; there are BF16, F16, IQ4_XS, Q4_K_M, Q4_K_S, Q8_0, Q6_K",
    ),
    "no-model": (lambda hub, _: hub.fetch(Wanted("me/none")), "no GGUF file"),
    "shard": (
        lambda hub, stub: (
            stub.repos["me/small"].pop(FILES[9]),
            hub.fetch(Wanted("me/small", "Q6_K")),
        ),
        "lacks the shard big/a-Q6_K-00002-of-00003.gguf",
    ),
    "sum": (
        lambda hub, stub: (
            stub.sums.update({"a-Q4_K_M.gguf": "../../../evil"}),
            hub.fetch(Wanted("me/small")),
        ),
        "expected a SHA-256 sum, got '../../../evil'",
    ),
    "gated": (
        lambda hub, stub: (
            setattr(stub, "refuses", (403, "GatedRepo")),
            hub.fetch(Wanted("me/small")),
        ),
        "HF_TOKEN",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str, hub: Hub, stub: Stub) -> None:
    act, words = REFUSALS[case]
    with pytest.raises(DownloadError, match=words) as caught:
        act(hub, stub)
    assert len(str(caught.value).splitlines()) == 1


def test_no_room(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=99_999))
    with pytest.raises(DownloadError, match=r"100000 bytes are missing.* room for 99999"):
        hub.fetch(Wanted("me/small"))


def test_the_cache_is_listed_and_emptied(hub: Hub) -> None:
    for tag in ("Q4_K_M", "Q8_0", "Q6_K"):
        hub.fetch(Wanted("me/small", tag))
    found = {model.name: model for model in hub.cached()}
    assert list(found) == ["me/small:Q4_K_M", "me/small:Q6_K", "me/small:Q8_0"]
    assert found["me/small:Q6_K"].nbytes == 300_000
    assert hub.remove("me/small:Q6_K") == [found["me/small:Q6_K"]]
    assert [model.name for model in hub.cached()] == ["me/small:Q4_K_M", "me/small:Q8_0"]
    blobs = [path for path in hub.cache.rglob("blobs/*") if path.stat().st_size]
    assert len(blobs) == 2
    with pytest.raises(RequestError, match="holds me/small:Q4_K_M, me/small:Q8_0"):
        hub.remove("me/small:Q6_K")
    assert len(hub.remove("me/small")) == 2 and hub.cached() == []
    assert [path for path in hub.cache.iterdir() if path.name.startswith("models--")] == []


def test_what_other_programs_keep_there_stays(hub: Hub) -> None:
    from huggingface_hub import hf_hub_download

    other = Path(
        hf_hub_download("me/small", "README.md", cache_dir=hub.cache, endpoint=hub.endpoint)
    )
    hub.fetch(Wanted("me/small"))
    hub.remove("me/small")
    assert other.read_bytes() == content("README.md") and hub.cached() == []


def test_the_command(
    hub: Hub, stub: Stub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("hub", "models"):
        monkeypatch.setattr(f"riverrun.tools.{module}.Hub", lambda: hub)
    stub.repos["me/demo"] = {"demo-Q8_0.gguf": DEMO.read_bytes()}
    greedy = ("-p", "def ", "--temp", 0, "-n", 4, "--device", DEVICE)
    want = demo(DEVICE).generate("def ", 4, temperature=0).result.text
    drafted = ("--spec", "draft", "--draft-hf", "me/demo")
    outcome = run_cli(capsys, "run", "-hf", "me/demo:Q8_0", *greedy, *drafted)
    assert (outcome.code, outcome.out) == (0, f"def {want}\n") and "drafts" in outcome.err
    (row,) = json.loads(run_cli(capsys, "models", "--json").out)["models"]
    assert (row["name"], row["bytes"]) == ("me/demo:Q8_0", DEMO.stat().st_size)
    assert run_cli(capsys, "models", "list").out.split()[0] == "me/demo:Q8_0"
    gone = run_cli(capsys, "models", "remove", "me/demo")
    assert (gone.code, gone.out.split()[:2], gone.err) == (0, ["removed", "me/demo:Q8_0"], "")
    assert "no model was fetched yet" in run_cli(capsys, "models").err
    again = run_cli(capsys, "models", "remove", "me/demo")
    assert again.is_short_error(1) and "there is no model 'me/demo'" in again.err


def test_the_environment_names_the_hub(stub: Stub, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": stub.url, "HF_HUB_CACHE": str(tmp_path / "cache")}
    options = {"env": environment, "stdin": subprocess.DEVNULL}
    with start_cli("chat", "-hf", "me/other", **options) as process:
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (1, b"") and b"me/other: no such repository" in err
    assert stub.seen


USAGE = {
    "two models": (("run", DEMO, "-hf", "a/b", "-p", "x"), "not both"),
    "two drafts": (
        ("run", "-p", "x", "--spec", "draft", "--draft-hf", "a/b", "--draft-model", DEMO),
        "not both",
    ),
    "name": (("chat", "-hf", "ab"), "expected OWNER/NAME"),
    "action": (("models", "drop"), "expected list or remove"),
    "nothing to remove": (("models", "remove"), "expected the names"),
    "names to list": (("models", "list", "a/b"), "expected no names"),
}


@pytest.mark.parametrize("case", USAGE)
def test_usage_errors(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = USAGE[case]
    outcome = run_cli(capsys, *arguments)
    assert outcome.is_short_error(2) and words in outcome.err
