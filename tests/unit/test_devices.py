"""Devices by name: which are listed, which "auto" takes, and what is refused with which words."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fake_device
import numpy as np
import pytest
import riverrun as rr
from cli import run_cli
from riverrun.backends import Backend, cuda, cuda_memory, devices, open_backend, registry
from riverrun.backends.array import ArrayBackend
from riverrun.backends.null import NullBackend
from riverrun.graph.errors import BackendError, RequestError

GOOD, OLD = (9, 0), (7, 5)


class CudaError(RuntimeError):
    """What the module of kernels raises."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a machine with cards of these compute capabilities; those in `broken` do not open."""

    def make(*capabilities: tuple[int, int], broken: tuple[int, ...] = ()) -> None:
        def card(index: int) -> Any:
            if index in broken:
                raise CudaError("all CUDA-capable devices are busy or unavailable")
            return SimpleNamespace(index=index, free_bytes=1 << 30)

        def facts(index: int) -> dict[str, Any]:
            major, minor = capabilities[index]
            named = {"name": f"Card {index}", "multiprocessors": 8, "total_bytes": 8 << 30}
            return {**named, "major": major, "minor": minor}

        module = SimpleNamespace(
            CudaError=CudaError,
            emulated=False,
            architectures="80-real;90",
            card_count=lambda: len(capabilities),
            describe_card=facts,
            Card=card,
        )
        monkeypatch.setattr(cuda, "_cuda", module)
        monkeypatch.setattr(cuda_memory, "_cuda", module)
        monkeypatch.setattr(cuda, "CudaBackend", Opened)

    return make


class Opened(NullBackend):
    """Stands for the backend of a card."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        cuda.free_bytes(index)
        self.name = cuda.name_of(index)


def taken(device: str = "auto") -> tuple[str, list[str]]:
    """The device that opens, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        name = open_backend(device, 1).name
    return name, [str(w.message) for w in caught]


def test_devices_open_by_name() -> None:
    names = [d.name for d in devices() if not d.name.startswith("cu")]
    assert names == ["cpu", "reference"]
    assert [open_backend(name).name for name in names] == names
    with pytest.raises(BackendError, match=r"a whole number from 1 to \d+, got 0"):
        open_backend("cpu", 0)


@pytest.mark.parametrize("name", ["tpu", "", "cpu2", "CPU", "cuda:x", "cuda:-1"])
def test_an_unknown_device_is_refused_with_those_that_are_listed(name: str) -> None:
    known = ", ".join(["auto", *(d.name for d in devices() if d.usable)])
    with pytest.raises(BackendError) as raised:
        open_backend(name)
    message = f"device {name!r} is not in this build of riverrun; devices: {known}"
    assert str(raised.value) == message


@pytest.mark.parametrize("name", [3, None, b"cpu", ["cpu"]])
def test_a_device_is_a_text(name: Any) -> None:
    with pytest.raises(RequestError, match=r"device should be a name .*, got \w+; devices: auto, "):
        open_backend(name)


def test_the_first_card_is_taken(machine: Callable[..., None]) -> None:
    machine(GOOD, OLD)
    assert taken() == ("cuda", [])
    assert [(d.name, d.usable) for d in devices()] == [
        ("cuda", True),
        ("cpu", True),
        ("reference", True),
        ("cuda:1", False),
    ]


def test_a_card_that_kernels_do_not_serve_is_passed_over(machine: Callable[..., None]) -> None:
    machine(OLD, GOOD)
    name, (warning,) = taken()
    assert name == "cuda:1"
    assert warning.startswith("cuda cannot be used (cuda: Card 0 has compute capability 7.5, and ")
    assert warning.endswith("): taking cuda:1") and "\n" not in warning
    listed = devices()
    assert [d.name for d in listed] == ["cuda:1", "cpu", "reference", "cuda"]
    assert listed[-1].description.startswith("refused: cuda: Card 0 has compute capability 7.5")


def test_a_card_that_does_not_open_is_passed_over(machine: Callable[..., None]) -> None:
    machine(GOOD, GOOD, broken=(0, 1))
    name, (warning,) = taken()
    assert name == "cpu" and warning == (
        "cuda cannot be used (cuda: all CUDA-capable devices are busy or unavailable); "
        "cuda:1 cannot be used (cuda: all CUDA-capable devices are busy or unavailable): taking cpu"
    )
    with pytest.raises(BackendError, match="busy or unavailable"):
        open_backend("cuda")


def test_a_command_says_what_was_passed_over(
    machine: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    machine(OLD)
    outcome = run_cli(capsys, "run", "-p", "x", "-n", "1", "--json")
    (line,) = outcome.err.splitlines()
    assert line.startswith("riverrun: warning: cuda cannot be used (") and "taking cpu" in line
    assert outcome.code == 0 and '"device": "cpu"' in outcome.out


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_card_that_is_not_there(machine: Callable[..., None], n: int) -> None:
    machine(*[GOOD] * n)
    there = {0: "no CUDA device", 1: "cuda", 3: "cuda, cuda:1, cuda:2"}[n]
    with pytest.raises(BackendError) as raised:
        open_backend(f"cuda:{n}" if n else "cuda")
    name = cuda.name_of(n)
    assert str(raised.value) == f"{name} is not there; this machine has {there}"


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with cupy: arrays that do not convert themselves."""
    monkeypatch.setitem(sys.modules, "cupy", fake_device)


@pytest.mark.usefixtures("cupy")
def test_cupy_is_a_device_where_it_is_installed() -> None:
    assert [d.name for d in devices() if d.usable][-1] == "cupy"
    g = rr.Graph()
    y = g.softmax(g.rms_norm(g.input("x", (2, 8)), eps=1e-6))
    plan = rr.compile(g, y, device="cupy")
    assert "ArrayPlan" in repr(plan)
    x = np.arange(16.0).reshape(2, 8)
    np.testing.assert_allclose(plan(x=x), rr.compile(g, device="reference")(x=x), rtol=1e-6)
    backend = open_backend("cupy")
    assert isinstance(backend, ArrayBackend) and backend.name == "cupy"


@pytest.mark.usefixtures("cupy")
def test_cupy_without_a_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_card(values: Any) -> None:
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    monkeypatch.setattr(fake_device, "asarray", no_card)
    with pytest.raises(BackendError, match=r"cupy: it has no card: RuntimeError: cudaErrorNoDev"):
        open_backend("cupy")


def test_without_cupy_it_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(registry, "has_cupy", lambda: False)
    assert "cupy" not in [d.name for d in devices()]
    with pytest.raises(BackendError, match=r"cupy: .*; install the cupy package for your CUDA"):
        open_backend("cupy")


@pytest.mark.parametrize(
    ("outputs", "shown"),
    [
        ("y", "got str 'y'"),
        (b"y", "got bytes b'y'"),
        (3, "got int 3"),
        (np.zeros(2), "got ndarray"),
        (["y"], r"output '0' .*, got str 'y'"),
        ({"y": 1}, r"output 'y' .*, got int 1"),
        ({1: None}, r"output 1 .*, got NoneType None"),
    ],
    ids=str,
)
def test_outputs_that_are_no_values_are_refused(outputs: Any, shown: str) -> None:
    g = rr.Graph()
    g.neg(g.input("x", (2,)))
    with pytest.raises(RequestError, match=shown):
        rr.compile(g, outputs, device="cpu")
    assert g.outputs == {}


@pytest.mark.parametrize("device", [3, None, b"cpu", ["cpu", 4], [None], NullBackend])
def test_devices_of_other_types_are_refused(device: Any) -> None:
    g = rr.Graph()
    y = g.neg(g.input("x", (2,)))
    with pytest.raises(RequestError, match="device should be a name such as 'cpu', a Backend, or"):
        rr.compile(g, y, device=device)


def test_devices_may_be_names_and_backends() -> None:
    g = rr.Graph()
    y = g.neg(g.input("x", (2,)))
    backend: Backend = NullBackend()
    plan: Any = rr.compile(g, y, device=["reference", backend])
    assert [b.name for b in plan.backends] == ["reference", "null"]
    with pytest.raises(RequestError, match=r"graph should be a riverrun\.Graph, got str"):
        rr.compile("y")  # type: ignore[arg-type]


def test_errors_can_be_imported_as_the_page_says() -> None:
    import riverrun.errors
    from riverrun.errors import RiverrunError
    from riverrun.graph import errors

    assert rr.errors is riverrun.errors and RiverrunError is errors.RiverrunError
    tree = {n: c for n, c in vars(errors).items() if isinstance(c, type)}
    assert len(tree) > 10 and all(getattr(rr.errors, n) is c for n, c in tree.items())
