"""How long the sentences of README and docs are.

    python tests/docs/prose.py [--over N] [PAGE ...]  # a row for each page; or every sentence of more than N words

A sentence ends with a full stop, a question mark or an exclamation mark, or with its item of a list. Colons and
semicolons end none. Code, tables, headings and what is generated are no prose. Code in a sentence is one word.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from blocks import pages, text_of

MEAN, MOST = 16, 40
"""Words of a sentence on average over a page, and of any sentence."""

_FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^|\n)\n(?: {4}\S[^\n]*\n(?:[ ]{4}[^\n]*\n|\n(?= {4}))*)")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+(.*)")
_END = re.compile(r"(?<=[.!?])[\")*_]*\s+(?=[^a-z])")
_PLAIN = ((r"!\[[^]]*\]\([^)]*\)", ""), (r"\[([^]]*)\]\([^)]*\)", r"\1"), (r"`+[^`]*`+", "CODE"), (r"[*_]{1,2}", ""))


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and items of lists."""
    lines: list[str] = []
    for line in [*_INDENTED.sub("\n\n", _FENCED.sub("\n\n", text)).splitlines(), ""]:
        item = _ITEM.match(line)
        if item or not line.strip() or line.lstrip().startswith(("|", "#", "!", "<!--")):
            if lines:
                yield " ".join(lines)
            lines = [item[1]] if item else []
        else:
            lines.append(line.strip())


def sentences(page: str) -> list[str]:
    """The sentences of a page, without marks of Markdown."""
    result = []
    for paragraph in paragraphs(text_of(page)):
        plain = paragraph
        for mark, instead in _PLAIN:
            plain = re.sub(mark, instead, plain)
        result += [sentence for sentence in _END.split(plain) if words(sentence)]
    return result


def words(sentence: str) -> int:
    """Words of a sentence."""
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def main() -> None:
    """Print a row for each page, or the long sentences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", help="paths within the project (default: README and all of docs)")
    parser.add_argument("--over", type=int, help="print the sentences of more than so many words instead")
    options = parser.parse_args()
    all_words = all_sentences = 0
    for page in options.pages or pages():
        result = sentences(page)
        counts = [words(sentence) for sentence in result]
        all_words, all_sentences = all_words + sum(counts), all_sentences + len(counts)
        if options.over is not None:
            for sentence, count in zip(result, counts, strict=True):
                if count > options.over:
                    print(f"{page}: {count}: {sentence}")
        elif counts:
            print(f"{page:44} {len(counts):4} sentences, {sum(counts) / len(counts):5.1f} words, at most {max(counts)}")
    print(f"{all_sentences} sentences, {all_words / max(all_sentences, 1):.1f} words on average")


if __name__ == "__main__":
    main()
