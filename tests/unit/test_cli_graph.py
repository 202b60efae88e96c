"""`riverrun graph`: text, dot and HTML of a step's graph."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import riverrun
from cli import DEVICE, run_cli
from demo import demo
from paths import DEMO
from riverrun import _cpu
from riverrun.backends import open_backend
from riverrun.backends.native import FUSE
from riverrun.bench.profile import StepProfile, measure_step, step_graph
from riverrun.graph import Graph
from riverrun.graph.errors import RequestError
from riverrun.graph.text import parse, to_text
from riverrun.models import load_file
from riverrun.tools.graph_dot import dot, quote
from riverrun.tools.graph_notes import NotedGraph, figure, note_graph, noted_text, parse_noted
from riverrun.tools.graph_page import page

HOSTILE = [
    "<script>alert(1)</script>",
    'a"b\\',
    "]]>&amp;<!--",
    "'><img src=x onerror=alert(1)>",
    "two\nlines\t\x07",
    'say "hi"  # not a note',
    "x\\",
    "{a|b}->c;",
]


def noted(n_tokens: int = 1, n_seqs: int = 1, device: str = DEVICE) -> NotedGraph:
    """The demo's step."""
    return note_graph(step_graph(load_file(DEMO), open_backend(device, 1), n_tokens, n_seqs), "t")


def made(build: Callable[[Graph], None]) -> NotedGraph:
    """A graph that a function builds, as the CPU compiles it."""
    g = Graph("made")
    build(g)
    backend = open_backend("cpu", 1)
    return note_graph(StepProfile(backend.compile(g).graph, backend), "<title>")


def hostile(g: Graph) -> None:
    x = g.input("x", (4, 8))
    for name in HOSTILE:
        x = g.add(x, g.weight(f"w {name}", x.spec), name=name)
    g.output("<b>y</b>", x)


def long(g: Graph, n: int = 2000) -> None:
    """n nodes: 40 layers of weights and ops."""
    x = g.input("x", (1, 256))
    while len(g.nodes) < n - 1:
        layer = len(g.nodes) * 40 // n
        with g.scope(f"blk.{layer}"):
            x = g.add(
                x, g.weight(f"blk.{layer}.some_tensor_{len(g.nodes)}.weight", x.spec), name="add"
            )
    g.output("y", g.silu(x))


class Page(HTMLParser):
    """What a page is made of; unbalanced elements are an error."""

    VOID = {"meta", "input", "br", "!doctype"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: dict[str, str] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.row = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.row = dict(attrs).get("id") or ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif "tr" in self.open and self.row:
            self.rows[self.row] = self.rows.get(self.row, "") + data + " "


def spelled(name: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


@pytest.mark.parametrize("build", [hostile, long])
def test_text_parses_back_to_itself(build: Callable[[Graph], None]) -> None:
    graph = made(build)
    text = noted_text(graph)
    back = parse_noted(text)
    assert to_text(back) == to_text(graph.graph)
    assert to_text(parse_noted(to_text(back))) == to_text(back)


def test_text_of_a_model() -> None:
    graph = noted(3, 2)
    assert to_text(parse_noted(noted_text(graph))) == to_text(graph.graph)
    assert to_text(parse(to_text(graph.graph))) == to_text(graph.graph)
    lines = noted_text(graph).splitlines()
    assert len([line for line in lines if "  # " in line]) == len(graph.graph.nodes)


def test_notes_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FUSE, "0")
    graph = noted()
    by_name = {note.node.name: note for note in graph.notes}
    q = by_name["blk.11.attn_q"]
    assert q.group == "blk.11" and q.seconds is None
    assert q.where.startswith("cpu ") and q.cost is not None
    rows, columns = by_name["blk.11.attn_q.weight"].node.specs[0].shape
    assert q.cost.flops == 2 * rows * columns
    assert by_name["token_embd.weight"].group == by_name["embed"].group == "before layers"
    assert by_name["output_norm.weight"].group == by_name["output"].group == "after layers"
    assert by_name["ssm_state.2"].group == "blk.2" and by_name["ssm_state.2"].where == "state"
    assert by_name["tokens"].group == "inputs"
    assert list(graph.groups) == [
        "inputs",
        "before layers",
        *(f"blk.{i}" for i in range(12)),
        "after layers",
    ]
    views = [note for note in graph.notes if note.node.op.view]
    assert views and all((note.where, note.cost) == ("view", None) for note in views)
    assert graph.total.flops > 2 * 12 * q.cost.flops and not graph.measured


def test_a_fused_node_belongs_to_the_layer_where_it_begins() -> None:
    by_name = {note.node.name: note for note in noted().notes}
    down = by_name["blk.11.ffn_act+ffn_down"]
    assert down.group == "blk.11" and down.where.endswith(" packed") and down.cost is not None
    rows, columns = by_name["blk.11.ffn_down.weight"].node.specs[0].shape
    assert down.cost.flops == (2 * rows + 5) * columns
    assert by_name["blk.11.ffn_residual+output_norm+output"].group == "blk.11"


def test_kernels_are_those_that_run() -> None:
    """A node's level is one that has a kernel of its op, and packed weights are told."""
    known = {(k["op"], k["isa"]) for k in _cpu.kernels() if k["usable"]}
    for note in noted().notes:
        if note.cost is not None:
            device, level, *packed = note.where.split()
            assert device == "cpu" and (note.node.op.name, level) in known
            assert packed in ([], ["packed"])
            assert not packed or "mul_mat" in note.node.op.name or note.node.op.name == "get_rows"


def test_other_devices() -> None:
    wheres = {note.where for note in noted(device="reference").notes}
    assert wheres == {"input", "constant", "state", "view", "reference"}


def test_measured() -> None:
    graph = note_graph(measure_step(demo(threads=1), 5, 2, repetitions=3), "t")
    assert graph.graph.nodes[0].specs[0].shape == (6,)
    for note in graph.notes:
        assert (note.seconds is None) == (note.cost is None)
    assert graph.measured and 0 < graph.total.seconds < 10
    assert max(n.seconds or 0 for n in graph.notes) > 0
    text = noted_text(graph)
    assert text.count(" us\n") == graph.total.running
    assert to_text(parse_noted(text)) == to_text(graph.graph)
    assert "% of the time" in page(graph)


def test_measured_and_plain_steps_are_the_same_graph() -> None:
    plain = step_graph(load_file(DEMO), open_backend("cpu", 1), 5, 2)
    assert to_text(plain.graph) == to_text(measure_step(demo(threads=1), 5, 2, 1).graph)


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (1, 2), (513, 1)], ids=str)
def test_sizes_out_of_range(sizes: tuple[int, int]) -> None:
    with pytest.raises(RequestError, match="1 to 512 tokens"):
        step_graph(load_file(DEMO), open_backend("cpu", 1), *sizes)


STRING = r'"(?:[^"\\\n]|\\.)*"'


def check_dot(text: str, graph: NotedGraph) -> None:
    """Strings closed, brackets balanced, every statement one that DOT has, all nodes defined."""
    bare = re.sub(STRING, "S", text)
    assert '"' not in bare
    for opening, closing in ("{}", "[]"):
        assert bare.count(opening) == bare.count(closing) > 0
    statement = re.compile(
        r"digraph S \{|subgraph cluster_\d+ \{|label=S;|\}|(node|edge) \[[\w=, ]+\];|"
        r"(n|out)\d+ \[[\w=, ]+\];|n\d+ -> (n|out)\d+ \[label=S\];"
    )
    for line in bare.splitlines():
        assert statement.fullmatch(line.strip()), line
    assert len(re.findall(r"^ {4}n\d+ \[", text, re.M)) == len(graph.graph.nodes)
    edges = sum(v is not None for node in graph.graph.nodes for v in node.inputs)
    assert bare.count(" -> ") == edges + len(graph.graph.outputs)


@pytest.mark.parametrize("build", [hostile, long])
def test_dot(build: Callable[[Graph], None]) -> None:
    graph = made(build)
    check_dot(dot(graph), graph)


def test_dot_of_a_model() -> None:
    graph = noted(8, 2)
    text = dot(graph)
    check_dot(text, graph)
    assert text.count("subgraph") == len(graph.groups) == 15


def test_quote() -> None:
    assert quote('a"b', "c\\N") == '"a\\"b\\nc\\\\N"'
    assert quote("two\nlines\x00") == '"two?lines?"'


def test_html_holds_every_node() -> None:
    graph = noted()
    found = Page(page(graph))
    assert len(found.rows) == len(graph.graph.nodes)
    for note in graph.notes:
        row = found.rows[f"n{note.node.id}"]
        assert note.node.name in row and note.where in row
        assert all(str(spec) in row for spec in note.node.specs)
    links = {a["href"] for tag, a in found.tags if tag == "a"}
    assert links <= {f"#{key}" for key in found.rows}
    assert sum(tag == "svg" for tag, _ in found.tags) == len(graph.groups) - 1


def test_html_needs_nothing_from_outside() -> None:
    text = page(noted())
    found = Page(text)
    for tag, attributes in found.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes and not any(a.startswith("on") for a in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    assert "http:" not in text and "https:" not in text and "url(" not in text
    assert len(found.scripts) == 1


def test_html_escapes_hostile_names() -> None:
    graph = made(hostile)
    text = page(graph)
    found, plain = Page(text), Page(page(made(long)))
    assert found.scripts == plain.scripts
    assert {tag for tag, _ in found.tags} == {tag for tag, _ in plain.tags}
    shown = " ".join(found.rows.values())
    for name in HOSTILE:
        assert spelled(name) in shown
    assert "<b>y</b>" not in text and "&lt;b&gt;y&lt;/b&gt;" in text
    assert "<title>&lt;title&gt;</title>" in text
    assert unescape(text).count("<script>alert(1)</script>") >= 2


def test_html_of_many_nodes_is_small() -> None:
    graph = made(long)
    assert len(graph.graph.nodes) == 2000
    assert len(page(graph).encode()) < 3_000_000


@pytest.mark.parametrize(
    "number,text", [(0, "0 "), (999, "999 "), (1234, "1.23 k"), (5.6e6, "5.6 M"), (2e12, "2 T")]
)
def test_figure(number: float, text: str) -> None:
    assert figure(number) == text


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for kind, start in (
        ("text", 'graph "qwen35'),
        ("dot", "digraph "),
        ("html", "<!doctype html>"),
    ):
        options = ("--tokens", 4, "--seqs", 2, "--device", DEVICE, "--format", kind)
        outcome = run_cli(capsys, "graph", DEMO, *options)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.startswith(start)
        target = tmp_path / kind
        again = run_cli(capsys, "graph", DEMO, *options, "-o", target)
        assert (again.code, again.out, again.err) == (0, "", "")
        assert target.read_text(encoding="utf-8") == outcome.out


def test_command_measures(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, "graph", DEMO, "--measure", "--device", DEVICE, "-t", 1)
    assert outcome.code == 0 and outcome.err == ""
    assert re.search(r"mul_mat\(.* us$", outcome.out, re.M)
    assert len(parse_noted(outcome.out).outputs) == 1


def test_weights_are_read_only_to_measure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(riverrun, "load", refuse)
    assert run_cli(capsys, "graph", DEMO, "--device", DEVICE).code == 0
    assert run_cli(capsys, "graph", DEMO, "--device", DEVICE, "--measure").code == 1


@pytest.mark.parametrize(
    "options",
    [("--format", "png"), ("--tokens", "0"), ("--tokens", "2", "--seqs", "3"), ("--tokens", "513")],
    ids=" ".join,
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    assert run_cli(capsys, "graph", "no-such-model.gguf", *options).is_short_error(2)


def test_files_that_are_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_cli(capsys, "graph", tmp_path / "no.gguf").is_short_error(1)
    missing = tmp_path / "no" / "file"
    assert run_cli(capsys, "graph", DEMO, "--device", DEVICE, "-o", missing).is_short_error(1)
