"""GBNF: what a grammar accepts, and errors that point into the grammar as the user wrote it."""

from __future__ import annotations

import functools
import itertools
import random
import re

import pytest
from constrained import tokenizer_of
from riverrun.engine.constraints import Constraint, compile_constraint, gbnf_tokens
from riverrun.engine.constraints.gbnf_rules import Choice, Part, Repeat, Rules, parse_rules
from riverrun.engine.constraints.gbnf_terminals import regular_rules, safe_terminals
from riverrun.graph.errors import RequestError

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
CHESS = r"""
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"""
LIST = 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"'
JAPANESE = """
root     ::= jp-char+ ([ \\t\\n] jp-char+)*
jp-char  ::= hiragana | katakana | punctuation | cjk
hiragana ::= [ぁ-ゟ]
katakana ::= [ァ-ヿ]
punctuation ::= [、-〾]
cjk ::= [一-鿿]
"""
DOUBLING = 'root ::= a "."\n' + "\n".join(
    [f"{one} ::= {two} {two}" for one, two in itertools.pairwise("abcdefghijklm")] + ["m ::= [xy]"]
)
# Grammar, texts that fit, texts that do not.
SAMPLES: dict[str, tuple[str, list[str], list[str]]] = {
    "json": (
        JSON,
        ["{}", '{"a":1}', '{"a": [1, -2.5e+11, "x\\n\\u00e9", null], "b":{}}', '{ "é":true}'],
        ["[]", "{a:1}", '{"a":01}', '{"a":1,}', '{"a":"\n"}', '{"a":\ttrue}'],
    ),
    "arithmetic": (
        ARITHMETIC,
        ["1=2\n", "x1+(2*y)/3 = z\n", "a-b=1\nc=d\n"],
        ["1=2", "1+=2\n", "(1=2\n", "=1\n", "A=1\n"],
    ),
    "chess": (
        CHESS,
        ["1. e4 e5\n2. Nf3 Nc6\n", "1. d4 exd5+\n2. O-O-O a8=Q#\n10. O-O Rxa1\n"],
        ["1. e4 e5\n", "2. e4 e5\n3. e4 e5\n", "1. e9 e5\n2. e4 e5\n", "1. e4 e5\n0. e4 e5\n"],
    ),
    "list": (LIST, ["- a\n", "- a b\n- é\n"], ["a\n", "- \n", "- a", "- a\u2028\n"]),
    "japanese": (JAPANESE, ["こんにちは", "カタカナ 漢字", "、。"], ["", "a", "こ a", " こ"]),
    "nested repetition": ('root ::= ("a"+)*', ["", "a", "aaaa"], ["b", "ab"]),
    "nested counts": (
        'root ::= ("ab"{2,3}){2} "."',
        ["abababab.", "ababababab."],
        ["ab.", "ababab."],
    ),
    "signs in a row": ('root ::= ("a"?)+* "b"{1,2}?', ["", "a", "aabb", "bb"], ["bbb", "ba"]),
    "zero times": ('root ::= x{0} "b" "c"{0,0}\nx ::= "a"', ["b"], ["ab", "bc", ""]),
    "open counts": ('root ::= "a"{2,} "b"{ 0 , 2 }', ["aa", "aaaabb"], ["a", "aabbb"]),
    "literal prefixes": ('root ::= "a" "bc" | "ab" "d"', ["abc", "abd"], ["ab", "abcd"]),
    "a word that a literal begins": (
        'root ::= "if" " " w | w\nw ::= [a-z]+',
        ["iffy", "if x", "if"],
        ["if "],
    ),
    "escaped dash": (r'root ::= [a\-z]+ "\-" [+\-*]', ["a--", "z-+"], ["b-+", "a-b"]),
    "signs in a class": (
        r"root ::= [\]\\[/^-]+ [^^\n-]",
        ["]\\[/^-a", "//"],
        ["a", "/^", "/-", "/\n"],
    ),
    "any character": ('root ::= . "/./"', ["a/./", "\n/./", "😀/./"], ["/./", "a/b/"]),
    "code points": (
        r'root ::= "\x41\u00e9\U0001F600\t" [\u4e00-\u4e2d]',
        ["Aé😀\t中"],
        ["Aé😀\t文", "Ae"],
    ),
    "a quote in a literal": (r'root ::= "\"\\//i" "i"', ['"\\//ii'], ['"\\//i', '\\"\\//ii']),
    "a line end in a literal": ('root ::= "a\nb"', ["a\nb"], ["ab"]),
    "empty alternatives": ('root ::= ( | "a" | ) ("b" | ())', ["", "a", "ab", "b"], ["aa", "bb"]),
    "an empty rule": ('ws ::=\nroot ::= ws "a" ws | "(" root ")"', ["a", "((a))"], ["", "(a"]),
    "lines": ('root ::=\n\n  "a" |\r\n  # one\n "b" # two\r\rx ::= "c"', ["a", "b"], ["c", "ab"]),
    "left recursion": (
        'root ::= root "," item | item\nitem ::= [0-9]+',
        ["1", "1,22,3"],
        ["", ",1", "1,"],
    ),
    "mutual recursion": ('root ::= "a" b?\nb ::= "b" root?', ["a", "ab", "aba"], ["b", "abb"]),
    "itself in parentheses": ('root ::= ("(" root ")")*', ["", "()(())"], ["(", "())"]),
    "names": (
        'root ::= a-b A-B a_b\na-b ::= "1"\nA-B ::= "2"\na_b ::= "3"',
        ["123"],
        ["12", "321"],
    ),
    "names that Lark would take for others": (
        'root ::= start T0 r0\nstart ::= "s"\nT0 ::= "t"\nr0 ::= "r" r0?',
        ["str", "strr"],
        ["st"],
    ),
    "rules that double": (
        DOUBLING,
        ["x" * 4096 + ".", "xy" * 2048 + "."],
        ["x.", "x" * 4097 + "."],
    ),
    "many parentheses": (
        "root ::= " + "(" * 300 + '"a" | "b" root' + ")?" * 300,
        ["", "a", "bba"],
        ["ab", "aa"],
    ),
    "many repeated parentheses": (
        "root ::= " + "(" * 60 + '"a" | "(" root ")"' + ")+?*" * 60,
        ["", "aa", "(a)a(())"],
        ["(", "a)"],
    ),
    "characters that share their first byte": (
        'root ::= w "è" | "(" root ")"\nw ::= "é"*',
        ["è", "ééè", "(éè)"],
        ["é", "(èé)"],
    ),
    "literals and words in recursion": (
        'root ::= "if " root | w | "(" root ")"\nw ::= [a-z]+ "1"',
        ["ifx1", "(if if1)"],
        ["if ", "(if1"],
    ),
    "a rule that eats what follows": (
        'root ::= w "b" | "(" root ")"\nw ::= [ab]*',
        ["ab", "(bb)", "b"],
        ["a", "(ba)"],
    ),
}


def accepts(source: str, text: str) -> bool:
    """Whether a text, written byte by byte, fits a grammar from start to end."""
    return fits(compile_constraint(tokenizer_of("bpe"), "grammar", source), text)


def fits(constraint: Constraint, text: str) -> bool:
    """The same for a constraint at its start."""
    # Token ids are byte values here.
    tokens = [*text.encode(), min(tokenizer_of("bpe").eog_ids)]
    return constraint.validate(tokens) == len(tokens)


@pytest.mark.parametrize("name", SAMPLES)
def test_texts_that_fit_and_texts_that_do_not(name: str) -> None:
    source, good, bad = SAMPLES[name]
    assert [text for text in good if not accepts(source, text)] == []
    assert [text for text in bad if accepts(source, text)] == []


# Rules that a lexer could take for terminals, safely or not, in a grammar that needs a parser.
WORDS = ('"a"', "[ab]+", '"b" [bc]*', "[ab]? [c]", '"ab" | "a"', "c w0?", '"c"*', "[abc]{2}")
TREES = (
    'w0 w1 | "(" root ")"',
    '"a" root "b" | w0 | w1 "c"',
    "root w0 | w1",
    '("(" root ")" | w0)* w1?',
    'w1 (w0 root)? "a"',
)


def language(rules: Rules, longest: int) -> set[str]:
    """All texts of the rule root that are not longer, found from the rules themselves."""
    known: dict[str, set[str]] = {name: set() for name in rules}

    def joined(one: set[str], two: set[str]) -> set[str]:
        return {a + b for a in one for b in two if len(a + b) <= longest}

    def texts(part: Part) -> set[str]:
        if isinstance(part, Repeat):
            once, found = texts(part.part), {""}
            for _ in range(part.least):
                found = joined(found, once)
            for _ in range(longest if part.most is None else part.most - part.least):
                found = found | joined(found, once)
            return found
        if isinstance(part, Choice):
            return set().union(*(sequence(s) for s in part.alternatives))
        if part.kind == "name":
            return known[part.value]
        if part.kind == "text":
            return {part.value}
        return {c for c in "abc()" if any(lo <= ord(c) <= hi for lo, hi in part.ranges)}

    def sequence(parts: list[Part]) -> set[str]:
        return functools.reduce(joined, map(texts, parts), {""})

    while True:
        found = {name: texts(rule) for name, rule in rules.items()}
        if found == known:
            return found["root"]
        known = found


@pytest.mark.parametrize("tree", TREES)
def test_grammars_that_need_a_parser_lose_no_text_to_the_lexer(tree: str) -> None:
    kept = set()
    for one, two in itertools.product(WORDS, WORDS):
        source = f"root ::= {tree}\nw0 ::= {one.replace('w0', 'w1')}\nw1 ::= {two}\nc ::= [c]"
        source = source.replace("w1 ::= c w0?", 'w1 ::= c "a"?')
        rules = parse_rules(gbnf_tokens.tokens_of(source))
        kept.add(frozenset(safe_terminals(rules, regular_rules(rules)) - {"c"}))
        want = language(rules, 4)
        constraint = compile_constraint(tokenizer_of("bpe"), "grammar", source)
        assert [text for text in want if not fits(constraint, text)] == [], source
        for length in range(4):
            for letters in itertools.product("abc()", repeat=length):
                text = "".join(letters)
                assert text in want or not fits(constraint, text), (source, text)
    # Some of the words were terminals, others could not be.
    assert len(kept) >= 2


PARTS = ('"a"', '"ab"', "[bc]", "[^a]", "x", '("a" | "bc")', '( "c"* | )')
SIGNS = ("", "*", "+", "?", "{2}", "{0,1}", "{1,}")
RULE_X = 'x ::= "b" | "ca"'
AS_REGEX = {
    '"a"': "a",
    '"ab"': "(?:ab)",
    "[bc]": "[bc]",
    "[^a]": "[^a]",
    "x": "(?:b|ca)",
    '("a" | "bc")': "(?:a|bc)",
    '( "c"* | )': "(?:c*|)",
}


@pytest.mark.parametrize("seed", range(12))
def test_regular_grammars_are_what_their_regular_expressions_are(seed: int) -> None:
    rng = random.Random(seed)
    rule, regex = "", ""
    for _ in range(4):
        part, sign, outer = rng.choice(PARTS), rng.choice(SIGNS), rng.choice(SIGNS)
        rule += f"({part}{sign}){outer} "
        regex += f"(?:{AS_REGEX[part]}{sign}){outer}"
    split = rng.choice(("", " | "))
    source = f'root ::= {rule}{split}"c"\n{RULE_X}'
    pattern = re.compile(f"(?:{regex}){split.strip()}c")
    for length in range(5):
        for letters in itertools.product("abc", repeat=length):
            text = "".join(letters)
            assert accepts(source, text) == (pattern.fullmatch(text) is not None), (source, text)


# Grammar, line and column of the fault, the message, and what the mark stands below.
FAULTS: list[tuple[str, int, int, str, str]] = [
    ("root ::= other", 1, 10, "there is no rule other", "other"),
    ('root ::= "a"\n# two\nx ::= ("b" | y)* "c"', 3, 14, "there is no rule y", "y)"),
    ('x ::= "a"\nroot ::= x x\nx ::= "b"', 3, 1, "the rule x is defined twice", "x ::="),
    ('root ::= "a', 1, 10, 'this " is never closed', '"a'),
    ("root ::= x\r\nx ::= [a-z", 2, 7, "this \\[ is never closed", "[a-z"),
    ('root ::= ("a" ("b" | "c")', 1, 10, r"this \( is never closed", '("a"'),
    ('root ::= ("a"\nx ::= "b"', 1, 10, r"this \( is never closed", '("a"'),
    ('root ::= "a")', 1, 13, r"this \) closes nothing", ")"),
    ('root ::= "a"{5,0}', 1, 13, r"the repetition \{5,0\} ends below its start", "{5,0}"),
    ('root ::= "a"{,5}', 1, 13, "expected a repetition", "{,5}"),
    ('root ::= "a"{2', 1, 13, "expected a repetition", "{2"),
    ('root ::= "a"{1000000}', 1, 13, "more than 100000 is not supported", "{1000000}"),
    ('root ::= "a"{' + "9" * 5000 + "}", 1, 13, "more than 100000 is not supported", "{99"),
    ('root ::= * "a"', 1, 10, r"nothing stands before \* to repeat", "*"),
    ('root ::= "a"*+?+', 1, 16, "more than 3 repetitions of the same part", "+"),
    ('root ::= "a" | {2}', 1, 16, r"nothing stands before \{2\} to repeat", "{2}"),
    (r'root ::= "a\qb"', 1, 12, r"\\q is no escape", "\\q"),
    (r'root ::= "\ud800"', 1, 11, r"\\ud800 is no Unicode character", "\\ud800"),
    (r'root ::= "\U00110000"', 1, 11, r"\\U00110000 is no Unicode character", "\\U0"),
    (r'root ::= "\x4g"', 1, 11, "expected 2 hexadecimal digits", "\\x4g"),
    ("root ::= [z-a]", 1, 11, "the range z-a ends before its start", "z-a"),
    ("root ::= []", 1, 10, "the class has no characters", "[]"),
    ('root ::= "a" ; "b"', 1, 14, "';' has no meaning here", ";"),
    ("root ::= <think>", 1, 10, "angle brackets are not supported in GBNF", "<think>"),
    ('root ::= "a" b ::= "c"', 1, 16, "::= is not allowed within a rule", "::="),
    ('root ::= "a"\n"b"', 2, 1, 'expected a rule, name ::= ..., got "b"', '"b"'),
    ('root ::= "a"\nb "c"', 2, 1, "expected ::= after b", "b "),
    ('root ::= "' + "x" * 300 + '" y', 1, 313, "there is no rule y", "y"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[repr(fault[0][:40]) for fault in FAULTS])
def test_faults_are_shown_where_they_are_in_the_users_text(
    fault: tuple[str, int, int, str, str],
) -> None:
    source, line, column, message, marked = fault
    with pytest.raises(RequestError, match=message) as caught:
        compile_constraint(tokenizer_of("bpe"), "grammar", source)
    first, excerpt, mark = str(caught.value).split("\n")
    assert first.startswith(f"grammar: GBNF, line {line}, column {column}: ")
    assert excerpt[mark.index("^") :].startswith(marked[:60])
    assert len(str(caught.value)) < 600


def test_a_grammar_without_a_root_is_refused() -> None:
    with pytest.raises(RequestError, match="grammar: GBNF: there is no rule root"):
        compile_constraint(tokenizer_of("bpe"), "grammar", 'x ::= "a"')


def test_faults_that_the_library_finds_name_no_place_in_generated_text() -> None:
    with pytest.raises(RequestError) as caught:
        compile_constraint(tokenizer_of("bpe"), "grammar", 'root ::= x\nx ::= x "a"')
    assert not re.search(r"\d\(\d+\)", str(caught.value))
