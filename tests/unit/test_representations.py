"""What objects show of themselves, in a console and in a notebook."""

from __future__ import annotations

import re
from typing import Any

import pytest
import riverrun as rr
from demo import demo
from riverrun.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """One object of each class that a user gets."""
    model = demo()
    engine = rr.Engine(model, n_ctx=64)
    graph = rr.Graph("<small> & more")
    y = graph.relu(graph.input("x<y", (2, 3)))
    generation = model.generate("x", 1, temperature=0, n_ctx=64)
    found = [model, model.session(64), generation, generation.result, engine, graph]
    found += [engine.submit("x", 1), rr.inspect(rr.DEMO_MODEL), rr.devices()[0]]
    found += [rr.compile(graph, y, device="cpu"), rr.SamplerParams(), rr.Speculation(("mtp",))]
    return {type(each).__name__: each for each in found} | {"Tokenizer": model.tokenizer}


def test_no_object_shows_its_address(shown: dict[str, Any]) -> None:
    public = {name for name in rr.__all__ if isinstance(getattr(rr, name), type)}
    assert public <= set(shown)
    for name, each in shown.items():
        text = repr(each)
        assert text and "\n" not in text and not re.search(r" at 0x[0-9a-f]+>|object at", text), (
            name
        )
    assert isinstance(shown["Tokenizer"], Tokenizer)
    assert re.match(r"<BpeTokenizer of .*\.gguf, 6144 tokens>$", repr(shown["Tokenizer"]))


def test_a_graph_in_a_notebook(shown: dict[str, Any]) -> None:
    html = shown["Graph"]._repr_html_()
    assert html.startswith("<pre") and html.endswith("</pre>")
    assert "&lt;small&gt; &amp; more" in html and "x&lt;y" in html and "relu" in html
    assert "<small>" not in html
