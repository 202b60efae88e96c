"""Saved sequences that are damaged or belong elsewhere are refused, and nothing changes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
import tiny_models
from riverrun.engine import saved
from riverrun.engine.session import Session
from riverrun.graph.errors import RequestError
from rollback_rig import Moment, plain, require_state, stream, tiny
from tiny_models import qwen35

TOKENS = stream(0)


def source(**options: Any) -> Session:
    session = tiny().session(n_ctx=256, n_rs_seq=4, **options)
    session.evaluate([(0, TOKENS[:20])])
    session.verify([(0, TOKENS[20:24])])
    session.commit(0, 2)
    return session


def target(**options: Any) -> Session:
    """Two sequences, the first of them busy."""
    session = tiny().session(**{"n_ctx": 256, "n_seqs": 2, "n_rs_seq": 4} | options)
    session.evaluate([(0, stream(1)[:9])])
    return session


def require_refused(session: Session, data: bytes, message: str, seq: int = 1) -> None:
    now = Moment(session)
    with pytest.raises(RequestError, match=message):
        session.restore(data, seq)
    now.require_now()


def test_every_damaged_byte_is_found() -> None:
    data, session = source().save(), target()
    prefix = len(saved.MAGIC) + 8
    header = struct.unpack_from("<I", data, len(saved.MAGIC))[0]
    places = [*range(prefix + header + 40), *range(prefix + header, len(data), 97), len(data) - 1]
    for at in places:
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(RequestError, match=r"^saved sequence: "):
            session.restore(bytes(damaged), 1)
    damaged = bytearray(data)
    damaged[-5] ^= 1
    require_refused(session, bytes(damaged), "cut off or damaged")
    session.restore(data, 1)
    require_state(session, 1, plain())


def test_truncated_and_extended_data_are_refused() -> None:
    data, session = source().save(), target()
    for n in (0, 1, 7, 8, 11, 12, 15, 16, 40, 200, len(data) // 2, len(data) - 1):
        require_refused(session, data[:n], "^saved sequence: ")
    require_refused(session, data + b"\0", "cut off or damaged")
    require_refused(session, b"GGUF" + data, "start with riverrun's mark")


def test_another_model_is_refused(tmp_path: Path) -> None:
    model = qwen35()
    model.tensors["output_norm.weight"] *= 1.5
    near = rr.load(model.write(tmp_path / "near.gguf"), device="cpu")
    data = source().save()
    for other in (near, tiny("qwen35,v=3k"), tiny("llama")):
        session = other.session(n_ctx=256, n_seqs=2)
        session.evaluate([(0, TOKENS[:5])])
        require_refused(session, data, "its model should be .* it belongs elsewhere")


def test_the_same_file_on_another_device_is_the_same_model() -> None:
    session = tiny("qwen35", "reference").session(n_ctx=256, n_rs_seq=4)
    session.restore(source().save())
    assert session.tokens() == TOKENS[:22]


@pytest.mark.parametrize("name", ["cache_type_k", "cache_type_v"])
@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0", "q4_0"])
def test_other_cache_types_are_refused(name: str, kind: str) -> None:
    data = source().save()
    require_refused(target(**{name: kind}), data, f"its {name} should be '{kind}', got 'f16'")
    back = source(**{name: kind}).save()
    require_refused(target(), back, f"its {name} should be 'f16', got '{kind}'")
    session = target(**{name: kind})
    session.restore(back, 1)
    assert session.length(1) == 22 and session.save(1) == back


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(saved, "VERSION", 2)
        data = source().save()
    require_refused(target(), data, "its version should be 1, got 2")


def test_another_program_is_refused() -> None:
    model = tiny("qwen35,mtp")
    data = model.session(n_ctx=256, program="mtp").save()
    session = model.session(n_ctx=256, n_seqs=2)
    require_refused(session, data, "its program should be 'trunk', got 'mtp'")


def test_a_busy_sequence_and_a_small_context_are_refused() -> None:
    data, session = source().save(), target()
    require_refused(session, data, "should be empty to restore into, got 9 tokens", seq=0)
    session.verify([(1, [1, 2])])
    require_refused(session, data, "should be empty")
    session.commit(1, 0)
    session.restore(data, 1)
    small = target(n_ctx=21)
    require_refused(small, data, "22 saved tokens do not fit in a context of 21")


Change = Callable[[dict[str, np.ndarray]], object]
SPOILED: dict[str, tuple[Change, str]] = {
    "no state": (lambda a: a.pop("ssm_state.1"), "'ssm_state.1' should be .* got none"),
    "no keys": (lambda a: a.pop("cache_k.3"), "'cache_k.3' should be .* got none"),
    "short state": (
        lambda a: a.update({"conv_state.0": a["conv_state.0"][:-1]}),
        "'conv_state.0' should be",
    ),
    "state type": (
        lambda a: a.update({"ssm_state.0": a["ssm_state.0"].astype(np.float16)}),
        "'ssm_state.0' should be float32 .* got float16",
    ),
    "one row less": (
        lambda a: a.update({"cache_v.3": a["cache_v.3"][:-1]}),
        "'cache_v.3' should be",
    ),
    "fewer rows": (
        lambda a: a.update({n: a[n][3:] for n in ("cache_k.3", "cache_v.3")}),
        "should be saved in whole pages|should be",
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_well_formed_data_with_wrong_arrays_are_refused(what: str) -> None:
    session, change = source(), SPOILED[what][0]
    session.settle()
    arrays = dict(session.memory.save(0))
    change(arrays)
    data = saved.pack(
        session.model.fingerprint, session.sequences.storage._kinds(), TOKENS[:22], arrays
    )
    require_refused(target(), data, SPOILED[what][1])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"nonsense",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"version": 1, "model": "", "kinds": {}, "tokens": [Infinity], "arrays": []}',
        b'{"version": 1, "model": "", "kinds": {}, "tokens": 3, "arrays": []}',
        b'{"version": 1, "model": "", "kinds": {}, "tokens": [], "arrays": [1]}',
    ],
    ids=str,
)
def test_headers_that_make_no_sense_are_refused(text: bytes) -> None:
    data = saved.MAGIC + saved._PREFIX.pack(len(text), saved.zlib.crc32(text)) + text
    require_refused(target(), data, "header is damaged")


@pytest.mark.parametrize("array", [["a", "<f8", [1]], ["a", "<f4", [-1]], ["a", "<f4", [1 << 40]]])
def test_arrays_that_cannot_be_are_refused(array: list[Any]) -> None:
    session = target()
    kinds = session.sequences.storage._kinds()
    good = saved.pack(session.model.fingerprint, kinds, [], {"a": np.zeros(1, np.float32)})
    text = good[good.index(b"{") : good.rindex(b"}") + 1]
    text = text.replace(b'["a", "<f4", [1]]', saved.json.dumps(array).encode())
    rest = text + bytes(4)
    data = saved.MAGIC + saved._PREFIX.pack(len(text), saved.zlib.crc32(rest)) + rest
    require_refused(session, data, "array 'a' has type|bytes of arrays should follow")


@pytest.mark.parametrize("token", [-1, tiny_models.N_VOCAB, 1 << 40, 1.5, True, "3", None, [4]])
def test_tokens_outside_the_vocabulary_are_refused(token: object) -> None:
    session, source_ = target(), source()
    source_.settle()
    arrays, kinds = source_.memory.save(0), source_.sequences.storage._kinds()
    good = saved.pack(source_.model.fingerprint, kinds, TOKENS[:22], arrays)
    size = struct.unpack_from("<I", good, len(saved.MAGIC))[0]
    start = len(saved.MAGIC) + 8
    header = saved.json.loads(good[start : start + size])
    header["tokens"][7] = token
    text = saved.json.dumps(header).encode()
    rest = text + good[start + size :]
    data = saved.MAGIC + saved._PREFIX.pack(len(text), saved.zlib.crc32(rest)) + rest
    require_refused(
        session,
        data,
        f"from 0 to {tiny_models.N_VOCAB - 1}, got|header is damaged .a token should be",
    )


@pytest.mark.parametrize("small,large", [(1400, 2048), (1301, 4096), (1400, 1500), (2048, 4096)])
def test_a_window_comes_back_wherever_its_tokens_fit(small: int, large: int) -> None:
    model, tokens = tiny("gemma3"), stream(2, 1310)
    cold = model.session(n_ctx=4096)
    cold.prefill(tokens[:1300])
    want = cold.decode(tokens[1300]).copy()
    for first, second in ((large, small), (small, large)):
        session, other = model.session(n_ctx=first), model.session(n_ctx=second)
        session.prefill(tokens[:1300])
        other.restore(session.save())
        np.testing.assert_array_equal(other.decode(tokens[1300]), want)
        # Rows that were not saved cannot be gone back to.
        assert other.can_remove(0, 0)
        start = next(p for p in range(1301) if p and other.can_remove(0, p))
        other.remove(0, start)
        again = model.session(n_ctx=4096)
        again.prefill(tokens[:start])
        np.testing.assert_array_equal(other.decode(5), again.decode(5))
    with pytest.raises(RequestError, match="1300 saved tokens do not fit in a context of 1299"):
        model.session(n_ctx=1299).restore(session.save())


def test_an_empty_sequence_can_be_saved() -> None:
    for variant in ("llama", "gemma3", "qwen35"):
        session = tiny(variant).session(n_ctx=256, n_seqs=2)
        session.restore(session.save(0), 1)
        assert session.length(1) == 0
        want = session.prefill(TOKENS[:5], 0).copy()
        np.testing.assert_array_equal(session.prefill(TOKENS[:5], 1), want)
