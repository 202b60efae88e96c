"""ngram-mod: its table, of one sequence or shared by all, its resets, and a plain reading of its
rules."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from ngram_rounds import agreed, ask, text_of
from riverrun.graph.errors import RequestError
from riverrun.speculative.drafter import Ask, Setup
from riverrun.speculative.ngram_mod import NgramMod, Pool

MULTIPLIER = 6364136223846793005


class PlainMod:
    """The rules with a dictionary for a table, hashes in 64 bits, and every key hashed anew."""

    def __init__(self, n, n_max, n_min, size):
        self.n, self.n_max, self.n_min, self.size = n, n_max, n_min, size
        self.table, self.texts, self.entered, self.low, self.resets = {}, {}, {}, {}, 0

    def place(self, key):
        h = 0
        for token in key:
            h = (h * MULTIPLIER + token) % 2**64
        return h % self.size

    def begin(self, seq, prompt):
        self.clear(seq)
        if len(self.table) > self.size / 4:
            self.reset()
        self.follow(seq, prompt)
        self.enter(seq)

    def follow(self, seq, text):
        known = self.texts.get(seq, [])
        kept = min(len(known), len(text))
        kept = kept if known[:kept] == text[:kept] else 0
        self.entered[seq] = min(self.entered.get(seq, 0), kept)
        self.texts[seq] = text
        if len(text) - self.entered[seq] >= 32:
            self.enter(seq)

    def enter(self, seq):
        text = self.texts[seq]
        for at in range(max(self.entered[seq], self.n), len(text)):
            self.table[self.place(text[at - self.n : at])] = text[at]
        self.entered[seq] = len(text)

    def draft(self, seq, context, limit):
        self.follow(seq, context[:-1])
        text = list(context)
        if len(text) < self.n:
            return []
        while len(text) - len(context) < self.n_max:
            token = self.table.get(self.place(text[-self.n :]))
            if token is None:
                break
            text.append(token)
        draft = text[len(context) :]
        return draft[:limit] if len(draft) >= self.n_min else []

    def accept(self, seq, n_drafted, n_accepted):
        self.low[seq] = self.low.get(seq, 0) + 1 if n_accepted / n_drafted < 0.25 else 0
        if self.low[seq] == 5:
            self.reset()

    def reset(self):
        self.resets += 1
        self.table, self.low = {}, {}
        self.entered = dict.fromkeys(self.entered, 0)

    def clear(self, seq):
        for held in (self.texts, self.entered, self.low):
            held.pop(seq, None)


def shared(**bounds):
    """One pool for all sequences."""
    return NgramMod(share=True, **bounds)


def commit(drafter, text, seq=0):
    drafter.observe(seq, text, None, text)


def test_follows_the_table_from_n_gram_to_n_gram():
    drafter = shared(n=2, n_max=4, n_min=1)
    drafter.begin(0, [1, 2, 3, 4, 5, 6, 7])
    assert ask(drafter, [8, 9, 2, 3], seq=1) == [4, 5, 6, 7]
    assert ask(drafter, [8, 9, 1, 2], seq=1) == [3, 4, 5, 6]
    assert ask(drafter, [8, 9, 5, 6], seq=1) == [7]
    assert ask(drafter, [8, 9, 6, 7], seq=1) == []
    assert ask(drafter, [2, 3], seq=2) == [4, 5, 6, 7]
    assert ask(drafter, [3], seq=2) == []


def test_the_last_writer_wins():
    drafter = shared(n=2, n_max=1, n_min=1)
    drafter.begin(0, [1, 2, 3, 1, 2, 4])
    assert ask(drafter, [1, 2], seq=1) == [4]
    drafter.begin(2, [1, 2, 5])
    assert ask(drafter, [1, 2], seq=1) == [5]


def test_keys_are_hashed_and_not_checked():
    drafter = shared(n=1, n_max=1, n_min=1, pool_size=8)
    drafter.begin(0, [3, 6])
    assert ask(drafter, [11], seq=1) == [6]
    assert ask(drafter, [4], seq=1) == []
    drafter = shared(n=2, n_max=1, n_min=1, pool_size=8)
    drafter.begin(0, [1, 2, 9])  # 1 * MULTIPLIER + 2 is 7 modulo 8
    assert ask(drafter, [0, 7], seq=1) == [9]
    assert ask(drafter, [2, 1], seq=1) == []


def test_a_draft_that_the_table_does_not_carry_to_n_min_is_dropped():
    text = list(range(40))
    for n_min, expected in [(9, list(range(31, 40))), (10, [])]:
        drafter = shared(n=4, n_max=12, n_min=n_min)
        drafter.begin(0, text)
        assert ask(drafter, [27, 28, 29, 30], seq=1) == expected
        assert ask(drafter, [27, 28, 29, 30], seq=1, limit=3) == expected[:3]


def test_defaults_are_24_48_and_64():
    drafter = shared()
    drafter.begin(0, list(range(100)))
    assert ask(drafter, list(range(24)), seq=1) == list(range(24, 88))
    assert ask(drafter, list(range(28, 52)), seq=1) == list(range(52, 100))
    assert ask(drafter, list(range(29, 53)), seq=1) == []
    assert ask(drafter, list(range(1, 24)), seq=1) == []


def test_draft_max_lowers_both_bounds():
    drafter = shared(draft_max=3)
    drafter.begin(0, list(range(100)))
    assert ask(drafter, list(range(73, 97)), seq=1) == [97, 98, 99]
    assert ask(drafter, list(range(74, 98)), seq=1) == []


def test_text_goes_in_32_tokens_at_a_time():
    drafter = shared(n=2, n_max=1, n_min=1)
    text = list(range(50))
    drafter.begin(0, text[:10])
    commit(drafter, text[:41])
    assert ask(drafter, [8, 9], seq=1) == []
    commit(drafter, text[:42])
    assert ask(drafter, [8, 9], seq=1) == [10]
    assert ask(drafter, [39, 40], seq=1) == [41]
    commit(drafter, text)
    assert ask(drafter, [40, 41], seq=1) == []


def test_clear_drops_the_sequence_and_keeps_the_pool():
    drafter = shared(n=2, n_max=3, n_min=1)
    drafter.begin(0, list(range(20)))
    drafter.clear(0)
    assert ask(drafter, [4, 5], seq=1) == [6, 7, 8]
    assert ask(drafter, [4, 5], seq=0) == [6, 7, 8]
    drafter.forget()
    assert ask(drafter, [4, 5], seq=1) == []
    assert ask(drafter, [4, 5], seq=0) == []


def poor(drafter, seq, rounds, accepted=0):
    for _ in range(rounds):
        drafter.accept(seq, 4, accepted)


def drafting(**more):
    """A drafter with a short text in its pool, and sequence 1 to draft from it."""
    drafter = shared(n=2, n_max=4, n_min=1, **more)
    drafter.begin(0, [1, 2, 3, 4, 5, 6, 7])
    drafter.begin(1, [8])
    return drafter


def test_five_poor_rounds_in_a_row_empty_the_pool():
    drafter = drafting()
    poor(drafter, 1, 4)
    poor(drafter, 1, 1, accepted=1)  # a quarter is not poor
    poor(drafter, 1, 4)
    assert ask(drafter, [8, 1, 2], seq=1) == [3, 4, 5, 6]
    poor(drafter, 1, 1)
    assert ask(drafter, [8, 1, 2], seq=1) == []
    poor(drafter, 1, 4)
    drafter.begin(2, [1, 2, 3])
    poor(drafter, 1, 0)
    assert ask(drafter, [8, 1, 2], seq=1) == [3]


def test_poor_rounds_are_counted_per_sequence():
    drafter = drafting()
    for seq in (0, 1):
        poor(drafter, seq, 4)
    drafter.clear(1)
    drafter.begin(1, [8])
    poor(drafter, 1, 4)
    assert ask(drafter, [8, 1, 2], seq=1) == [3, 4, 5, 6]


def test_living_texts_go_back_into_an_emptied_pool():
    drafter = shared(n=2, n_max=2, n_min=1)
    living, gone = list(range(40)), list(range(100, 140))
    drafter.begin(0, living)
    drafter.begin(1, gone)
    drafter.clear(1)
    drafter.begin(2, [200])
    poor(drafter, 2, 5)
    assert ask(drafter, [4, 5], seq=3) == []
    commit(drafter, living)
    assert ask(drafter, [4, 5], seq=3) == [6, 7]
    assert ask(drafter, [104, 105], seq=3) == []


def test_a_pool_more_than_a_quarter_full_is_emptied_when_a_sequence_begins():
    drafter = shared(n=1, n_max=1, n_min=1, pool_size=64)
    drafter.begin(0, list(range(17)))  # 16 entries
    drafter.begin(1, [20, 21])
    assert ask(drafter, [5], seq=2) == [6]
    drafter.begin(3, [40, 41])
    assert ask(drafter, [5], seq=2) == []
    assert ask(drafter, [40], seq=2) == [41]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [32, 256, 1 << 16])
def test_every_round_of_many_sequences_follows_the_rules(seed, size):
    rng = random.Random(seed)
    bounds = {"n": rng.randrange(1, 5), "n_max": 6, "n_min": rng.randrange(4)}
    drafter, plain = shared(pool_size=size, **bounds), PlainMod(size=size, **bounds)
    texts, at, found = {}, {}, 0
    for step in range(400):
        seq = rng.randrange(3)
        if seq not in texts or at[seq] + 1 >= len(texts[seq]):
            texts[seq] = text_of(rng.randrange(4), 150, alphabet=4)
            at[seq] = rng.randrange(60)
            for d in (drafter, plain):
                d.begin(seq, texts[seq][: at[seq]])
        text, p = texts[seq], at[seq]
        if rng.random() < 0.05:
            p = at[seq] = rng.randrange(p + 1)
        limit = rng.randrange(1, 8)
        draft = ask(drafter, text[: p + 1], limit, seq)
        assert draft == plain.draft(seq, text[: p + 1], limit), step
        n = agreed(draft, text, p + 1) if rng.random() < 0.7 else 0
        if draft:
            found += 1
            for d in (drafter, plain):
                d.accept(seq, len(draft), n)
        at[seq] = p + 1 + n
        commit(drafter, text[: at[seq]], seq)
        plain.follow(seq, text[: at[seq]])
    assert found and (plain.resets or size > 32)


@pytest.mark.parametrize(
    "wrong", [{"n_min": 9, "n_max": 8}, {"pool_size": 0}, {"pool_size": 3 << 10}]
)
def test_bounds_that_do_not_fit(wrong):
    with pytest.raises(RequestError, match=next(iter(wrong))):
        NgramMod(**wrong)


def test_another_sequence_s_text_is_never_drafted():
    drafter = NgramMod(n=2, n_max=4, n_min=1)
    drafter.begin(0, list(range(100)))
    drafter.begin(1, [*range(50, 60)])
    assert ask(drafter, [*range(50, 60), 4, 5], seq=1) == []
    assert ask(drafter, [*range(50, 60), 51, 52], seq=1) == [53, 54, 55, 56]
    assert ask(drafter, [*range(100), 4, 5]) == [6, 7, 8, 9]
    assert ask(drafter, [4, 5], seq=2) == []


@pytest.mark.parametrize("how", ["begin", "clear and observe"])
def test_nothing_of_the_text_before_is_drafted(how):
    drafter = NgramMod(n=2, n_max=4, n_min=1)
    drafter.begin(0, list(range(60)))
    commit(drafter, list(range(99)))
    new = [*range(200, 240)]
    if how == "begin":
        drafter.begin(0, new)
    else:
        drafter.clear(0)
    commit(drafter, new)
    assert ask(drafter, [*new, 4, 5]) == []
    assert ask(drafter, [*new, 204, 205]) == [206, 207, 208, 209]


@pytest.mark.parametrize("kept", [0, 10, 40])
def test_of_a_text_that_goes_back_only_the_prompt_is_left(kept):
    drafter = NgramMod(n=2, n_max=4, n_min=1)
    old, new = list(range(80)), [*range(40), 300, 301]
    drafter.begin(0, old)
    drafter.begin(0, new, kept)
    commit(drafter, new)
    assert ask(drafter, [*new, 4, 5]) == [6, 7, 8, 9]
    assert ask(drafter, [*new, 50, 51]) == []


def test_a_text_that_is_cut_leaves_nothing_of_its_end():
    drafter = NgramMod(n=2, n_max=4, n_min=1)
    commit(drafter, list(range(80)))
    commit(drafter, list(range(40)))
    assert ask(drafter, [*range(40), 50, 51]) == []
    assert ask(drafter, [*range(40), 4, 5]) == [6, 7, 8, 9]


def test_poor_rounds_leave_an_own_pool_as_it_is():
    drafter = NgramMod(n=2, n_max=4, n_min=1)
    drafter.begin(0, list(range(40)))
    poor(drafter, 0, 12)
    assert ask(drafter, [*range(40), 4, 5]) == [6, 7, 8, 9]


@pytest.mark.parametrize("seed", range(6))
def test_drafts_are_those_of_a_drafter_with_this_sequence_alone(seed):
    rng = random.Random(seed)
    bounds = {"n": 2, "n_max": 6, "n_min": 1, "pool_size": 1 << 12}
    together, alone = NgramMod(**bounds), [NgramMod(**bounds) for _ in range(3)]
    texts, found = {}, 0
    for _ in range(300):
        seq = rng.randrange(3)
        if seq not in texts or len(texts[seq]) > 120:
            texts[seq] = text_of(rng.randrange(9), rng.randrange(20, 60), alphabet=5)
            for drafter in (together, alone[seq]):
                drafter.begin(seq, texts[seq])
        context = [*texts[seq], rng.randrange(5)]
        draft = ask(together, context, 6, seq)
        assert draft == ask(alone[seq], context, 6, seq)
        found += bool(draft)
        texts[seq] = context
        for drafter in (together, alone[seq]):
            drafter.accept(seq, len(draft), 0)
            commit(drafter, context, seq)
    assert found > 100


def test_a_table_takes_no_memory_before_its_first_entry(monkeypatch):
    used = {}
    add = Pool.add
    monkeypatch.setattr(
        Pool, "add", lambda self, *a: used.update({id(self): self}) or add(self, *a)
    )
    drafter = NgramMod(n=24)
    for seq in range(4):
        drafter.begin(seq, list(range(24)))
    assert len(used) == 4 and all(pool.nbytes == 0 for pool in used.values())
    drafter.begin(0, list(range(25)))
    assert sum(pool.nbytes for pool in used.values()) == 4 << 22


@pytest.mark.parametrize("n_ctx, entries", [(64, 1 << 12), (4096, 1 << 18), (1 << 20, 1 << 22)])
def test_own_tables_are_as_large_as_the_context_needs(n_ctx, entries):
    model = SimpleNamespace(tokenizer=SimpleNamespace(n_vocab=0), n_vocab=1000)
    target = SimpleNamespace(model=model, n_ctx=n_ctx)
    assert NgramMod.open(Setup(target)).pool_size == entries
    assert NgramMod.open(Setup(target, share_ngrams=True)).pool_size == 1 << 22


def test_sequences_of_a_session_that_shares_see_each_other():
    model = SimpleNamespace(tokenizer=SimpleNamespace(n_vocab=0), n_vocab=1000)
    target = SimpleNamespace(model=model, n_ctx=512)
    for share, want in ((True, [30, 31, 32]), (False, [])):
        drafter = NgramMod.open(Setup(target, 3, share_ngrams=share))
        drafter.begin(0, list(range(100)))
        (draft,) = drafter.draft([Ask(1, list(range(30)), 3)])
        assert draft.tokens == want
