"""The draft-model drafter: self-drafting, equality with a fresh one, vocabularies, limits."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import riverrun as rr
from demo import PROMPTS, demo
from model_drafts import DRAW, Duet, Make, fresh, same, same_as_fresh
from riverrun.graph.errors import RequestError
from riverrun.speculative import Speculation
from riverrun.speculative.chain import PUT_OFF
from riverrun.speculative.draft import DraftModel
from riverrun.speculative.drafter import Ask, Setup
from tiny_models import N_VOCAB, VOCABULARIES, TinyModel, llama, qwen35

IDS = PROMPTS["p200"]["ids"]
KINDS = ("hybrid", "plain")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, rr.Model]:
    """Random models over the same 288 tokens."""
    folder = tmp_path_factory.mktemp("drafts")
    made = {"llama": llama(), "small llama": llama(layers=1), "qwen35": qwen35()}
    return {
        name: rr.load(source.write(folder / f"{name}.gguf"), device="cpu")
        for name, source in made.items()
    }


@pytest.fixture(params=["hybrid", "plain"])
def models(request: pytest.FixtureRequest, tiny: dict[str, rr.Model]) -> tuple[rr.Model, rr.Model]:
    """Target and draft model: with recurrent state both, or attention alone."""
    if request.param == "plain":
        return tiny["llama"], tiny["small llama"]
    return demo(), demo("cpu", "draft-q8_0")


def maker(draft: rr.Model, draft_max: int = 8, **more: float) -> Make:
    return lambda target: DraftModel(target, draft, draft_max=draft_max, **more)  # type: ignore[arg-type]


def text_for(model: rr.Model, n: int, seed: int = 0) -> list[int]:
    if model.n_vocab > N_VOCAB:
        return (IDS * (n // len(IDS) + 2))[seed : seed + n]
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(n)]


def invariant(d: Duet) -> None:
    """Once a round was observed the session holds a start of the text, nothing pending."""
    assert isinstance(d.drafter, DraftModel)
    for seq, text in enumerate(d.text):
        held = d.drafter.session.tokens(seq)
        assert held == text[: len(held)]
        assert d.drafter.session.memory.pending(seq) == 0
        assert d.target.tokens(seq) == text


@pytest.mark.parametrize("name", ["llama", "qwen35", "demo"])
def test_drafting_for_itself(tiny: dict[str, rr.Model], name: str) -> None:
    """With the same file as draft model every draft stays."""
    m = demo() if name == "demo" else tiny[name]
    asked = Speculation(("draft",), draft_model=m, draft_max=4, adaptive=False)
    prompt = text_for(m, 20)
    plain = m.generate(prompt, 101, temperature=0, ignore_eos=True).result
    got = m.generate(prompt, 101, temperature=0, ignore_eos=True, speculative=asked).result
    assert got.tokens == plain.tokens
    assert got.timings["draft_n"] == got.timings["draft_n_accepted"] == 80
    assert got.timings["draft_accepted_per_position"] == [20] * 4


@pytest.mark.parametrize(
    "rounds",
    [
        [(3, 0)] * 4,
        [(4, 4)] * 4,
        [(1, 1), (4, 2), (8, 0), (8, 7), (8, 3), (2, 2)],
        [(3, 2), *[(0, 0)] * 40, (3, 1)],
        [(0, 0)] * 5,
    ],
    ids=["none", "all", "some", "long pause", "no drafts"],
)
def test_after_rounds(models: tuple[rr.Model, rr.Model], rounds: list[tuple[int, int]]) -> None:
    """(drafts asked for, drafts kept): the draft model's one-token passes are rolled back."""
    target, draft = models
    d = Duet.of(target, maker(draft))
    newest = d.prompt(text_for(target, 50))
    for limit, keep in rounds:
        newest = d.round(newest, limit, keep)
        invariant(d)
    same_as_fresh(target, maker(draft), d, newest)


@pytest.mark.parametrize("n", [1, 31, 33, 120])
def test_after_a_prompt(models: tuple[rr.Model, rr.Model], n: int) -> None:
    target, draft = models
    d = Duet.of(target, maker(draft))
    newest = d.prompt(text_for(target, n))
    invariant(d)
    same_as_fresh(target, maker(draft), d, newest)


@pytest.mark.parametrize("rounds", [20, 70, 170])
def test_without_being_asked_it_does_not_read_along(
    models: tuple[rr.Model, rr.Model], rounds: int
) -> None:
    """Where drafts do not pay the text goes on without passes of the draft model, and the next
    draft is right all the same."""
    target, draft = models
    d = Duet.of(target, maker(draft))
    newest = d.round(d.prompt(text_for(target, 50)), 3, 1)
    assert isinstance(d.drafter, DraftModel)
    held = d.drafter.session.length()
    for _ in range(rounds):
        newest = d.round(newest, 0, 0)
        invariant(d)
    assert d.drafter.session.length() == held
    same_as_fresh(target, maker(draft), d, newest)
    newest = d.round(newest, 4, 2)
    same_as_fresh(target, maker(draft), d, newest)


def compare(models: tuple[rr.Model, rr.Model], d: Duet, newest: int, n_ctx: int) -> None:
    """The next draft is that of a fresh drafter in a context of this size."""
    target, draft = models
    invariant(d)
    want = Duet.of(target, maker(draft), n_ctx=n_ctx)
    want.prompt(d.text[0])
    same(d.drafts({0: newest}, 3, DRAW)[0], want.drafts({0: newest}, 3, DRAW)[0])


def test_far_behind(models: tuple[rr.Model, rr.Model]) -> None:
    """1200 tokens that the drafter is told of at once, as after a restored session."""
    target, draft = models
    d = Duet.of(target, maker(draft), n_ctx=1400)
    text = text_for(target, 1200)
    d.target.prefill(text)
    newest = d.prompt([*text, 7], kept=1200)
    compare(models, d, newest, 1400)


@pytest.mark.parametrize("shared", [0, 40, 530, 1100])
def test_prompt_reuse(models: tuple[rr.Model, rr.Model], shared: int) -> None:
    target, draft = models
    d = Duet.of(target, maker(draft), n_ctx=1400)
    newest = d.prompt(text_for(target, 1090))
    for keep in (3, 2, 0, 3):
        newest = d.round(newest, 4, keep)
    prompt = [*d.text[0][:shared], 7, *text_for(target, 40, seed=3)]
    kept = d.target.reuse(prompt)
    newest = d.prompt(prompt, kept=kept)
    compare(models, d, newest, 1400)


def test_slot_is_used_again(models: tuple[rr.Model, rr.Model]) -> None:
    target, draft = models
    d = Duet.of(target, maker(draft))
    newest = d.prompt(text_for(target, 60))
    d.round(newest, 4, 1)
    d.drafts({0: newest}, 4)
    d.clear()
    invariant(d)
    newest = d.prompt(text_for(target, 45, seed=2))
    same_as_fresh(target, maker(draft), d, newest)


def test_draft_that_nobody_judged(models: tuple[rr.Model, rr.Model]) -> None:
    """The round failed, and another token takes the newest one's place; or none was drafted for."""
    target, draft = models
    d = Duet.of(target, maker(draft))
    newest = d.prompt(text_for(target, 60))
    d.drafts({0: newest}, 4)
    d.drafts({0: newest + 1}, 4)
    same_as_fresh(target, maker(draft), d, newest)
    other = newest + 2
    newest = d.verify({0: [other]}, {0: 0})[0]
    invariant(d)
    same_as_fresh(target, maker(draft), d, newest)


def test_another_drafter_was_heard(models: tuple[rr.Model, rr.Model]) -> None:
    """Tokens are verified that share only their start with what this one drafted."""
    target, draft = models
    d = Duet.of(target, maker(draft))
    newest = d.prompt(text_for(target, 60))
    tokens = d.drafts({0: newest}, 5)[0].tokens
    mixed = [newest, tokens[0], tokens[1] + 1, *tokens[2:]]
    newest = d.verify({0: mixed}, {0: 4})[0]
    invariant(d)
    same_as_fresh(target, maker(draft), d, newest)


def test_unequal_limits(models: tuple[rr.Model, rr.Model]) -> None:
    """Three sequences, whose chains end after 1, 6 and 3 tokens, over several rounds."""
    target, draft = models
    d = Duet.of(target, maker(draft), n_seqs=3)
    newest = {s: d.prompt(text_for(target, 40 + 9 * s, seed=s), s) for s in range(3)}
    limits = (1, 6, 3)
    for turn in range(4):
        asks = [Ask(s, [*d.text[s], newest[s]], limits[(s + turn) % 3]) for s in range(3)]
        drafts = d.drafter.draft(asks)
        assert [len(x.tokens) for x in drafts] == [a.limit for a in asks]
        items = {s: [newest[s], *drafts[s].tokens] for s in range(3)}
        keep = {s: (s + turn) % len(items[s]) for s in range(3)}
        newest = dict(enumerate(d.verify(items, keep)))
        invariant(d)
    found = d.drafts(newest, 3, DRAW)
    for s in range(3):
        same(found[s], fresh(target, maker(draft), d.text[s], newest[s]))


def test_200_rounds(models: tuple[rr.Model, rr.Model]) -> None:
    target, draft = models
    rng = random.Random(8)
    d = Duet.of(target, maker(draft), n_ctx=1400)
    newest = d.prompt(text_for(target, 20))
    for _ in range(200):
        limit = rng.choice((0, 1, 3, 4, 8))
        newest = d.round(newest, limit, rng.randint(0, limit))
        invariant(d)
        assert isinstance(d.drafter, DraftModel)
        behind = len(d.text[0]) - d.drafter.session.length()
        assert behind <= 33
    compare(models, d, newest, 1400)


@pytest.mark.parametrize("tried_again", [True, False])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_failing_pass(
    monkeypatch: pytest.MonkeyPatch,
    models: tuple[rr.Model, rr.Model],
    at: int,
    tried_again: bool,
) -> None:
    """The first pass or a later one breaks off; one of the chains is complete by then."""
    target, draft = models
    d = Duet.of(target, maker(draft), n_seqs=2)
    newest = {s: d.prompt(text_for(target, 50, seed=s), s) for s in range(2)}
    assert isinstance(d.drafter, DraftModel)
    run, calls = d.drafter.session._run, 0

    def failing(step: object, *args: object, **more: object) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise MemoryError("planted")
        run(step, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(d.drafter.session, "_run", failing)
    asks = [Ask(s, [*d.text[s], newest[s]], limit) for s, limit in ((0, 2), (1, 4))]
    with pytest.raises(MemoryError):
        d.drafter.draft(asks)
    if not tried_again:
        newest = dict(enumerate(d.verify({0: [newest[0]], 1: [newest[1]]}, {0: 0, 1: 0})))
        invariant(d)
    found = d.drafts(newest, 3, DRAW)
    for s in range(2):
        same(found[s], fresh(target, maker(draft), d.text[s], newest[s]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_ctx", [40, 41, 42, 47, 256])
def test_to_the_end_of_the_context(tiny: dict[str, rr.Model], kind: str, n_ctx: int) -> None:
    """Sixteen drafts a round, with ever fewer free places; ends for length like plain decoding."""
    target = tiny["llama" if kind == "plain" else "qwen35"]
    asked = Speculation(("draft",), draft_model=target, draft_max=16, adaptive=False)
    prompt = text_for(target, 37)
    plain = target.generate(prompt, n_ctx=n_ctx, temperature=0, ignore_eos=True).result
    got = target.generate(
        prompt, n_ctx=n_ctx, temperature=0, ignore_eos=True, speculative=asked
    ).result
    assert got.tokens == plain.tokens
    assert got.finish_reason == plain.finish_reason == "length"


@pytest.mark.parametrize("pairing", [("llama", "small llama"), ("llama", "qwen35")])
@pytest.mark.parametrize("turned", [False, True])
def test_architectures_mix(
    tiny: dict[str, rr.Model], pairing: tuple[str, str], turned: bool
) -> None:
    target, draft = (tiny[n] for n in (pairing[::-1] if turned else pairing))
    asked = Speculation(("draft",), draft_model=draft, draft_max=4, adaptive=False)
    prompt = text_for(target, 25)
    plain = target.generate(prompt, 60, temperature=0, ignore_eos=True).result.tokens
    got = target.generate(prompt, 60, temperature=0, ignore_eos=True, speculative=asked).result
    assert got.tokens == plain
    assert got.timings["draft_n"] > 60


def test_p_min_and_draft_min(models: tuple[rr.Model, rr.Model]) -> None:
    target, draft = models
    d = Duet.of(target, maker(draft))
    newest = d.prompt(text_for(target, 50))
    full = d.drafts({0: newest}, 5)[0].tokens
    assert len(full) == 5
    for more, want in (({"p_min": 1.0}, 0), ({"draft_min": 6}, 0), ({"draft_min": 5}, 5)):
        d = Duet.of(target, maker(draft, **more))
        d.prompt(text_for(target, 50))
        assert d.drafts({0: newest}, 5)[0].tokens == full[:want]
        newest_after = d.verify({0: [newest]}, {0: 0})[0]
        invariant(d)
        same_as_fresh(target, maker(draft), without(d, maker(draft)), newest_after)


def without(d: Duet, make: Make) -> Duet:
    """The same text in front of a drafter with other settings."""
    other = Duet.of(d.target.model, make)
    other.prompt(d.text[0])
    return other


def vocabulary(change: str = "", size: int = N_VOCAB) -> TinyModel:
    """A llama with byte tokens; change: what is different about it."""
    source = llama(layers=1)
    source.vocab = "gpt2"
    if size != N_VOCAB or change:
        keys = dict(VOCABULARIES["gpt2"]())
        tokens = [*keys["tokenizer.ggml.tokens"], *(f"<|more_{i}|>" for i in range(size))][:size]
        types = [*keys["tokenizer.ggml.token_type"], *[5] * size][:size]
        if change == "token":
            tokens[270] = "<|another|>"
        if change == "first tokens":
            tokens[2] = "<|another|>"
        source.extra = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
        if change in ("bos", "eos"):
            source.extra[f"tokenizer.ggml.{change}_token_id"] = 258
        for name in ("token_embd.weight", "output.weight"):
            rows = source.tensors[name]
            source.tensors[name] = rows[[i % len(rows) for i in range(size)]]
            # So that what only this model has would often be likeliest.
            source.tensors[name][N_VOCAB:] *= 2
        source.keys["vocab_size"] = size
    return source


@pytest.fixture
def with_words(tmp_path: Path) -> rr.Model:
    return rr.load(vocabulary().write(tmp_path / "target.gguf"), device="cpu")


@pytest.mark.parametrize(
    "change,size,words",
    [
        ("token", N_VOCAB, r"token 270 is '<\|another\|>', it should be '<\|filler_12\|>'"),
        ("bos", N_VOCAB, "bos_id is 258, it should be 257"),
        ("eos", N_VOCAB, "eos_id is 258, it should be 257"),
        ("", N_VOCAB + 129, "at most 128 tokens, they have 288 and 417"),
    ],
)
def test_other_vocabularies_are_refused(
    tmp_path: Path, with_words: rr.Model, change: str, size: int, words: str
) -> None:
    draft = rr.load(vocabulary(change, size).write(tmp_path / "draft.gguf"), device="cpu")
    with pytest.raises(RequestError, match=f"'draft.gguf' for 'target.gguf': .*{words}.*family"):
        DraftModel(with_words.session(64).sequences, draft)
    asked = Speculation(("draft",), draft_model=draft)
    with pytest.raises(RequestError, match=words):
        with_words.generate("the", 4, speculative=asked)


@pytest.mark.parametrize(
    "change,size", [("first tokens", N_VOCAB), ("", N_VOCAB + 100), ("", N_VOCAB - 20)]
)
def test_padded_vocabularies(tmp_path: Path, with_words: rr.Model, change: str, size: int) -> None:
    """Ids that only the draft model has are never proposed; ids that only the target has may
    stand in its text."""
    draft = rr.load(vocabulary(change, size).write(tmp_path / "draft.gguf"), device="cpu")
    d = Duet.of(with_words, maker(draft))
    top = N_VOCAB - 1
    newest = d.prompt([1, 2, top, 3, top - 1])
    for keep in (2, 0, 4, 1):
        drafts = d.drafts({0: newest}, 4)[0].tokens
        assert max(drafts) < min(size, N_VOCAB)
        newest = d.verify({0: [newest, *drafts]}, {0: keep})[0]
        newest = top if keep == 2 else newest
    assert isinstance(d.drafter, DraftModel)
    held = d.drafter.session.tokens()
    assert held == [min(t, size - 1) for t in d.text[0][: len(held)]]
    asked = Speculation(("draft",), draft_model=draft, adaptive=False)
    plain = with_words.generate([1, 2, top], 40, temperature=0, ignore_eos=True).result.tokens
    got = with_words.generate([1, 2, top], 40, temperature=0, ignore_eos=True, speculative=asked)
    assert got.result.tokens == plain


def test_no_draft_model() -> None:
    with pytest.raises(RequestError, match="needs a second model; give one"):
        DraftModel.open(Setup(demo().session(64, n_rs_seq=4).sequences))


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_a_prompt_that_ends_differently_is_not_read_anew(
    tiny: dict[str, rr.Model], name: str
) -> None:
    """Recurrent state cannot go back by itself: one near the end of a prompt is kept."""
    d = Duet.of(tiny[name], maker(tiny[name]))
    prompt = text_for(tiny[name], 300)
    newest = d.prompt(prompt)
    for keep in (3, 0, 2):
        newest = d.round(newest, 4, keep)
    assert isinstance(d.drafter, DraftModel)
    d.drafter.begin(0, [*prompt[:-2], 7, 8, 9], 0)
    assert d.drafter.session.length() >= len(prompt) - PUT_OFF - 4


@pytest.mark.usefixtures("all_processors")
@pytest.mark.parametrize("threads, shared", [(2, True), (1, False)])
def test_threads_of_a_draft_model(tmp_path: Path, threads: int, shared: bool) -> None:
    """It computes with those of the target, which never computes at the same time: threads of two
    pools would keep each other from the processors. Another number of them stays its own."""
    target = rr.load(llama().write(tmp_path / "target.gguf"), device="cpu", threads=2)
    small = llama(layers=1).write(tmp_path / "small.gguf")
    draft = rr.load(small, device="cpu", threads=threads)
    target.generate([1, 2, 3], 4, speculative=Speculation(("draft",), draft_model=draft)).result  # noqa: B018
    assert (draft.backend.pool is target.backend.pool) is shared
