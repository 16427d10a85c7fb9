"""Which ways of writing a right answer are accepted, and which wrong answers are refused? Exit status 1 if a mark is missed.

    python benchmarks/checker_table.py FOLDER       (by default ROLLOUTPIPE_TEST_DATA)

Every answer of every file in FOLDER (LSAT, SciBench, OlympiadBench, GSM8K and MATH-500 in their own schemas) is put into
each variant that applies to it, and `common.rewards.checkers.check` is asked. Marks: 100 % of the right variants are accepted,
0 % of the wrong ones. Then the mean CPU time of a verdict over all variants; the mark is 400 a second on two cores over four
workloads mixed evenly.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from shared import DATA, where

from common.rewards import latex, numbers
from common.rewards.checkers import check
from common.rewards.lists import items

Task = dict[str, Any]
Variant = Callable[[Task], Iterator[str]]
COLUMNS = ("lsat_ar", "sci_xw", "olyphys", "gsm8k", "math500")
SPEED_COLUMNS = ("lsat_ar", "sci_xw", "gsm8k", "math500")
SPEED_MARK = 400 / 2  # verdicts a second on one core
BARE_UNITS = ("m/s", "km", "kg·m/s^2", "dollars", "J", "K", "kg m^{-3}", "dollars per hour", "degrees", "eV")


def golds(folder: Path) -> dict[str, list[Task]]:
    """The tasks of all files by workload, as the loader makes them."""
    lsat = [{"gold": row["label"], "choices": row["options"]} for row in _lines(folder / "lsat_ar/agieval_v1_lsat-ar.jsonl")]
    for path in sorted((folder / "lsat_ar").glob("ar_lsat_*.json")):
        questions = [question for passage in _json(path) for question in passage["questions"]]
        lsat += [{"gold": question["answer"], "choices": question["options"]} for question in questions]
    science = [_scientific(row) for path in sorted((folder / "sci_xw").glob("*.json")) for row in _json(path)]
    physics = [row for path in sorted((folder / "olyphys").glob("OE_*.jsonl")) for row in _lines(path)]
    found: dict[str, list[Task]] = {
        "lsat_ar": lsat,
        "sci_xw": science,
        "olyphys": [{"gold": row["final_answer"], "unit": row["unit"] or "", "tolerance": row["error"]} for row in physics],
        "gsm8k": [{"gold": row["answer"].rpartition("####")[2].strip()} for row in _lines(folder / "gsm8k/test.jsonl")],
        "math500": [{"gold": row["answer"]} for row in _json(folder / "math500/math500_test.json")],
    }
    return {name: [{"workload": name, **task} for task in tasks] for name, tasks in found.items()}


def _scientific(row: dict[str, str]) -> Task:
    written = Decimal(row["answer_number"].strip().replace("−", "-").replace(",", ""))
    power = numbers.power_of_ten(row["unit"])
    gold = f"{written.scaleb(power):E}" if power else row["answer_number"]
    return {"gold": gold, "unit": row["unit"], "mantissa": str(written) if power else None}


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def text(task: Task) -> str:
    """The gold as one would write it into a box."""
    return ", ".join(task["gold"]) if isinstance(task["gold"], list) else task["gold"].strip()


def number(task: Task) -> Decimal | None:
    """Its value where it is one plain decimal."""
    if len(items(latex.plain(text(task)))) > 1 or not re.fullmatch(r"[-+−]?[\d,.]+(?:E[-+]?\d+)?", text(task).replace(r"\!", "")):
        return None
    return Decimal(re.sub(r",|\\!", "", text(task)).replace("−", "-"))


def boxed(answer: str) -> str:
    """A response that ends with it."""
    return rf"We compute step by step. So the answer is $\boxed{{{answer}}}$."


def _each(write: Callable[[Task], str | None]) -> Variant:
    """A variant of one response; None: does not apply."""

    def responses(task: Task) -> Iterator[str]:
        response = write(task)
        if response is not None:
            yield response

    return responses


def _for_numbers(write: Callable[[Decimal], str | None], *columns: str) -> Variant:
    def answer(task: Task) -> str | None:
        value = number(task)
        if value is None or (columns and task["workload"] not in columns):
            return None
        written = write(value)
        return None if written is None else boxed(written)

    return _each(answer)


def _mantissa(value: Decimal) -> tuple[str, int]:
    digits, exponent = f"{value:E}".split("E")
    return digits, int(exponent)


def _power(value: Decimal, pattern: str) -> str:
    digits, exponent = _mantissa(value)
    return pattern.format(digits, exponent)


def _superscript(value: Decimal) -> str:
    digits, exponent = _mantissa(value)
    return f"{digits} × 10{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def _grouped(value: Decimal, comma: str) -> str | None:
    return f"{value:,f}".replace(",", comma) if abs(value) >= 1000 else None


def _letter_forms(write: Callable[[str, str], str]) -> Variant:
    def answer(task: Task) -> str | None:
        if task["workload"] != "lsat_ar":
            return None
        option = task["choices"]["ABCDE".index(task["gold"])]
        return boxed(write(task["gold"], re.sub(r"^\([A-E]\)\s*", "", option)))

    return _each(answer)


def _latex_unit(task: Task) -> str | None:
    unit = re.sub(r"10\s*\^\s*(\{-?\d+\}|\d)", "", (task.get("unit") or "").replace("$", "")).strip()
    unit = unit.replace(r"\mathrm{}", "").replace(r"\mathrm{{}}", "")
    return (
        boxed(rf"{text(task)}\ {unit}")
        if unit.strip("~ \\") and number(task) is not None and task["workload"] != "olyphys"
        else None
    )


def _bare_unit(task: Task) -> Iterator[str]:
    if number(task) is not None and task["workload"] != "olyphys":
        units = [unit for unit in BARE_UNITS if task["workload"] != "gsm8k" or unit.isalpha() or " per" in unit]
        yield from (boxed(f"{text(task)} {unit}") for unit in units)


def _named(task: Task) -> str | None:
    has_relation = re.search(r"=|\\in\b|\\text|\\pm|[<>]|\\ge", text(task))
    return None if task["workload"] == "lsat_ar" or has_relation else boxed(f"x = {text(task)}")


def _respelled(task: Task) -> str | None:
    """The same LaTeX as another hand would write it."""
    if task["workload"] not in ("math500", "olyphys"):
        return None
    spaced = re.sub(r"(?<=[^\\\d\s.,{}^_a-zA-Z])(?=[^\s])", " ", text(task)).replace(r"\frac", r"\dfrac")
    return boxed(rf"\displaystyle {spaced}") if r"\text" not in spaced and r"\begin" not in spaced else None


def _reordered(task: Task) -> str | None:
    parts = items(latex.plain(text(task)))
    return boxed(" and ".join(reversed(parts))) if len(parts) > 1 and task["workload"] in ("math500", "olyphys") else None


def _separate_boxes(task: Task) -> str | None:
    parts = items(latex.plain(text(task)))
    if len(parts) < 2 or task["workload"] != "olyphys":
        return None
    return "Hence " + " and ".join(rf"\boxed{{{part}}}" for part in parts) + "."


RIGHT: dict[str, Variant] = {
    "the gold in a box": _each(lambda task: boxed(text(task))),
    "text after the box": _each(lambda task: boxed(text(task)) + " This uses the lemma with 7 and (B), as x = 3."),
    "another box earlier": _each(lambda task: r"First \boxed{E = 17}, no. " + boxed(text(task))),
    "wrong box inside think, right one after": _each(lambda task: rf"<think>\boxed{{D17}} hm</think>{boxed(text(task))}"),
    "an unclosed box after it": _each(lambda task: boxed(text(task)) + r" Again: \boxed{12"),
    r"`\boxed {X}`, `\fbox{X}`, a box in a box": lambda task: iter(
        [rf"\boxed {{{text(task)}}}", rf"\fbox{{{text(task)}}}", rf"\boxed{{\boxed{{{text(task)}}}}}"]
    ),
    "`(X)`": _letter_forms(lambda letter, _: f"({letter})"),
    r"`\text{X}`, `\textbf{(X)}`": lambda task: (
        response
        for form in (r"\text{%s}", r"\textbf{(%s)}")
        for response in _letter_forms(lambda letter, _: form % letter)(task)  # noqa: B023
    ),
    "`X. option text`": _letter_forms(lambda letter, option: f"{letter}. {option}"),
    "`(X) option text`": _letter_forms(lambda letter, option: f"({letter}) {option}"),
    "`x`, `X.`": lambda task: (
        response
        for form in (str.lower, lambda letter: letter + ".")
        for response in _letter_forms(lambda letter, _: form(letter))(task)  # noqa: B023
    ),
    "LaTeX unit after the number": _each(_latex_unit),
    "bare unit (`3.2 m/s`)": _bare_unit,
    "`x = X`": _each(_named),
    r"`a \times 10^{b}`": _for_numbers(lambda value: _power(value, r"{} \times 10^{{{}}}")),
    r"`a \cdot 10^b`, `a*10**b`": lambda task: (
        response
        for form in (r"{} \cdot 10^{{{}}}", "{}*10**{}")
        for response in _for_numbers(lambda value: _power(value, form))(task)  # noqa: B023
    ),
    "`a × 10⁻¹⁹`": _for_numbers(_superscript),
    "`1.6e-19`": _for_numbers(lambda value: _power(value, "{}e{}")),
    "thousands separators (`,` `{,}` `\\,` space)": lambda task: (
        response
        for comma in (",", "{,}", r"\,", " ", r",\!")
        for response in _for_numbers(lambda value: _grouped(value, comma))(task)  # noqa: B023
    ),
    "U+2212 minus": _for_numbers(lambda value: f"{value:f}".replace("-", "−") if value < 0 else None),
    "trailing zeros": _for_numbers(lambda value: f"{value:f}" + ("00" if "." in f"{value:f}" else ".00")),
    "full-width digits": _for_numbers(
        lambda value: f"{value:f}".translate(str.maketrans("0123456789.", "０１２３４５６７８９．"))
    ),
    "mantissa alone, its power in the unit": _each(lambda task: boxed(task["mantissa"]) if task.get("mantissa") else None),
    r"other spelling (`\dfrac`, spaces)": _each(_respelled),
    "several answers in another order": _each(_reordered),
    "several answers, a box for each": _each(_separate_boxes),
}


def _other_letters(task: Task) -> Iterator[str]:
    if task["workload"] == "lsat_ar":
        for index, letter in enumerate("ABCDE"[: len(task["choices"])]):
            if letter != task["gold"]:
                option = re.sub(r"^\([A-E]\)\s*", "", task["choices"][index])
                yield from (boxed(letter), boxed(f"({letter}) {option}"), boxed(rf"\text{{{letter}}}"), boxed(option))


def _hedges(task: Task) -> Iterator[str]:
    if task["workload"] == "lsat_ar":
        other = "ABCDE"[(("ABCDE".index(task["gold"])) + 1) % 4]
        forms = ("{0} and {1}", "{0} or {1}", "{0}, {1}", "{0}{1}", "not {0}", "{0} but not {1}", "({0}) ({1})")
        yield from (boxed(form.format(task["gold"], other)) for form in forms)
    elif len(items(latex.plain(text(task)))) == 1:
        forms = ("{0} or 7391", "{0}, 7391", "7391, {0}", r"{0} \text{{ or }} 7391", "not {0}", r"{0} \pm {0}", "x = {0} = 7391")
        yield from (boxed(form.format(text(task))) for form in forms)


def _changed(task: Task) -> Iterator[str]:
    r"""Each number of the gold in its turn, one larger."""
    if task["workload"] in ("math500", "olyphys") and not task.get("tolerance") and r"\mbox" not in text(task):
        gold = latex.plain(text(task))
        for match in re.finditer(r"(?<![_{\d])\d+|(?<=[{])\d+", gold):
            if not re.search(r"_\{?$", gold[: match.start()]):
                yield boxed(f"{gold[: match.start()]}{int(match[0]) + 1}{gold[match.end() :]}")


def _off(factor: str) -> Variant:
    def answers(task: Task) -> Iterator[str]:
        value = number(task)
        if value is None or task.get("tolerance"):
            return
        sizes = (Decimal(task["mantissa"]), value) if task.get("mantissa") else (value,)
        if value == 0:
            yield boxed("0.01")
        else:
            yield from (boxed(f"{size * Decimal(factor):E}") for size in sizes)

    return answers


def _science_or_exact(science: str, exact: str) -> Variant:
    return lambda task: _off(science if task["workload"] == "sci_xw" else exact)(task)


def _of_expressions(pattern: str) -> Variant:
    """For single expressions of MATH and OlympiadBench."""

    def answer(task: Task) -> str | None:
        gold = latex.plain(text(task))
        is_single = len(items(gold)) == 1 and not re.search(r"=|\\in\b|\\text|\\begin|[,_<>]|\\ge|\\cup", gold)
        return boxed(pattern.format(gold)) if task["workload"] in ("math500", "olyphys") and is_single and gold != "0" else None

    return _each(answer)


WRONG: dict[str, Variant] = {
    "cut before the box": _each(lambda task: rf"So x = {text(task)} and then we need to"),
    "cut within the box": _each(lambda task: rf"The answer is {text(task)}, so \boxed{{{text(task)}"),
    "unclosed think block": _each(lambda task: f"<think> {boxed(text(task))} wait"),
    "empty box": _each(lambda task: boxed("") + f" {text(task)}"),
    "empty text": _each(lambda task: ""),
    "“The answer is X.” without a box": _each(lambda task: f"The answer is {text(task)}."),
    "two answers, or a denial": _hedges,
    "another letter, another option": _other_letters,
    "6 % off (Sci), 2 % off (exact)": _science_or_exact("1.06", "1.02"),
    "6 % below (Sci), 2 % below (exact)": _science_or_exact("0.94", "0.98"),
    "ten times": _off("10"),
    "a tenth": _off("0.1"),
    "the other sign": _off("-1"),
    r"`-(X)`, `2(X)`, `(X)+1`": lambda task: (
        response for form in ("-({})", "2({})", "({})+1") for response in _of_expressions(form)(task)
    ),
    "a number within it one larger": _changed,
}


@dataclass(slots=True)
class Cell:
    """What became of one variant in one workload."""

    count: int = 0
    accepted: int = 0
    seconds: float = 0.0
    missed: list[tuple[str, str]] = field(default_factory=list)


def measure(variant: Variant, tasks: list[Task], *, is_right: bool) -> Cell:
    """Ask for all of them. `missed`: (response, reason) of verdicts that break the mark."""
    cell = Cell()
    for task in tasks:
        for response in variant(task):
            start = time.process_time()
            verdict = check(task, response)
            cell.seconds += time.process_time() - start
            cell.count += 1
            cell.accepted += verdict["reward"] == 1.0
            if (verdict["reward"] == 1.0) != is_right:
                cell.missed.append((f"{text(task)!r} <- {response!r}", verdict["reason"]))
    return cell


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=DATA, type=Path)
    parser.add_argument("--misses", type=int, default=3, help="of each cell, so many are shown")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        print(f"real data files are absent ({arguments.folder}); set ROLLOUTPIPE_TEST_DATA to their folder", file=sys.stderr)
        return 2
    tasks = golds(arguments.folder)
    print(f"{where()}\n\n| variant | " + " | ".join(f"{name} ({len(tasks[name])})" for name in COLUMNS) + " |")
    print("| --- |" + " ---: |" * len(COLUMNS))
    cells: dict[tuple[str, str], Cell] = {}
    for title, is_right, variants in (("right: 100", True, RIGHT), ("wrong: 0", False, WRONG)):
        print(f"| **{title} % is the mark** |" + " |" * len(COLUMNS))
        for name, variant in variants.items():
            row = [measure(variant, tasks[column], is_right=is_right) for column in COLUMNS]
            cells |= {(name, column): cell for column, cell in zip(COLUMNS, row, strict=True)}
            print(f"| {name} | " + " | ".join(_share(cell) for cell in row) + " |", flush=True)
    is_fast = _print_speed(cells)
    missed = {key: cell.missed for key, cell in cells.items() if cell.missed}
    for (name, column), examples in missed.items():
        print(f"\n{column}, {name}: {len(examples)} verdicts miss the mark")
        for response, reason in examples[: arguments.misses]:
            print(f"    {response}\n        {reason}")
    return int(bool(missed) or not is_fast)


def _share(cell: Cell) -> str:
    if cell.count == 0:
        return ""
    share = Fraction(100 * cell.accepted, cell.count)
    return f"{float(share):.4g} ({cell.count})"


def _print_speed(cells: dict[tuple[str, str], Cell]) -> bool:
    means = {}
    print("\n| | " + " | ".join(COLUMNS) + " |\n| --- |" + " ---: |" * len(COLUMNS))
    for column in COLUMNS:
        own = [cell for (_, name), cell in cells.items() if name == column]
        means[column] = sum(cell.seconds for cell in own) / sum(cell.count for cell in own)
    print("| CPU ms a verdict, all variants | " + " | ".join(f"{means[column] * 1e3:.2f}" for column in COLUMNS) + " |")
    rate = len(SPEED_COLUMNS) / sum(means[column] for column in SPEED_COLUMNS)
    print(f"\n{', '.join(SPEED_COLUMNS)} mixed evenly: {rate:.0f} verdicts a second on one core (mark: {SPEED_MARK:.0f})")
    return rate >= SPEED_MARK


if __name__ == "__main__":
    sys.exit(main())
