"""The page's scripts that need no browser, run by node: streams, markdown, programs, drafts,
figures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

FOLDER = ROOT / "server" / "page"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a module beside the page's, whose `give` prints what it was given; `given` is what the
    test gave."""
    folder = tmp_path_factory.mktemp("page")
    for path in FOLDER.glob("*.js"):
        shutil.copy(path, folder)
    (folder / "package.json").write_text('{"type": "module"}')

    def run_script(text: str, given: object = None) -> Any:
        head = f"const given = {json.dumps(given)};\nconst give = (x) => console.log("
        head += "JSON.stringify(x === undefined ? null : x));\n"
        (folder / "check.js").write_text(head + text, encoding="utf-8")
        done = subprocess.run(
            [str(NODE), "check.js"], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run_script


STREAMS = {
    "lines": ("data: a\n\ndata: b\n\n", ["a", "b"]),
    "returns": ("data: a\r\rdata: b\r\r", ["a", "b"]),
    "both": ("data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
    "several": ("data: a\ndata:b\n: c\nevent: x\n\ndata\n\n", ["a\nb", ""]),
    "characters": ('data: {"é": "漢\U0001f642"}\n\n', ['{"é": "漢\U0001f642"}']),
    "unended": ("data: a\n\ndata: b\n", ["a"]),
}
CUT = """
import { EventStream } from "./sse.js";
const found = [];
for (const [text, wanted] of Object.values(given)) {
  const bytes = new TextEncoder().encode(text);
  const read = (pieces) => {
    const stream = new EventStream();
    return pieces.flatMap((piece) => stream.feed(piece));
  };
  let count = 0;
  for (let at = 0; at <= bytes.length; at += 1) {
    const got = read([bytes.slice(0, at), bytes.slice(at)]);
    if (JSON.stringify(got) === JSON.stringify(wanted)) count += 1;
  }
  for (let size = 1; size <= bytes.length; size += 1) {
    const pieces = [];
    for (let at = 0; at < bytes.length; at += size) pieces.push(bytes.slice(at, at + size));
    if (JSON.stringify(read(pieces)) === JSON.stringify(wanted)) count += 1;
  }
  found.push(count - 2 * bytes.length - 1);
}
give(found);
"""


def test_streams_cut_everywhere(run: Run) -> None:
    assert run(CUT, STREAMS) == [0] * len(STREAMS)


TREES: dict[str, tuple[str, list[Any]]] = {
    "headings": (
        "# A *b* ##\n###### C#\n#no",
        [["h3", "A ", ["em", "b"]], ["h6", "C#"], ["p", "#no"]],
    ),
    "emphasis": (
        "**a *b* c** ***d*** __e__ _f_ ~~g~~",
        [
            ["p", ["strong", "a ", ["em", "b"], " c"], " ", ["strong", ["em", "d"]], " "]
            + [["strong", "e"], " ", ["em", "f"], " ", ["del", "g"]]
        ],
    ),
    "no emphasis": (
        "a_b_c 2 * 3 * 4 **open \\*x\\* snake_case_ a**",
        [["p", "a_b_c 2 * 3 * 4 ", ["strong", "open *x* snake_case_ a"]]],
    ),
    "code in a line": (
        "`a` ``b`c`` ` d ` `open",
        [["p", ["code", "a"], " ", ["code", "b`c"], " ", ["code", "d"], " `open"]],
    ),
    "code hides marks": ("*a `*` b*", [["p", ["em", "a ", ["code", "*"], " b"]]]),
    "fences": (
        "```Py title\nx = 1\n\n**y**\n```\nb\n~~~~\n```\n~~~~",
        [["pre:py", "x = 1\n\n**y**"], ["p", "b"], ["pre:", "```"]],
    ),
    "an open fence": ("a\n```js\nlet x", [["p", "a"], ["pre:js", "let x"]]),
    "a fence in an item": (
        "- a\n  ```\n  x\n    y\n  ```",
        [["ul", ["li", "a", ["pre:", "x\n  y"]]]],
    ),
    "lists": (
        "- a\n- b\n  - c\n    d\n+ e\n\n2. f\n3. g",
        [
            ["ul", ["li", "a"], ["li", "b", ["ul", ["li", "c\nd"]]]],
            ["ul", ["li", "e"]],
            ["ol", ["li", "f"], ["li", "g"]],
        ],
    ),
    "loose lists": (
        "1. a\n\n2. b\n\nc",
        [["ol", ["li", ["p", "a"]], ["li", ["p", "b"]]], ["p", "c"]],
    ),
    "lists behind a line": ("a:\n- b\n- c", [["p", "a:"], ["ul", ["li", "b"], ["li", "c"]]]),
    "a number is no list": ("born in\n1984. A year", [["p", "born in\n1984. A year"]]),
    "quotes": (
        "> a\n> > b\n\nc",
        [["blockquote", ["p", "a"], ["blockquote", ["p", "b"]]], ["p", "c"]],
    ),
    "rules": ("a\n\n---\n* * *\nb", [["p", "a"], ["hr"], ["hr"], ["p", "b"]]),
    "tables": (
        "| a | *b* |\n|:--|--:|\n| 1 | `2` |\n| 3 \\| 4 |\n\nc",
        [
            ["table", ["thead", ["tr", ["th", "a"], ["th", ["em", "b"]]]]]
            + [
                [
                    "tbody",
                    ["tr", ["td", "1"], ["td", ["code", "2"]]],
                    ["tr", ["td", "3 | 4"], ["td"]],
                ]
            ],
            ["p", "c"],
        ],
    ),
    "no table": ("a | b\nc | d", [["p", "a | b\nc | d"]]),
    "html is text": (
        "<b>x</b> <img src=x onerror=alert(1)>\n\n<script>1</script>",
        [["p", "<b>x</b> <img src=x onerror=alert(1)>"], ["p", "<script>1</script>"]],
    ),
    "nothing": ("\n \n", []),
}
SHOW = """
import { markdown } from "./markdown.js";
const show = (t) => t.tag
  ? [t.tag + ("language" in t.attrs ? `:${t.attrs.language}` : ""), ...t.children.map(show)]
  : t.text;
give(Object.fromEntries(Object.entries(given).map(([k, text]) => [k, markdown(text).map(show)])));
"""


def test_markdown(run: Run) -> None:
    found = run(SHOW, {name: text for name, (text, _) in TREES.items()})
    for name, (_, wanted) in TREES.items():
        assert found[name] == wanted, name


LINKS = """
import { markdown } from "./markdown.js";
const links = (t) => !t.tag ? [] : t.tag === "a"
  ? [[t.attrs.href, t.attrs.rel]] : t.children.flatMap(links);
give(given.map((text) => markdown(text).flatMap(links)));
"""


def test_links_lead_only_where_they_may(run: Run) -> None:
    good = {
        "[a](https://x.y/z)": "https://x.y/z",
        '[a](http://x.y/(z) "title")': "http://x.y/(z)",
        "![a](https://x.y/z.png)": "https://x.y/z.png",
        "<mailto:a@b.c>": "mailto:a@b.c",
        "see https://x.y/z.": "https://x.y/z",
        "(https://x.y/z)": "https://x.y/z",
        "[*a*](HTTPS://x.y)": "HTTPS://x.y",
    }
    found = run(LINKS, list(good))
    assert found == [[[url, "noopener noreferrer"]] for url in good.values()]
    bad = [
        "[a](javascript:alert(1))",
        "[a](data:text/html,x)",
        "[a](/x)",
        "[a](//x.y)",
        "<vbscript:x>",
    ]
    bad += [
        "[a]( javascript:alert(1))",
        "[a](java\tscript:x)",
        "[a]()",
        "[a]",
        "xhttp://",
        "[a](file:///x)",
    ]
    assert run(LINKS, bad) == [[] for _ in bad]


PLACES = """
import { markdown } from "./markdown.js";
const leaves = (t) => t.tag ? t.children.flatMap(leaves) : [t];
give(given.map((text) => markdown(text).flatMap(leaves).every((leaf) =>
  leaf.text.length === leaf.at.length
  && [...leaf.text].join("").split("").every((c, i) => text[leaf.at[i]] === c))));
"""


def test_every_character_knows_its_place(run: Run) -> None:
    texts = [text for text, _ in TREES.values()] + ["- a \U0001f642 *b*\n\n  > c\n  > `d`"]
    assert run(PLACES, texts) == [True] * len(texts)


GROWING = """
import { markdown } from "./markdown.js";
const strip = ({ at, text, start, ...rest }) => rest.tag
  ? [rest.tag, rest.attrs, rest.children.map(strip)] : [text, at];
give(given.every((text) => {
  let before = [];
  for (let end = 0; end <= text.length; end += 1) {
    const part = text.slice(0, end);
    const whole = markdown(part);
    const open = before.slice(-2);
    const grown = [...before.slice(0, -2), ...markdown(part, open[0]?.start ?? 0)];
    if (JSON.stringify(grown.map(strip)) !== JSON.stringify(whole.map(strip))) return false;
    before = whole;
  }
  return true;
}));
"""


def test_a_text_that_grows_changes_its_last_two_blocks_alone(run: Run) -> None:
    texts = [text for text, _ in TREES.values()]
    assert run(GROWING, [*texts, "\n\n".join(texts), "\n".join(texts)])


LONG = """
import { markdown } from "./markdown.js";
import { coloured } from "./code.js";
for (const [piece, count] of given) {
  const text = piece.repeat(count);
  markdown(text);
  for (const language of ["py", "js", "sql"]) coloured(text, language);
}
give(true);
"""


def test_odd_texts_take_no_time_of_their_own(run: Run) -> None:
    """Texts on which parsers that search again and again would not end before the limit."""
    pieces = [
        "*a ",
        "**",
        "[",
        "`a ",
        "_a*b~~",
        "> ",
        "- ",
        "[a](",
        "<",
        "|",
        "a|\n-|\n",
        "\\",
        "  ",
    ]
    pieces += ["h", "http://", "~~~\n", "/*", '"""', "'", "#", "0x", "1. ", "![", "(`", "* a *b "]
    assert run(LONG, [[piece, 4000] for piece in pieces])


def test_programs_are_coloured(run: Run) -> None:
    script = """
    import { coloured } from "./code.js";
    give(given.map(([text, language]) =>
      [coloured(text, language).filter(([name]) => name)
         .map(([name, a, b]) => [name.slice(5), text.slice(a, b)]),
       coloured(text, language).map(([, a, b]) => text.slice(a, b)).join("") === text]));
    """
    programs = [
        ["def f(x):  # no\n    return 'a\\'b' + 0x1F", "python"],
        ["/* a\n b */ let x = `y ${z}`; // c", "js"],
        ["SELECT 1.5 -- c", "sql"],
        ['s = """a\n# b""" # c', "py"],
        ["def x # 'y'", "text"],
        ["x = 'open\ny = None", "py"],
    ]
    found = run(script, programs)
    assert [parts for parts, _ in found] == [
        [["keyword", "def"], ["comment", "# no"], ["keyword", "return"], ["string", "'a\\'b'"]]
        + [["number", "0x1F"]],
        [
            ["comment", "/* a\n b */"],
            ["keyword", "let"],
            ["string", "`y ${z}`"],
            ["comment", "// c"],
        ],
        [["keyword", "SELECT"], ["number", "1.5"], ["comment", "-- c"]],
        [["string", '"""a\n# b"""'], ["comment", "# c"]],
        [],
        [["string", "'open"], ["keyword", "None"]],
    ]
    assert all(whole for _, whole in found)


def test_drafts_are_laid_over_the_text(run: Run) -> None:
    script = """
    import { Owners, runs, shares, colourOf } from "./drafts.js";
    const owners = new Owners();
    owners.name([["<think>", null], ["hm", "mtp"], ["</thi", null]]);
    const thought = owners.give("hm");
    owners.name([["nk>", null], ["ab", "ngram-mod"], ["cd", null], ["ef", "mtp"]]);
    const text = [...owners.give("abc"), ...owners.give("d"), ...owners.give("ef")];
    owners.name(undefined);
    give([thought, text, owners.give("zz"), runs([0, 1, 2, 5], text), shares(text),
          [colourOf("mtp"), colourOf("ngram-mod"), colourOf("another")]]);
    """
    thought, text, unknown, cuts, shares, colours = run(script)
    assert thought == ["mtp", "mtp"]
    assert text == ["ngram-mod", "ngram-mod", None, None, "mtp", "mtp"]
    assert unknown == [None, None]
    assert cuts == [["ngram-mod", 0, 2], [None, 2, 3], ["mtp", 3, 4]]
    assert shares == [["mtp", 2], ["ngram-mod", 2]] and len(set(colours)) == 3


def test_figures_of_an_answer(run: Run) -> None:
    script = """
    import { Rate } from "./rate.js";
    const rate = new Rate(100);
    const owners = ["mtp", null, null, null];
    const found = [rate.summary([])];
    const choice = (delta, tokens) => ({ choices: [{ delta, tokens }] });
    rate.take(choice({ role: "assistant", content: "" }), 120);
    rate.take(choice({ content: "a" }, [1]), 200);
    rate.take(choice({ content: "bcd" }, [2, 3, 4]), 300);
    found.push(rate.summary(owners));
    rate.take({ choices: [], usage: { completion_tokens: 5, prompt_tokens: 9,
      prompt_tokens_details: { cached_tokens: 7 } } }, 400);
    rate.take({ choices: [], timings: { predicted_per_second: 12.34, draft_n: 8,
      draft_n_accepted: 6 } }, 410);
    found.push(rate.summary(owners));
    give(found);
    """
    assert run(script) == [
        "0 tokens",
        "4 tokens · 40.0 t/s · first after 100 ms · 25 % from drafts",
        "5 tokens · 12.3 t/s · first after 100 ms · 6 of 8 drafts kept (75 %) · "
        "7 of 9 prompt tokens cached",
    ]


def test_counters_of_the_server(run: Run) -> None:
    text = "\n".join(
        [
            "# HELP riverrun_x y",
            'riverrun_requests_running{model="a} b"} 2.0',
            'riverrun_requests_running{model="c"} 1.0',
            "riverrun_predicted_tokens_total 50.0",
            "riverrun_predicted_seconds_total 4.0",
            "riverrun_prompt_tokens_total 75.0",
            "riverrun_cached_tokens_total 25.0",
            "riverrun_draft_tokens_total 1.0e+01",
            "riverrun_draft_accepted_tokens_total 9.0",
        ]
    )
    script = """
    import { readMetrics, figures } from "./watch.js";
    give([Object.fromEntries(figures(readMetrics(given))), Object.fromEntries(figures({}))]);
    """
    found, empty = run(script, text)
    assert (found["running"], found["waiting"], found["t/s of a request"]) == ("3", "0", "12.5")
    assert (found["prompt from caches"], found["drafts kept"]) == ("25 %", "90 %")
    assert empty["drafts kept"] == "none" and empty["t/s of a request"] == "none"


def test_the_server_has_the_counters_that_are_shown() -> None:
    pytest.importorskip("prometheus_client", reason="the server needs prometheus_client")
    from riverrun.server.metrics import Metrics

    metrics = Metrics()
    metrics.running.labels("m").set(1)
    metrics.waiting.labels("m").set(1)
    names = set(re.findall(r"^riverrun_(\w+)", metrics.text().decode(), re.M))
    script = Path(FOLDER / "watch.js").read_text(encoding="utf-8")
    asked = set(re.findall(r'get\("(\w+)"\)', script))
    assert len(asked) > 6 and asked <= names, asked - names
