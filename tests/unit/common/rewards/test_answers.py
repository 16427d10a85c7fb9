"""Which part of a response is the answer, and which numbers are equal."""

import pytest

from common.rewards.answers import all_boxed, extract, extract_number, last_boxed, same_number


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("3+4=7;7+5=12", "12"),
        ("=12", "12"),
        ("x = 5 and then", "5 and then"),  # the rest of the line, so a sentence is no number
        ("Answer: 12.\nHope this helps", "12"),
        ("The answer is (C)", "(C)"),
        ("the ANSWER is: 7", "7"),
        ("we get 7 = 7\nAnswer: no", "no"),
        ("Answer: x = 5", "5"),
        ("work\n#### 18", "18"),
        ("<answer> two\nlines </answer>", "two\nlines"),
        ("<answer>1</answer> no: <answer>2</answer>", "2"),
        (r"\boxed{1} no, \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"<answer>1</answer> \boxed{2}", "1"),
        (r"<think>\boxed{1}</think>so \boxed{2}", "2"),
        (r"no opening tag \boxed{1}</think>=3", "3"),
        (r"\boxed{4} then \boxed{5", "4"),
        (r"\boxed{4} = 3", "4"),
    ],
)
def test_the_default_rule_finds(response: str, answer: str) -> None:
    assert extract(response) == answer


@pytest.mark.parametrize(
    "response",
    [
        "",
        "   ",
        "12",
        "=",
        "Answer:\n",
        "<answer></answer>",
        "2</answer>",
        r"\boxed{}",
        r"\boxed{5",
        r"\boxed{{5}",
        r"<think> \boxed{5} and then",
        "done</think> wait <think> = 5",
    ],
)
def test_the_default_rule_finds_nothing(response: str) -> None:
    assert extract(response) is None


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        (r"\boxed{1}, \fbox{2} and \boxed {3}", ["1", "2", "3"]),
        ("\\boxed\n{1}", ["1"]),
        (r"\boxed{\boxed{5} + \fbox{1}}", [r"\boxed{5} + \fbox{1}"]),  # of nested boxes the outermost
        (r"\boxed{4 and then \boxed{5}", ["5"]),  # the outer one never closes
        (r"\boxed{\{1, 2\}}", [r"\{1, 2\}"]),
        (r"\boxed{\{1, 2}", [r"\{1, 2"]),  # an escaped brace is no brace
        (r"\boxed{1\}", []),
        (r"}} { \boxed{5} {", ["5"]),
        (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"\\boxed{5}", ["5"]),  # as in a string that was escaped twice
        (r"\boxed{", []),
        (r"\boxed{{5}", []),
        (r"\boxed{}", [""]),
        (r"\boxed 5, boxed{5}, \boxedtext{5}", []),
        ("", []),
    ],
)
def test_complete_boxes(text: str, boxes: list[str]) -> None:
    assert all_boxed(text) == boxes
    assert last_boxed(text) == (boxes[-1] if boxes else None)


def test_many_boxes_take_one_pass() -> None:
    assert len(all_boxed(r"\boxed{1}" * 20_000)) == 20_000
    assert all_boxed(r"\boxed{" * 20_000) == []
    assert all_boxed(r"\boxed{" * 20_000 + "}" * 20_000)[0].count("boxed") == 19_999


def test_a_pattern_replaces_the_rule_and_its_last_match_counts() -> None:
    assert extract("a:1 a:2 =9", r"a:(\d)") == "2"
    assert extract("=9", r"a:(\d)") is None
    assert extract("b", r"a:(\d)|b") is None  # matched, but not the group
    assert extract("a:1</think>a:2<think>a:3", r"a:(\d)") is None
    assert extract_number("b 7", r"a:(\d)") is None


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so she makes 1,234.5 dollars.", "1,234.5"),
        ("from 3 to -4", "-4"),
        (r"3 or \boxed{4} of 5", "4"),
        ("5 apples\n#### 6\n", "6"),
    ],
)
def test_a_number_may_stand_without_a_mark(response: str, answer: str) -> None:
    assert extract_number(response) == answer


@pytest.mark.parametrize("response", ["", "none", r"so \boxed{5", "<think> 5"])
def test_no_number_is_found_where_none_was_given(response: str) -> None:
    assert extract_number(response) is None


@pytest.mark.parametrize(
    ("left", "right"), [("1,000", "1000"), ("$7.50", "7.5"), ("+3", "3."), (".5", "0.50"), ("-0", "0"), ("blue", " blue ")]
)
def test_equal_by_value(left: str, right: str) -> None:
    assert same_number(left, right)
    assert same_number(right, left)


@pytest.mark.parametrize(
    ("left", "right"), [("18", "81"), ("0.1", "0.10000000000000000001"), ("5 apples", "5"), ("1e3", "1000"), ("Blue", "blue")]
)
def test_not_equal(left: str, right: str) -> None:
    assert not same_number(left, right)


def test_a_million_digits_compare_exactly() -> None:
    digits = "9" * 10**6
    assert same_number(digits, f"{digits}.0")
    assert not same_number(digits, f"{digits}.5")
