"""The engine: requests that come and go, what ends them, and that one's fault is not another's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from demo import PROMPTS, demo
from engine_rig import SPECS, finish, solo
from riverrun.engine.sequences import Sequences
from riverrun.graph.errors import BackendError, RequestError, SequenceLost, SessionBusy
from riverrun.speculative import Ask
from spec_rig import scripted, speculation

PROMPT = PROMPTS["p17"]["ids"]
GREEDY: dict[str, Any] = {"temperature": 0.0}


def engine(n_seqs: int = 3, **options: Any) -> rr.Engine:
    return rr.Engine(demo(), n_seqs=n_seqs, n_ctx=1536, **options)


def test_a_step_reports_pieces_and_ends() -> None:
    with engine() as e:
        one = e.submit(PROMPT, 12, ignore_eos=True, **GREEDY)
        two = e.submit(PROMPTS["p64"]["ids"], 5, ignore_eos=True, **GREEDY)
        pieces: dict[Any, str] = {one: "", two: ""}
        ends: list[Any] = []
        while not e.idle:
            for request, more, finished in e.step():
                pieces[request] += "".join(more)
                if finished:
                    ends.append(request)
        assert ends == [two, one]
        for request in (one, two):
            assert request.result is not None
            assert pieces[request] == request.text == request.result.text
            assert request.result.finish_reason == "length"
        assert e.step() == []


def test_results_equal_those_of_single_generations() -> None:
    texts = [PROMPTS[name]["text"] for name in ("p17", "p64", "p3")]
    options = {"max_tokens": [9, 20, 14], "temperature": [0.0, 0.9, 0.0], "seed": [1, 2, 3]}
    found = demo().generate_batch(texts, ignore_eos=True, stop=["\n\n\n"], **options)
    for i, text in enumerate(texts):
        one = {name: values[i] for name, values in options.items()}
        want = demo().generate(text, ignore_eos=True, stop=["\n\n\n"], **one).result
        assert (found[i].text, found[i].tokens) == (want.text, want.tokens)
        assert found[i].finish_reason == want.finish_reason


def test_a_batch_as_it_completes() -> None:
    lengths = [30, 3, 12]
    found = demo().generate_batch(
        [PROMPT] * 3, as_completed=True, max_tokens=lengths, ignore_eos=True, **GREEDY
    )
    order = [(i, len(result.tokens)) for i, result in found]
    assert order == [(1, 3), (2, 12), (0, 30)]


@pytest.mark.parametrize(
    "prompts,options,message",
    [
        ("text", {}, "a list of texts"),
        (["a", "b"], {"max_tokens": [1]}, "a value for each of 2 prompts, got 1"),
        (["a"], {"session": None}, "session is for one generation"),
        (["a", ""], {}, "no tokens"),
        (["a"], {"temprature": 0.5}, "did you mean temperature"),
        ([["a", "b"]], {}, "several prompts"),
    ],
    ids=str,
)
def test_batches_are_checked_before_any_runs(
    prompts: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        demo().generate_batch(prompts, **options)


def test_no_prompts_give_no_results() -> None:
    assert demo().generate_batch([]) == []
    assert list(demo().generate_batch([], as_completed=True)) == []


def test_decoding_waits_for_one_chunk_at_most() -> None:
    with engine() as e:
        first = e.submit(PROMPT, 40, ignore_eos=True, **GREEDY)
        while not first.tokens:
            e.step()
        e.submit(list(range(300, 1500)), 4, ignore_eos=True, **GREEDY)
        before, waits = len(first.tokens), 0
        while first.result is None:
            e.step()
            waits = waits + 1 if len(first.tokens) == before else 0
            before = len(first.tokens)
            assert waits <= 1


def test_requests_wait_for_a_free_sequence_in_their_order() -> None:
    with engine(n_seqs=2) as e:
        asked = [e.submit(PROMPT, n, ignore_eos=True, **GREEDY) for n in (4, 9, 3, 2, 5)]
        ended: list[Any] = []
        while not e.idle:
            ended += [event.request for event in e.step() if event.finished]
        assert sorted(map(asked.index, ended)) == [0, 1, 2, 3, 4]
        assert ended[0] is asked[0] and ended.index(asked[2]) < ended.index(asked[4])


@pytest.mark.parametrize("steps", range(8))
def test_cancelling_leaves_the_others_as_they_were(steps: int) -> None:
    with engine() as e:
        keep = e.submit(PROMPT, 16, ignore_eos=True, **GREEDY)
        gone = e.submit(PROMPTS["p200"]["ids"], 40, ignore_eos=True, **GREEDY)
        late = e.submit(PROMPTS["p64"]["ids"], 10, ignore_eos=True, temperature=1.0, seed=5)
        for _ in range(steps):
            e.step()
        gone.cancel()
        finish(e)
        assert gone.result is not None and gone.result.finish_reason == "cancelled"
        whole = solo(demo(), {"prompt": PROMPTS["p200"]["ids"], "max_tokens": 40, **GREEDY})
        assert gone.tokens == whole.tokens[: len(gone.tokens)]
        for request, prompt, more in (
            (keep, PROMPT, {"max_tokens": 16, **GREEDY}),
            (late, PROMPTS["p64"]["ids"], {"max_tokens": 10, "temperature": 1.0, "seed": 5}),
        ):
            want = solo(demo(), {"prompt": prompt, **more})
            assert request.tokens == want.tokens


def test_threads_submit_and_cancel_while_another_steps() -> None:
    spec = SPECS["sampled"]
    want = solo(demo(), spec)
    with engine(n_seqs=2) as e:
        requests: list[Any] = []

        def ask() -> None:
            for i in range(4):
                request = e.submit(**spec)
                requests.append(request)
                if i % 2:
                    request.cancel()

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or not e.idle:
            e.step()
        for thread in threads:
            thread.join()
        finish(e)
        assert len(requests) == 12 and all(r.result is not None for r in requests)
        for request in requests:
            assert request.tokens == want.tokens[: len(request.tokens)]
            if not request.cancelled:
                assert request.tokens == want.tokens


class Failing:
    """A constraint of a user's own that fails at its n-th mask."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.finished = False

    def start(self, tokenizer: Any) -> Failing:
        return Failing(self.left)

    def mask(self, logits: np.ndarray) -> np.ndarray:
        self.left -= 1
        if self.left < 0:
            raise ValueError("the rule is broken")
        return logits

    def allows(self, token: int) -> bool:
        return True

    def accept(self, token: int) -> None:
        pass

    def rollback(self, n: int) -> None:
        pass

    def validate(self, tokens: Sequence[int]) -> int:
        return len(tokens)

    def clone(self) -> Failing:
        return Failing(self.left)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_a_failing_constraint_ends_its_request_alone(n: int) -> None:
    with engine() as e:
        bad = e.submit(PROMPT, 10, constraint=Failing(n), ignore_eos=True, **GREEDY)
        good = e.submit(PROMPT, 10, ignore_eos=True, **GREEDY)
        host = e.submit(PROMPT, 10, ignore_eos=True, repeat_penalty=1.2, **GREEDY)
        finish(e)
        assert bad.result is not None and bad.result.finish_reason == "error"
        assert bad.result.error == "ValueError: the rule is broken" and len(bad.tokens) == n
        assert good.tokens == solo(demo(), {"prompt": PROMPT, "max_tokens": 10, **GREEDY}).tokens
        more = {"max_tokens": 10, "repeat_penalty": 1.2, **GREEDY}
        assert host.tokens == solo(demo(), {"prompt": PROMPT, **more}).tokens
        again = e.submit(PROMPT, 10, ignore_eos=True, **GREEDY)
        finish(e)
        assert again.tokens == good.tokens


@pytest.mark.parametrize("answer", [None, [], [None], "raise"], ids=str)
def test_a_failing_drafter_ends_its_requests_alone(answer: Any) -> None:
    def script(seq: int, context: list[int], limit: int) -> list[int]:
        return []

    def draft(self: Any, asks: Sequence[Ask]) -> Any:
        if answer == "raise":
            raise RuntimeError("no idea")
        return answer

    with scripted(script), engine(draft_max=4) as e:
        asked = speculation(("scripted",), 4)
        asked.drafters[0].draft = draft  # type: ignore[method-assign]
        bad = e.submit(PROMPT, 10, speculative=asked, ignore_eos=True, **GREEDY)
        good = e.submit(PROMPT, 10, speculative="ngram-mod", ignore_eos=True, **GREEDY)
        finish(e)
        assert bad.result is not None and bad.result.finish_reason == "error"
        named = "no idea" if answer == "raise" else "drafter 'scripted': draft should return"
        assert named in bad.result.error
        assert good.tokens == solo(demo(), {"prompt": PROMPT, "max_tokens": 10, **GREEDY}).tokens


def test_nan_in_one_row_ends_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as e:
        common = {"max_tokens": 10, "ignore_eos": True, "repeat_penalty": 1.1, **GREEDY}
        bad, good = e.submit(PROMPT, **common), e.submit(PROMPTS["p64"]["ids"], **common)
        while len(bad.tokens) < 3 or len(good.tokens) < 3:
            e.step()
        evaluate = Sequences.evaluate

        def spoiled(self: Sequences, items: Any, *args: Any, **more: Any) -> Any:
            found = evaluate(self, items, *args, **more)
            row = [seq for seq, _ in items].index(bad.seq)
            found.logits[row, 7] = np.nan
            return found

        with monkeypatch.context() as patch:
            patch.setattr(Sequences, "evaluate", spoiled)
            e.step()
        finish(e)
        assert bad.result is not None and "hold NaN" in bad.result.error
        want = solo(demo(), {"prompt": PROMPTS["p64"]["ids"], **common})
        assert good.tokens == want.tokens


def test_a_pass_that_fails_for_one_runs_again_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common = {"max_tokens": 10, "ignore_eos": True, "repeat_penalty": 1.1, **GREEDY}
    with engine() as e:
        bad, good = e.submit(PROMPT, **common), e.submit(PROMPTS["p64"]["ids"], **common)
        while not (bad.tokens and good.tokens):
            e.step()
        evaluate = Sequences.evaluate

        def failing(self: Sequences, items: Any, *args: Any, **more: Any) -> Any:
            if bad.seq in [seq for seq, _ in items]:
                raise BackendError("kernel 'add' failed")
            return evaluate(self, items, *args, **more)

        monkeypatch.setattr(Sequences, "evaluate", failing)
        finish(e)
        assert bad.result is not None and bad.result.error == "kernel 'add' failed"
        assert good.tokens == solo(demo(), {"prompt": PROMPTS["p64"]["ids"], **common}).tokens


def test_one_thread_steps_at_a_time() -> None:
    with engine() as e:
        e.submit(PROMPT, 4, **GREEDY)
        inside, leave = threading.Event(), threading.Event()
        step = e.sequences.evaluate

        def slow(*args: Any, **more: Any) -> Any:
            inside.set()
            leave.wait(60)
            return step(*args, **more)

        e.sequences.evaluate = slow  # type: ignore[method-assign]
        thread = threading.Thread(target=e.step)
        thread.start()
        inside.wait(60)
        with pytest.raises(SessionBusy):
            e.step()
        leave.set()
        thread.join()


def test_the_context_and_the_sequences_are_the_engines() -> None:
    with engine() as e:
        with pytest.raises(RequestError, match="2000 tokens do not fit in a context of 1536"):
            e.submit([5] * 2000)
        with pytest.raises(SessionBusy, match="belongs to a generation"):
            e.session.decode(5)
    assert issubclass(SequenceLost, rr.errors.RiverrunError)
