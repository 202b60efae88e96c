"""Prompts of ten kinds that differ in how well text like theirs can be guessed."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.errors import RequestError

CODE_PYTHON = '''Write a Python class for a bounded queue of jobs.

```python
import heapq
from dataclasses import dataclass, field


@dataclass(order=True)
class Job:
    priority: int
    name: str = field(compare=False)


class JobQueue:
    """The jobs of least priority number come first; a full queue refuses more."""

    def __init__(self, capacity):
        self.capacity = capacity
        self._heap = []

    def push(self, job):
'''

CODE_CPP = """Complete this header of a ring buffer in C++17.

```cpp
#include <array>
#include <cstddef>
#include <optional>

template <typename T, std::size_t N>
class RingBuffer {
public:
    bool push(const T& value) {
        if (size_ == N) return false;
        items_[(first_ + size_) % N] = value;
        ++size_;
        return true;
    }

    std::optional<T> pop() {
"""

EXPLAIN_CONCEPT = """Explain to a colleague who writes web pages what a hash table is. Start with
an everyday picture, then say what the hash function does, what happens when two keys meet in one
slot, and why the table has to grow. End with one sentence on when a sorted list is the better
choice.

A hash table"""

SUMMARIZE = """Summarize the following note in two sentences.

The harbour town of Veldmar decided last spring to replace its two old ferries. The council had
three offers: a diesel boat that was cheap to buy, an electric one that was cheap to run, and a
rebuilt steamer that the museum would have liked to see. After a long evening the electric boat won
by one vote. It arrived in October, could not be charged because the quay had no cable, and spent
the winter tied up beside the boats that it was to replace. The cable came in March. Since then the
ferry has made eleven crossings a day, and the diesel tank behind the harbour office stands empty.

Summary:"""

QA_FACTUAL = """Answer in one short sentence each.

Question: Which planet of the solar system has the shortest day?
Answer: Jupiter, which turns once in just under ten hours.
Question: What is the chemical symbol of tungsten?
Answer: W, after its other name, wolfram.
Question: Which sea lies between Italy and Croatia?
Answer:"""

TRANSLATION = """Translate each line from English into German.

English: The train to the coast leaves at seven in the morning.
German: Der Zug an die Küste fährt um sieben Uhr morgens ab.
English: My sister has lent her umbrella to the neighbours.
German: Meine Schwester hat den Nachbarn ihren Regenschirm geliehen.
English: If it rains tomorrow, we shall stay at home and bake bread.
German:"""

CREATIVE_SHORT = """Write the opening of a short story about a lighthouse keeper who finds a letter
that is addressed to the lighthouse itself. Keep it quiet, a little odd, and free of ghosts.

The letter came on a Tuesday, although no boat had"""

STEPWISE_MATH = """Solve step by step and give the result at the end.

Problem: A tank holds 240 litres. One pipe fills it at 12 litres a minute, a second one at 8 litres
a minute, and a leak loses 5 litres a minute. Both pipes are opened when the tank is one quarter
full. After how many minutes is it full?

Step 1: One quarter of 240 litres is 60 litres, so 240 - 60 = 180 litres are missing.
Step 2: Together the pipes bring 12 + 8 ="""

HIGH_ENTROPY = """These records have no pattern; carry the list on.

q7Zr-04x9!Lm  b2Wk/88f1?Ya  Tn5v+61c3%Ge  u0Hd=97s4&Pj  Xo3y~25m8*Ci
e6Bq#13k7^Vu  Rw9l@50z2$Nf  h4St_76p0:Dx  Jg1a;39d5|Ko  c8Mz.02t6<Ew
V5ny>68r1(Qb  i7Fu)41h9[Ls  Zk2x]94g3{Ta  o0Pe}17v8,Hm"""

LONG_CODE_REVIEW = '''Review the following module. Name faults, unclear names and missing tests,
line by line, and then give a corrected version of each function.

```python
"""Accounts of a small shop: what was sold, what was paid, what is still owed."""

import csv
import datetime
import json
import os

DEFAULT_CURRENCY = "EUR"
ledger = {}


class Entry:
    def __init__(self, customer, amount, date=datetime.date.today(), paid=False, notes=[]):
        self.customer = customer
        self.amount = amount
        self.date = date
        self.paid = paid
        self.notes = notes

    def add_note(self, note):
        self.notes.append(note)

    def __eq__(self, other):
        return self.customer == other.customer and self.amount == other.amount


def load(path):
    f = open(path)
    rows = csv.reader(f)
    for row in rows:
        customer = row[0]
        amount = float(row[1])
        date = datetime.datetime.strptime(row[2], "%d.%m.%Y").date()
        paid = bool(row[3])
        entry = Entry(customer, amount, date, paid)
        if customer in ledger:
            ledger[customer].append(entry)
        else:
            ledger[customer] = [entry]
    return ledger


def save(path):
    data = {}
    for customer in ledger:
        data[customer] = []
        for entry in ledger[customer]:
            data[customer].append([entry.amount, str(entry.date), entry.paid, entry.notes])
    os.remove(path)
    f = open(path, "w")
    f.write(json.dumps(data))


def owed(customer):
    total = 0
    for entry in ledger[customer]:
        if entry.paid == False:
            total = total + entry.amount
    return total


def total_owed():
    total = 0
    for customer in ledger:
        total = total + owed(customer)
    return round(total, 2)


def pay(customer, amount):
    for entry in ledger[customer]:
        if entry.paid == False:
            if amount >= entry.amount:
                entry.paid = True
                amount = amount - entry.amount
            else:
                entry.amount = entry.amount - amount
                amount = 0
    if amount > 0:
        print("Too much: " + amount)


def remind(customer, days=30):
    today = datetime.date.today()
    letters = []
    for entry in ledger[customer]:
        if entry.paid == False and (today - entry.date).days > days:
            text = "Dear %s, you owe us %f %s." % (customer, entry.amount, DEFAULT_CURRENCY)
            letters.append(text)
    return letters


def merge(old, new):
    for entry in ledger[old]:
        entry.customer = new
        ledger[new].append(entry)
    del ledger[old]


def oldest():
    best = None
    for customer in ledger:
        for entry in ledger[customer]:
            if best == None or entry.date < best.date:
                best = entry
    return best


def average(customer):
    entries = ledger[customer]
    return sum(e.amount for e in entries) / len(entries)
```

Review:

1. `ledger` is'''

PROMPTS = {
    "code_python": CODE_PYTHON,
    "code_cpp": CODE_CPP,
    "explain_concept": EXPLAIN_CONCEPT,
    "summarize": SUMMARIZE,
    "qa_factual": QA_FACTUAL,
    "translation": TRANSLATION,
    "creative_short": CREATIVE_SHORT,
    "stepwise_math": STEPWISE_MATH,
    "high_entropy": HIGH_ENTROPY,
    "long_code_review": LONG_CODE_REVIEW,
}


def choose_prompts(names: Sequence[str]) -> dict[str, str]:
    """The prompts of these names, or all for none. Raises RequestError for a name that none has."""
    for name in names:
        if name not in PROMPTS:
            raise RequestError(f"no prompt is called {name!r}; there are {', '.join(PROMPTS)}")
    return {name: PROMPTS[name] for name in names or PROMPTS}
