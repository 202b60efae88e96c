"""How CUDA devices are found by name, and what is said where they cannot be used."""

from __future__ import annotations

from typing import Any

import pytest
from cuda_rig import EMULATED, backend, needs_cuda
from one_op import check_refusals
from riverrun.backends import cuda, cuda_memory, devices, free_bytes, open_backend
from riverrun.graph.errors import BackendError

SERVED = [
    ("emulated", (9, 0), True),
    ("90", (9, 0), True),
    ("90-real", (9, 0), True),
    ("90-real", (10, 0), False),
    ("90", (10, 0), True),
    ("90-virtual", (12, 1), True),
    ("90", (8, 9), False),
    ("80-real", (8, 6), True),
    ("86-real", (8, 0), False),
    ("80-virtual", (8, 0), True),
    ("80-real;86-real;89-real", (8, 9), True),
    ("80-real;90-real", (9, 0), True),
    ("80-real;86-real;89-real;90-real;100-real;120", (12, 0), True),
    ("80-real;86-real;89-real;90-real;100-real;120", (13, 0), True),
    ("80-real;86-real;89-real;90-real;100-real;120", (10, 3), True),
    ("80-real;90-real", (10, 0), False),
    ("120", (10, 0), False),
    ("75", (7, 5), False),
    ("70-real;75", (7, 5), False),
]


@pytest.mark.parametrize("built_for, card, served", SERVED)
def test_cards_that_kernels_run_on(built_for: str, card: tuple[int, int], served: bool) -> None:
    assert cuda.serves(built_for, *card) == served


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of riverrun that has none."""
    for module in (cuda, cuda_memory):
        monkeypatch.setattr(module, "_cuda", None)
    missing = "cannot import name '_cuda' from 'riverrun'"
    monkeypatch.setattr(cuda, "_MISSING", missing, raising=False)


@pytest.mark.usefixtures("without_kernels")
def test_a_build_without_kernels_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cuda.built() and not cuda.emulated()
    told = "no CUDA kernels; install riverrun with .*RIVERRUN_CUDA=ON.*nvcc"
    for call in (open_backend, free_bytes):
        for name in ("cuda", "cuda:1"):
            with pytest.raises(BackendError, match=told):
                call(name)
    assert not [d for d in devices() if d.name.startswith("cuda")]
    assert open_backend("auto").name == devices()[0].name == "cpu"
    monkeypatch.setattr(cuda, "_MISSING", "libsomething.so.12: cannot open shared object file")
    with pytest.raises(BackendError, match=r"no CUDA kernels \(libsomething.so.12: .*\); install"):
        open_backend("cuda")


@needs_cuda
def test_devices_open_by_name() -> None:
    first = open_backend("cuda")
    assert isinstance(first, cuda.CudaBackend)
    assert (first.name, first.on_host, first.runs_ahead) == ("cuda", False, True)
    assert open_backend("cuda:0").name == "cuda"
    with pytest.raises(BackendError, match=r"cuda:99 is not there; this machine has cuda\b"):
        open_backend("cuda:99")
    with pytest.raises(BackendError, match="device 'cuda:x' is not in this build of riverrun"):
        open_backend("cuda:x")


@needs_cuda
def test_cards_are_listed() -> None:
    found = {d.name: d.description for d in devices()}
    names = [f"cuda:{i}" if i else "cuda" for i in range(len(cuda.cards()))]
    assert [n for n in found if n.startswith("cuda")] == names
    assert "GiB, compute" in found["cuda"] and ("emulated" in found["cuda"]) == EMULATED
    # Emulated kernels are for tests, never what runs unasked.
    assert (devices()[0].name == "cuda") == (not EMULATED)
    assert 0 < free_bytes("cuda") <= cuda.cards()[0]["total_bytes"]


@needs_cuda
@pytest.mark.skipif(not EMULATED, reason="only an emulated machine has as many cards as one likes")
def test_several_cards_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERRUN_EMULATE_DEVICES", "3")
    assert [d.name for d in devices()][2:] == ["cuda", "cuda:1", "cuda:2"]
    assert open_backend("cuda:2").name == "cuda:2"
    with pytest.raises(
        BackendError, match=r"cuda:3 is not there; this machine has cuda, cuda:1, cuda:2$"
    ):
        open_backend("cuda:3")
    monkeypatch.setenv("RIVERRUN_EMULATE_DEVICES", "0")
    assert [d.name for d in devices()] == ["cpu", "reference"]
    with pytest.raises(BackendError, match=r"no device; is NVIDIA's driver installed\?"):
        open_backend("cuda")


@needs_cuda
@pytest.mark.parametrize(
    "card, remedy",
    [
        ((7, 5), "they need 8.0 at least; use --device cpu"),
        ((12, 0), "build with -C cmake.define.CMAKE_CUDA_ARCHITECTURES=120"),
    ],
)
def test_a_card_that_kernels_were_not_built_for(
    monkeypatch: pytest.MonkeyPatch, card: tuple[int, int], remedy: str
) -> None:
    described: dict[str, Any] = cuda.cards()[0] | {"major": card[0], "minor": card[1]}
    monkeypatch.setattr(cuda, "cards", lambda: [described])
    monkeypatch.setattr(cuda._cuda, "architectures", "80-real;90-real")
    told = rf"compute capability {card[0]}\.{card[1]}, .* built for 80-real;90-real; {remedy}"
    for call in (open_backend, free_bytes):
        with pytest.raises(BackendError, match=told):
            call("cuda")


@needs_cuda
@pytest.mark.parametrize("value, graphs", [(None, True), ("1", True), ("0", False)])
def test_the_environment_says_whether_runs_are_recorded(
    monkeypatch: pytest.MonkeyPatch, value: str | None, graphs: bool
) -> None:
    monkeypatch.delenv(cuda.GRAPHS, raising=False)
    if value is not None:
        monkeypatch.setenv(cuda.GRAPHS, value)
    assert cuda.CudaBackend().graphs == graphs
    assert cuda.CudaBackend(graphs=not graphs).graphs != graphs


@needs_cuda
def test_a_refused_product_says_each_reason_once() -> None:
    check_refusals(backend())
