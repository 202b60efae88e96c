"""Texts of every class of characters, for tokenizers."""

from __future__ import annotations

import random

# One character class a line; a text is a run of one, and a mixture of several.
CLASSES = {
    "lower": "abcxyz",
    "upper": "ABCXYZ",
    "title": "ǅǈǋᾈ",
    "latin": "éßñøœ",
    "greek": "αβγΩΣς",
    "cyrillic": "бвгдЖЩ",
    "armenian": "աբգԱԲ",
    "hebrew": "אבגד",
    "arabic": "ابتثلا",
    "devanagari": "कखगघािी्",
    "thai": "กขคงำิ่้",
    "khmer": "កខគឃាិ្",
    "burmese": "ကခဂဃာိ",
    "lao": "ກຂຄງາິ",
    "han": "中文测试漢字",
    "han_rare": "㐀𠀀豈龥",
    "kana": "ひらがなカタカナ",
    "halfwidth": "ｱｲｳﾊﾞ",
    "hangul": "한국어테스트",
    "jamo": "ㄱㅏㆍ각",
    "bopomofo": "ㄅㄆㄇㄈ",
    "marks": "\u0301\u0308\u0327\u20dd",
    "spacing_marks": "\u0903\u093e\u0bbe",
    "digits": "0123456789",
    "arabic_digits": "٠١٢٣٤٥٦",
    "fullwidth_digits": "０１２３４５",
    "number_letters": "ⅠⅡⅢⅳ",
    "other_numbers": "½²①⑩㊀",
    "punctuation": ".,;:!?-_()[]{}'\"",
    "cjk_punctuation": "、。！？「」…—“”‘’，：；",
    "symbols": "$+<=>^`|~€£©®™",
    "arrows": "→⇒∑∫√≤",
    "emoji": "🚀🦙😀✅",
    "zwj": "👨\u200d👩\u200d👧\u200d👦",
    "skin": "👍🏽👋🏿",
    "flags": "🇩🇪🇯🇵",
    "spaces": " ",
    "tabs": "\t",
    "newlines": "\n",
    "crlf": "\r\n",
    "other_blanks": "\u00a0\u2003\u3000\u2028\u0085\x0b\x0c",
    "zero_width": "\u200b\u200c\u200d\ufeff\u2060",
    "controls": "\x01\x02\x1b\x7f\x80\x9f",
    "nul": "\x00",
    "private": "\ue000\uf8ff\U000f0000",
    "unassigned": "\u0378\U000e0fff",
    "replacement": "\ufffd",
    "underscore": "▁",
}

SENTENCES = {
    "english": "I've been 'told he's there, 'RE you sure? 'M not sure I'LL make it. WE'VE won't",
    "endings": "it's it'S IT'S it'ſ 'sS 'd'D'll'Ll a'lL we'vex 'tis rock'n'roll O'Reilly's",
    "cases": "camelCase PascalCase HTTPServer iPhone McDonald ALLCAPS aB AbC ΑβΓ ÀéÎ ǅabc Straße",
    "numbers": "3 33 333 3333 33333 333333 3333333 3.14 1,000,000 1234567abc 12ab 0x1F3 1e-10 ½3",
    "numbers_bounds": "x1234 1234x 12345_67 1234\u0301 $12345 №1234567 12345½ ½12345 1234① 12 345",
    "german": "Die größte Übung, 12.345,67 € – „Straße“ ÄÖÜ",
    "french": "L’été, c’est déjà l’œuvre d’Émile ; n’est-ce pas ? « oui »",
    "russian": "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "hebrew": "בְּרֵאשִׁית בָּרָא אֱלֹהִים",
    "arabic": "مرحبا بالعالم، كيف حالك؟ ٱلْحَمْدُ لِلَّٰهِ ١٢٣٤",
    "urdu": "یہ ایک جملہ ہے۔ ﷽",
    "hindi": "नमस्ते दुनिया, क्या हाल है? १२३४ क्षत्रिय।",
    "tamil": "தமிழ் மொழி கொ கோ",
    "thai": "สวัสดีชาวโลก นี่คือการทดสอบ ๑๒๓ น้ำ",
    "khmer": "កាន់តែពិសេសអាចខលើប",
    "chinese": "我想在apple工作1314151天～，你呢？「好」",
    "japanese": "日本語のテスト、カタカナとｶﾅ、ひらがな。１２３４",
    "korean": "한국어 테스트입니다. 안녕하세요!",
    "decomposed": "e\u0301 n\u0303 u\u0308 a\u030a \u1112\u1161\u11ab",
    "singletons": "\u212b \u2126 \u0958 q\u0323\u0307 \uf900",
    "composed": "é ñ ü å 한 Å Ω क़",
    "zalgo": "Z\u0351\u036b\u0343\u0315a\u0327\u0331l\u0321g\u0353\u0332o\u0334!",
    "emoji": "🚀 (normal) 😶‍🌫️ (multiple) ✅ 🦙🦙 👩🏽‍💻 🏳️‍🌈 1️⃣ ☺️",
    "python": 'def f(x: int) -> str:\n    return f"{x!r}"  # comment\n\n\nclass A(B):\n\tpass\n',
    "c": '#include <stdio.h>\r\nint main(void) {\r\n\tprintf("%d\\n", 1<<3); /* a */\r\n}\r\n',
    "json": '{"a": [1, 2.5e-3, null, true], "b\\u00e9": {"c": "d\\n"}}',
    "html": '<div class="a">&nbsp;x</div><!-- </s> -->\n<br/>',
    "url": "https://example.com/a_b-c/?q=1&r=%20#frag user@example.org C:\\Users\\me",
    "math": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ∧ x² ≥ 0; a≠b",
    "markdown": "# Title\n\n* item **bold** `code`\n\n```py\nx\n```\n---\n| a | b |\n|---|---|\n",
    "blanks": "a  b   c\t\td \n e\n\n f\r\n\r\n g \n\n\n h\u00a0\u00a0i \u3000 j    ",
    "blank_ends": "  leading and trailing  \n",
    "blank_lines": "\n\n\n  \n \t \n\n",
    "tabs_code": "\tif x:\n\t\treturn\n \t mixed\n",
    "nuls": "a\x00b\x00\x00c \x00 d",
    "controls": "\x1b[31mred\x1b[0m \x07bell\x08 \x7f \x80\x81 del",
    "bom": "\ufefftext\ufeff",
    "marks_first": "\u0301abc \u0301 1\u0301 .\u0301 \u0301\u0301",
    "quotes": "\"a\" 'b' ‘c’ “d” `e` ''f'' ````",
    "dashes": "a--b---c – — ― ‒ ======= ******* .......... !!!!!!?????",
    "spm_space": "a▁b ▁ ▁▁c",
    "roman": "ⅠⅡⅢ ⅳⅴ Ⅻ",
    "sentinels": "<sentinel:12> IMGIMGABZ IMGIMGABCDE <s> </s> [INST] <mask>",
    "slashes": "a/b // /* */ ./.. \\/ ?/\n/\n",
    "georgian": "საქართველო ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ",
    "deseret": "𐐀𐐨 𝐀𝐛𝟏 𝔘𝔫𝔦",
}


def _mixtures(count: int) -> dict[str, str]:
    """Seeded texts of characters of all classes side by side."""
    texts = {}
    for number in range(count):
        draw = random.Random(number)
        chosen = draw.sample(sorted(CLASSES), 6) + ["lower", "spaces", "digits"]
        texts[f"mixture {number}"] = "".join(
            draw.choice(CLASSES[draw.choice(chosen)]) * draw.choice((1, 1, 1, 2, 3, 7))
            for _ in range(60)
        )
    return texts


TEXTS = {
    **{f"run of {name}": (chars * 70)[:70] for name, chars in CLASSES.items()},
    **{
        f"{name} in words": f"a{chars}b {chars} {chars}\n{chars}1"
        for name, chars in CLASSES.items()
    },
    **SENTENCES,
    **_mixtures(40),
    "broken bytes": b"ab\xff\xc3(\xe4\xb8 c\xf0\x9f".decode("utf-8", "replace"),
    "": "",
}
