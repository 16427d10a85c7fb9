r"""The letter of a multiple-choice answer: `C`, `(C)`, `\text{C}`, `c.`, `Option C`, `C. text of the option`, or that text alone.

An answer that names two letters, or denies one (`A or B`, `AC`, `not C`, `C but not E`), is no answer: nothing is guessed.
"""

import re
from collections.abc import Sequence

from common.rewards import latex, units, wrappers

LETTERS = "ABCDE"
_PREFIX = re.compile(r"(?:the )?(?:(?:final |correct )?(?:answer|option|choice|letter)(?: is)?)?\s*[:=]?\s*", re.IGNORECASE)
_MARKED = re.compile(r"(?:\(\s*([A-Za-z])\s*\)|\[\s*([A-Za-z])\s*\]|([A-Za-z]))\s*(?:(?<=[)\]])|([.):])|$)\s*[.:]?\s*", re.DOTALL)
_LABEL_LAST = re.compile(r"(.+?)\s*\(([A-Za-z])\)", re.DOTALL)
_LABEL = re.compile(r"^\s*(?:\([A-Za-z]\)|[A-Za-z][).:](?= ))\s*")
_SECOND = re.compile(r"(?<![A-Za-z'])(?:[B-Eb-e]|A(?! [a-z])|\([A-Ea-e]\))(?![A-Za-z'])")
_LABELLED = re.compile(r"[(\[]?([A-Za-z])[)\]]?\s*(?:[-.:,(]|\s-*)\s*(.+)", re.DOTALL)
_OTHERS = frozenset(("also", "both", "either"))
_ORDINAL = re.compile(
    r"(?:the )?(?:first|second|third|fourth|fifth|last)(?: (?:one|option|choice|answer)\b.*)?\.?|.*\bof the above\b.*"
)
_HEDGE = re.compile(r"(?:or|and|but|not|nor|is|&|,|/|;)(?![a-z])", re.IGNORECASE)


def read(text: str, choices: Sequence[str] = ()) -> str | None:
    """The one letter meant, a capital; None where it is none, or not one. `choices`: the options' texts, labelled or not."""
    letters = LETTERS[: len(choices)] if choices else LETTERS
    if text.lstrip().startswith("~"):
        return None  # a space to LaTeX, a denial to a logician
    for layer in wrappers.layers(text):  # an option's own text may look like a label: `Venezuela: Kayne`
        answer = _unwrapped(layer)
        if (option := _option(answer, choices)) is not None:
            return letters[option]
    if (prefix := _PREFIX.match(answer)) and prefix.end():
        answer = answer[prefix.end() :]
        if (option := _option(answer, choices)) is not None:
            return letters[option]
    if choices and (labelled := _LABELLED.fullmatch(answer)) and _is_own_text(labelled[2], choices, labelled[1]):
        return labelled[1].upper() if labelled[1].upper() in letters else None
    last = _LABEL_LAST.fullmatch(answer)
    if last and choices and _option(last[1], choices) == LETTERS.find(last[2].upper()):
        return last[2].upper()
    match = _MARKED.match(answer)
    if match is None or answer.endswith(".."):
        return None
    letter = next(group for group in match.groups() if group).upper()
    rest = answer[match.end() :].strip()
    if letter not in letters or not (rest == "" or _is_option_text(rest, choices, letters.index(letter))):
        return None
    return letter


def _is_option_text(rest: str, choices: Sequence[str], index: int) -> bool:
    """Whether what follows a letter agrees with it: its option's text, or where no option is known, words that name no other."""
    if choices:
        return _is_own_text(rest, choices, LETTERS[index])
    words = re.findall(r"[a-z]+", rest.lower())
    is_denial = any(units.is_hedge(word) or word in _OTHERS for word in words) or _ORDINAL.fullmatch(rest.lower()) or "\\" in rest
    return not is_denial and _HEDGE.match(rest) is None and _SECOND.search(rest) is None


def _is_own_text(rest: str, choices: Sequence[str], letter: str) -> bool:
    """All of the option's text, or its first words, three or more."""
    index = LETTERS.find(letter.upper())
    if not 0 <= index < len(choices) or ("\\" in rest and "\\" not in choices[index]):
        return False
    given = _words(rest)
    texts = {_words(choices[index]), _words(_LABEL.sub("", choices[index]))}
    return given != "" and any(text == given or (len(given.split()) >= 3 and text.startswith(given + " ")) for text in texts)


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
    text = " ".join(re.sub(r"\\(?:text|operatorname)\s*\{|[{}*\"]", " ", plain).split()).removesuffix(".").strip("`‘’“”")
    return text[1:-1] if text.startswith("'") and text.endswith("'") else text  # `C'` is another name than C
