r"""The letter of a multiple-choice answer: `C`, `(C)`, `\text{C}`, `c.`, `Option C`, `C. text of the option`, or that text alone.

An answer that names two letters, or denies one (`A or B`, `AC`, `not C`, `C but not E`), is no answer: nothing is guessed.
"""

import re
from collections.abc import Sequence

from common.rewards import latex

LETTERS = "ABCDE"
_PREFIX = re.compile(r"(?:the )?(?:(?:final |correct )?(?:answer|option|choice)(?: is)?)\s*:?\s*", re.IGNORECASE)
_MARKED = re.compile(r"(?:\(\s*([A-Za-z])\s*\)|\[\s*([A-Za-z])\s*\]|([A-Za-z]))\s*(?:(?<=[)\]])|([.):])|$)\s*[.:]?\s*", re.DOTALL)
_LABEL = re.compile(r"^\s*(?:\([A-Za-z]\)|[A-Za-z][).:](?= ))\s*")
_SECOND = re.compile(r"(?<![A-Za-z'])(?:[B-Eb-e]|A(?! [a-z])|\([A-Ea-e]\))(?![A-Za-z'])")
_HEDGE = re.compile(r"(?:or|and|but|not|nor|is|&|,|/|;)(?![a-z])", re.IGNORECASE)


def read(text: str, choices: Sequence[str] = ()) -> str | None:
    """The one letter meant, a capital; None where it is none, or not one. `choices`: the options' texts, labelled or not."""
    letters = LETTERS[: len(choices)] if choices else LETTERS
    answer = _unwrapped(text)
    option = _option(answer, choices)
    if option is not None:
        return letters[option]
    if prefix := _PREFIX.match(answer):
        answer = answer[prefix.end() :]
    match = _MARKED.match(answer)
    if match is None:
        return None
    letter = next(group for group in match.groups() if group).upper()
    rest = answer[match.end() :].strip()
    if letter not in letters or not (rest == "" or _is_option_text(rest, choices, letters.index(letter))):
        return None
    return letter


def _is_option_text(rest: str, choices: Sequence[str], index: int) -> bool:
    """Whether what follows a letter agrees with it: its option's text, or where no option has it, words that name no other."""
    option = _option(rest, choices)
    if option is not None:
        return option == index
    return _HEDGE.match(rest) is None and _SECOND.search(rest) is None


def _option(text: str, choices: Sequence[str]) -> int | None:
    """The one option with exactly this text, spelling of punctuation, spaces and capitals aside."""
    wanted = _words(text)
    found = [index for index, choice in enumerate(choices) if wanted and wanted == _words(_LABEL.sub("", choice))]
    return found[0] if len(found) == 1 else None


def _words(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", text.casefold()))


def _unwrapped(text: str) -> str:
    r"""Without `\text{...}`, `\textbf{...}`, stars and dollar signs, wherever they stand."""
    plain = latex.unwrap(latex.plain(text))
    return " ".join(re.sub(r"\\text\{|[{}*\"]|\\[a-zA-Z]+", " ", plain).split()).rstrip(".")
