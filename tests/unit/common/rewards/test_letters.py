"""Multiple choice: one letter, and nothing is guessed."""

import pytest

from common.rewards.letters import read

CHOICES = ("(A) Ann and Bob", "(B) Bob", "(C) Cy, then D", "(D)Dee", "(E) Dr. E")


@pytest.mark.parametrize(
    "text",
    [
        "C",
        "c",
        " C ",
        "(C)",
        "[C]",
        "C.",
        "C)",
        "(C).",
        "C:",
        r"\text{C}",
        r"\textbf{(C)}",
        r"\mathrm{C}",
        "**C**",
        "$C$",
        "{C}",
        r"\boxed{C}",
        "Option C",
        "option (C)",
        "answer is C",
        "The answer is (C).",
        "The correct answer is: C",
        "C. option text",
        "C) text",
        "(C) text",
        "C: text",
        r"\text{C. } \text{text}",
        "C. A man walks",
    ],
)
def test_one_letter(text: str) -> None:
    assert read(text) == "C"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A and C",
        "A or B",
        "A, B",
        "AC",
        "A/B",
        "C C",
        "(C)(D)",
        "(A) (B) (C) (D) (E)",
        "not C",
        "C but not E",
        "answer is not C",
        "neither C nor D",
        "C. or D",
        "C. not",
        "C. text or (D)",
        "C: B",
        "C or",
        "C?",
        "F",
        "1",
        "Cat",
        "The answer",
        "any",
        "-C",
        "A. B. C. D. E.",
    ],
)
def test_not_one_letter(text: str) -> None:
    assert read(text) is None


def test_the_text_of_an_option_is_its_letter() -> None:
    assert read("bob", CHOICES) == "B"
    assert read(r"\text{Cy, then  D}", CHOICES) == "C"
    assert read("Dr. E", CHOICES) == "E"
    assert read("Dee", [choice[3:] for choice in CHOICES]) == "D"
    assert read("Zoe", CHOICES) is None
    assert read("Bob", ()) is None


def test_a_letter_with_its_own_text() -> None:
    assert read("C. Cy, then D", CHOICES) == "C"
    assert read("(A) Ann and Bob", CHOICES) == "A"
    assert read("B. Dee", CHOICES) is None  # the text of another option
    assert read("B. Bob or D", CHOICES) is None


def test_two_options_with_one_text_need_the_letter() -> None:
    assert read("same", ["same", "same", "other"]) is None
    assert read("B. same", ["same", "same", "other"]) == "B"


def test_letters_end_with_the_choices() -> None:
    assert read("E", CHOICES) == "E"
    assert read("E", CHOICES[:4]) is None
