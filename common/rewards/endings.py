r"""Whether an answer breaks off: it ends in an operator, or in a word that leads to more (`5/`, `5:`, `5 \text{ and}`)."""

import re

from common.rewards import latex

_WORDS = "and or because since therefore thus hence so but if when where then wait hmm hm etc unfinished incomplete"
_CLOSERS = re.compile(r"(?:[\s\])}$.,;]|\\[,;:! ]|\\(?:right|quad)(?![a-zA-Z]))+$")
_WORD = re.compile(rf"(?<![a-zA-Z\\])(?:{'|'.join(_WORDS.split())})$", re.IGNORECASE)
_OPERATOR = re.compile(
    r"(?:(?<!\^)(?<!\^\{)(?<!\^\{ )(?<!\^\{\d)[-+]|[/:=<>_^&]"
    r"|\\(?:cdot|times|div|pm|mp|ast|approx|simeq|sim|cong|equiv|le|ge|lt|gt|ne|in|cup|cap|to|land|lor|implies|Rightarrow)(?![a-zA-Z]))$"
)
_DOTS = re.compile(r"(?<!\.)\.\s*\.$|[:;]\s*[:;]$")


def is_open(answer: str, *, has_words: bool = True) -> bool:
    """Of the answer as it stands in the box. A mark in a superscript (`H^+`) is no operator. `has_words`: words count too."""
    text = answer.strip()
    if _DOTS.search(text) or (text.endswith("*") and not text.startswith("*")):
        return True
    text = _CLOSERS.sub("", latex.plain(text))
    return (has_words and _WORD.search(text) is not None) or _OPERATOR.search(text) is not None


def has_colon(answer: str) -> bool:
    """`5:` leads to more; `C:` is a label."""
    return answer.rstrip(" }$").endswith(":")
