r"""Finding the answer in a response, and comparing numbers by value.

The default rule, in this order; only text after the last `</think>` counts, and a `<think>` that never closes means no answer:

    1. the last complete `<answer>...</answer>`
    2. the last complete `\boxed{...}` or `\fbox{...}`; where none is complete but one was begun, there is no answer
    3. the rest of the line after the last `####`, `answer:`, `answer is` or `=`, whichever stands last

A workload's `answer_pattern` replaces 1 to 3: the first group of its LAST match is the answer.
"""

import re
from collections import deque
from decimal import Decimal

_MARKED = re.compile(r"(?:####|\banswer\s*(?::|is\b:?)|=)[ \t]*", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(rf"{_BOX.pattern}|\\.|[{{}}]", re.DOTALL)


def extract(response: str, pattern: str | None = None) -> str | None:
    """The answer, stripped; None where there is none. `pattern` is a regular expression with a group."""
    text = after_thinking(response)
    if text is None:
        return None
    if pattern is not None:
        answer = _last_group(pattern, text)
    elif "</answer>" in text:
        answer = _last_tagged(text)
    elif _BOX.search(text):
        answer = last_boxed(text)
    else:
        answer = _last_marked(text)
    return answer.strip() or None if answer is not None else None


def extract_number(response: str, pattern: str | None = None) -> str | None:
    """As `extract`, and where the default rule finds no mark at all, the last number of the text."""
    answer = extract(response, pattern)
    text = after_thinking(response)
    if answer is not None or pattern is not None or text is None or _BOX.search(text):
        return answer
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def after_thinking(response: str) -> str | None:
    """What stands after the last `</think>`; None while a think block is open."""
    text = response.rpartition("</think>")[2]
    return None if "<think>" in text else text


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete `\boxed{...}`; None where there is none."""
    boxes = all_boxed(text)
    return boxes[-1] if boxes else None


def all_boxed(text: str) -> list[str]:
    r"""Contents of all complete boxes, in order. Of nested boxes the outermost counts; `\{` and `\}` are no braces."""
    opened: list[tuple[int, bool]] = []  # (start of the content, whether of a box)
    complete: list[tuple[int, int]] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "}" and opened:
            start, is_box = opened.pop()
            if is_box:
                while complete and complete[-1][0] > start:
                    complete.pop()
                complete.append((start, brace.start()))
        elif brace[0].endswith("{") and (brace[0] == "{" or len(brace[0]) > 2):
            opened.append((brace.end(), brace[0] != "{"))
    return [text[start:end] for start, end in complete]


def same_number(answer: str, gold: str) -> bool:
    """Equal by value, commas and a dollar sign aside (`$1,000.00` is `1000`); equal as text where either is no number."""
    left, right = _number(answer), _number(gold)
    if left is None or right is None:
        return answer.strip() == gold.strip()
    return left == right


def _number(text: str) -> Decimal | None:
    plain = text.strip().rstrip(".").replace("$", "")
    return Decimal(plain.replace(",", "")) if _NUMBER.fullmatch(plain) else None


def _last_group(pattern: str, text: str) -> str | None:
    last = _last_match(re.compile(pattern), text)
    return last.group(1) if last else None


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _last_tagged(text: str) -> str | None:
    before = text.rpartition("</answer>")[0]
    return before.rpartition("<answer>")[2] if "<answer>" in before else None


def _last_marked(text: str) -> str | None:
    last = _last_match(_MARKED, text)
    if last is None:
        return None
    line = text[last.end() :].partition("\n")[0].strip()
    return line.removesuffix(".")
