"""Rounds of speculation against a known text, and random texts that repeat themselves."""

from __future__ import annotations

import random

from riverrun.speculative.drafter import Ask


def ask(drafter, context, limit=64, seq=0):
    """The drafted tokens for one sequence."""
    (draft,) = drafter.draft([Ask(seq, context, limit)])
    assert draft.distributions is None
    return draft.tokens


def agreed(draft, text, at):
    """How many drafted tokens the text has from `at` on."""
    n = 0
    while n < len(draft) and at + n < len(text) and draft[n] == text[at + n]:
        n += 1
    return n


def judge(drafter, draft, text, p, seq=0):
    """Accepts what the text agrees to: p tokens were committed, more are then. Their number."""
    n = agreed(draft, text, p + 1)
    if draft:
        drafter.accept(seq, len(draft), n)
    drafter.observe(seq, text[p : p + 1 + n], None, text[: p + 1 + n])
    return p + 1 + n


def play(drafter, text, prompt, limit=64, seq=0):
    """Every round's draft, from a prompt of so many tokens to the text's end."""
    drafter.begin(seq, text[:prompt])
    drafter.observe(seq, text[:prompt], None, text[:prompt])
    drafts, p = [], prompt
    while p + 1 < len(text):
        drafts.append(ask(drafter, text[: p + 1], limit, seq))
        p = judge(drafter, drafts[-1], text, p, seq)
    return drafts


def text_of(seed, length, alphabet=3, copied=0.6, piece=20):
    """A random text, of which about that share is copied, in pieces, from earlier in it."""
    rng = random.Random(seed)
    text = [rng.randrange(alphabet) for _ in range(piece)]
    while len(text) < length:
        n = rng.randrange(1, piece)
        if rng.random() < copied:
            start = rng.randrange(len(text))
            text += text[start : start + n]
        else:
            text += [rng.randrange(alphabet) for _ in range(n)]
    return text[:length]
