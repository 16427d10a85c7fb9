r"""Which rule a workload's answers are checked by, and the verdict with its reason.

    workload           gold                                 accepted
    lsat_ar            a letter                             the letter, with or without the option's text (`letters`)
    sci_xw, sci_jl     a decimal, the full value            a number within 5 %; its mantissa alone where `unit` states the power
    gsm8k              a number                             an equal number
    math500            an expression in LaTeX               an equal expression, list, interval ... (`lists`)
    olyphys            one or more expressions in LaTeX     as math500, each within `tolerance` where there is one
    jsonl              by task["answer_kind"]               number: also without a box; math and letter: as above

The answer is the last complete `\boxed{...}` after the last `</think>`; there is no other place where it is looked for. It takes
part in two ways only: as written, or by its value. What may take long runs in the verifier's processes, which have a time limit.
"""

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from common.records import Verdict
from common.rewards import answers, chains, endings, expressions, latex, letters, numbers, wrappers
from common.rewards.lists import OR, Matcher, Tolerance, items

CHECKED = frozenset(("lsat_ar", "sci_xw", "sci_jl", "olyphys", "gsm8k", "math500"))
SCI_TOLERANCE = Fraction(5, 100)
MAX_CHARACTERS = 500  # of an answer; a longer one is no answer to any of these questions
SHOWN_CHARACTERS = 200  # of an answer in the verdict
_SPACE_END = re.compile(r"(?<!\\)\\\s+$")  # of LaTeX; stripping alone would leave a backslash
_MEASURED = re.compile(r"((?:[^=]*=)?\s*\(?\s*)(-?[\d.]+)\s*\\pm\s*([\d.]+)(.*)", re.DOTALL)
_KINDS = {"lsat_ar": "letter", "sci_xw": "number", "sci_jl": "number", "gsm8k": "number", "math500": "math", "olyphys": "math"}

Fields = dict[str, Any]


def check(task: dict[str, Any], response: str) -> Fields:
    """`reward`, `status`, `extracted` and `reason` of one response. Raises nothing for any response but MemoryError."""
    try:
        return _checked(task, response)
    except RecursionError:
        return _fields(False, "", "the answer is nested too deeply")
    except (ValueError, ArithmeticError) as error:
        return _fields(False, "", f"the answer cannot be read: {_short(str(error), 60)}")


def _checked(task: dict[str, Any], response: str) -> Fields:
    gold = task["gold"]
    kind = _kind(task)
    if task["workload"] == "jsonl" and kind == "number":
        return _free_number(task, response)
    text = answers.after_thinking(response)
    if text is None:
        return _no_answer("a think block never closes")
    pattern = task.get("answer_pattern")
    boxes = [answers.extract(response, pattern) or ""] if pattern else answers.all_boxed(text)
    if not boxes or not boxes[-1].strip():
        return _no_answer(_why_none(text, boxes, pattern))
    answer = _SPACE_END.sub("", boxes[-1]).strip()
    is_written = isinstance(gold, str) and answer == gold.strip()
    if len(answer) > MAX_CHARACTERS and not is_written:
        return _fields(False, answer, f"the answer has {len(answer)} characters, more than {MAX_CHARACTERS}")
    is_letter = kind == "letter"
    if is_written and not is_letter:
        return _fields(True, answer, _comparison(answer, gold, None, True))
    has_words = not (is_letter and task.get("choices"))  # those must be the option's own
    if endings.is_open(answer, has_words=has_words) or (not is_letter and endings.has_colon(answer)):
        return _fields(False, answer, "the answer breaks off")
    if is_letter:
        return _letter(task, answer)
    return _number(task, answer) if kind == "number" else _math(task, answer, boxes)


def gold_fault(task: dict[str, Any]) -> str | None:
    """What is wrong with the gold, its unit or its tolerance, in a few words; None where they are fine. Cheap."""
    try:
        return _fault(task)
    except (ValueError, ArithmeticError, RecursionError) as error:
        return f"the answer, its unit or its tolerance cannot be read: {_short(str(error), 60)}"


def _fault(task: dict[str, Any]) -> str | None:
    gold = task.get("gold")
    kind = _kind(task)
    texts: list[Any] = gold if isinstance(gold, list) and kind == "math" else [gold]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        return "the answer is empty or no text"
    if not isinstance(task.get("unit") or "", str):
        return "the unit is no text"
    try:
        numbers.power_of_ten(task.get("unit") or "")
    except ValueError as error:
        return f"the unit {error}"
    if kind != "letter" and not all(latex.is_balanced(one) for text in texts for one in (text, f"{{{text}}}")):
        return "the answer's braces are not balanced"
    fault = {"letter": _letter_fault, "number": _number_fault, "math": _math_fault}[kind](texts, task)
    if fault is None and task.get("tolerance") is not None:
        try:
            _tolerances(task, len(_golds(task)) if kind == "math" else 1)
        except (ValueError, InvalidOperation) as error:
            return f"the tolerance {error}"
    return fault


def _letter_fault(texts: Sequence[str], task: dict[str, Any]) -> str | None:
    possible = letters.LETTERS[: len(task.get("choices") or letters.LETTERS)]
    return None if texts[0].strip().upper() in tuple(possible) else f"the answer is none of the letters {', '.join(possible)}"


def _number_fault(texts: Sequence[str], task: dict[str, Any]) -> str | None:
    if task["workload"] == "jsonl":
        return None  # compared as text where it is no number
    return None if numbers.read(texts[0]) else "the answer is not a number"


def _math_fault(texts: Sequence[str], task: dict[str, Any]) -> str | None:
    if any(len(text) > MAX_CHARACTERS for text in texts):
        return f"the answer has more than {MAX_CHARACTERS} characters"
    is_empty = not all(latex.compact(part) for text in texts for part in items(latex.plain(text)) or [""])
    return "the answer is empty" if is_empty else None


def _kind(task: dict[str, Any]) -> str:
    return _KINDS.get(task["workload"]) or task.get("answer_kind") or "number"


def _letter(task: dict[str, Any], answer: str) -> Fields:
    letter, gold = letters.read(answer, task.get("choices") or ()), task["gold"].strip().upper()
    if letter is None:
        return _fields(False, answer, "the answer is not one of the options")
    return _fields(letter == gold, answer, f"{letter} is {'' if letter == gold else 'not '}{gold}")


def _number(task: dict[str, Any], answer: str) -> Fields:
    """By value: 5 % in the sciences, a task's own relative tolerance, else exact."""
    gold = numbers.read(task["gold"])
    is_science = task["workload"].startswith("sci_")
    tolerance = _tolerances(task, 1)[0] or (SCI_TOLERANCE if is_science else None)
    unit = task.get("unit") or ""
    given = _numbers(answer, unit, is_science=is_science)
    if gold is None or not given:
        return _fields(False, answer, "the answer is not one number")
    if "%" in unit:
        gold = numbers.Number(gold.value, True, gold.digits)
    power = numbers.power_of_ten(unit) if is_science else 0
    golds = [gold] if power == 0 else [gold, numbers.Number(gold.value / Fraction(10) ** power, digits=gold.digits)]
    is_right = any(numbers.same(one, number, tolerance) for one in golds for number in given)
    return _fields(is_right, answer, _comparison(answer, task["gold"], tolerance, is_right))


def _numbers(answer: str, unit: str, *, is_science: bool) -> list[numbers.Number]:
    """What the answer says: one number; two where it gives an exact one and the rounded (`\\frac{22}{7} \\approx 3.14`)."""
    for text in dict.fromkeys((answer, numbers.without_stated(answer, unit), wrappers.bare(answer))):
        if number := numbers.read(text):
            return [number]
    text = latex.unwrap(latex.plain(wrappers.bare(answer)))
    if is_science:
        text = _without_error(text)
    return [number for part in chains.texts(text) or () if (number := chains.value(part))]


def _without_error(text: str) -> str:
    r"""`3.2 \pm 0.1` without the error, where that is smaller than the tolerance of the sciences is wide."""
    match = _MEASURED.fullmatch(text)
    if match is None:
        return text
    value, error = numbers.read_plain(match[2]), numbers.read_plain(match[3])
    is_small = value and error and 0 < error.value <= SCI_TOLERANCE * abs(value.value)
    return f"{match[1]}{match[2]}{match[4]}" if is_small else text


def _free_number(task: dict[str, Any], response: str) -> Fields:
    """Marked answers and the last number of the text count as well: what `jsonl` without a kind has always taken."""
    answer = answers.extract_number(response, task.get("answer_pattern"))
    if answer is None:
        return _no_answer("no answer found")
    is_right = answers.same_number(answer, task["gold"])
    if not is_right and len(answer) <= MAX_CHARACTERS:
        gold, given = numbers.read(task["gold"]), numbers.read(answer)
        is_right = gold is not None and given is not None and numbers.same(gold, given, _tolerances(task, 1)[0])
    return _fields(is_right, answer, _comparison(answer, task["gold"], None, is_right))


def _math(task: dict[str, Any], answer: str, boxes: Sequence[str]) -> Fields:
    golds = _golds(task)
    given = items(latex.plain(answer))
    is_physics = task["workload"] == "olyphys"
    if is_physics and len(given) < len(golds):
        given = _joined(boxes, len(golds)) or given
    tolerances = _tolerances(task, len(golds))
    matcher = Matcher(is_positive=is_physics)
    forms = [given] if wrappers.bare(answer) == answer else [given, items(latex.plain(wrappers.bare(answer)))]
    if any(r"\cup" in gold for gold in golds):
        forms.append(items(OR.sub(r"\\cup ", latex.plain(answer))))  # `x < 2 or x > 3`
    is_right = any(_matches(matcher, golds, form, tolerances, is_absolute=is_physics) for form in forms)
    shown = (
        ", ".join(box.strip() for box in boxes[-len(golds) :])
        if is_physics and len(items(latex.plain(answer))) < len(given)
        else answer
    )
    wanted = task["gold"] if isinstance(task["gold"], str) else ", ".join(task["gold"])
    return _fields(
        is_right, shown, _comparison(shown, wanted, next(iter(tolerances), None), is_right, is_relative=not is_physics)
    )


def _matches(
    matcher: Matcher, golds: Sequence[str], given: Sequence[str], tolerances: Sequence[Tolerance], *, is_absolute: bool
) -> bool:
    if is_absolute or not any(tolerances):
        return matcher.is_list(golds, given, tolerances)
    if len(golds) != len(given):
        return False
    scales = [expressions.value(gold) for gold in golds]  # a relative tolerance is one of the gold's size
    absolute = [
        tolerance * abs(scale) if tolerance and scale is not None else None
        for tolerance, scale in zip(tolerances, scales, strict=True)
    ]
    return matcher.is_list(golds, given, absolute)


def _golds(task: dict[str, Any]) -> list[str]:
    """The parts of the gold, each in one spelling."""
    gold = task["gold"]
    texts = gold if isinstance(gold, list) else [gold]
    percent = r"%" if task.get("unit") and "%" in task["unit"] else ""
    return [
        part + percent if percent and numbers.read(part) and "%" not in part else part
        for text in texts
        for part in items(latex.plain(text))
    ]


def _joined(boxes: Sequence[str], wanted: int) -> list[str] | None:
    """The parts of the last boxes that together hold as many answers as wanted, no more: several answers, a box for each."""
    parts: list[str] = []
    for box in reversed(boxes):
        if len(box) > MAX_CHARACTERS:
            return None
        parts = items(latex.plain(box)) + parts
        if len(parts) >= wanted:
            return parts if len(parts) == wanted else None
    return None


def _tolerances(task: dict[str, Any], count: int) -> list[Tolerance]:
    """One for each part of the gold. Raises ValueError where they are no positive numbers or do not fit the gold."""
    given = task.get("tolerance")
    if given is None:
        return [None] * count
    parts = re.split(r"\s*,\s*", given.strip()) if isinstance(given, str) else given if isinstance(given, list) else [given]
    found = [_tolerance(part) for part in parts]
    if len(found) not in (1, count):
        raise ValueError(f"has {len(found)} values for {count} answers")
    return found * count if len(found) == 1 else found


def _tolerance(text: Any) -> Tolerance:
    number = numbers.read(str(text))
    if isinstance(text, bool) or number is None or number.value < 0:
        raise ValueError(f"must be a number from 0 on, got {text!r}")
    return number.value


def _why_none(text: str, boxes: Sequence[str], pattern: str | None) -> str:
    if pattern:
        return "answer_pattern matches nothing"
    if boxes:
        return "the last box is empty"
    return r"no complete \boxed{}" if r"\boxed" in text or r"\fbox" in text else r"no \boxed{}"


def _comparison(answer: str, gold: str, tolerance: Tolerance, is_right: bool, *, is_relative: bool = True) -> str:
    verb = "is" if is_right else "is not"
    answer, gold = _short(answer, 60), _short(gold, 60)
    if tolerance is None:
        return f"{answer} {verb} equal to {gold}"
    return (
        f"{answer} {verb} within {_shown(tolerance * 100)} % of {gold}"
        if is_relative
        else f"{answer} {verb} within {_shown(tolerance)} of {gold}"
    )


def _shown(value: Fraction) -> str:
    return f"{Decimal(value.numerator) / Decimal(value.denominator):g}".replace("E", "e")


def _fields(is_right: bool, answer: str, reason: str) -> Fields:
    status = Verdict.OK if is_right else Verdict.WRONG
    extracted, reason = (text.encode("utf-8", "replace").decode() for text in (answer[:SHOWN_CHARACTERS], reason))  # surrogates
    return {"reward": float(is_right), "status": status, "extracted": extracted, "reason": reason}


def _no_answer(reason: str) -> Fields:
    return {"reward": 0.0, "status": Verdict.NO_ANSWER, "extracted": "", "reason": reason}


def _short(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
