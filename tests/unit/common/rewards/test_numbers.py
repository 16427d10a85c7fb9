"""Numbers as text: which are read, to which exact value, and which text is no number."""

import random
from decimal import Decimal
from fractions import Fraction

import pytest

from common.rewards.names import is_symbol
from common.rewards.numbers import Number, power_of_ten, read, same
from common.rewards.units import is_unit

CHARGE = Fraction(16, 10) / 10**19


@pytest.mark.parametrize(
    "text",
    [
        "1.6e-19",
        "1.6E-19",
        r"1.6 \times 10^{-19}",
        r"1.6\cdot10^{-19}",
        r"1.6 \cdot 10^-19",
        "1.6 × 10^-19",
        "1.6×10⁻¹⁹",
        "1.6·10^{−19}",
        "1.6*10**-19",
        "1.6*10^(-19)",
        "1.6 x 10^-19",
        "+1.60e-19",
        r"$1.6 \times 10^{-19}$",
        r"1.6 \times 10^{-19} \, \mathrm{C}",
        r"q = 1.6 \times 10^{-19}\ \text{C}",
        r"q_e \approx 1.6e-19",
        "0.00000000000000000016",
        "１．６e-19",
        r"\frac{1.6}{10000000000000000000}",
    ],
)
def test_ways_to_write_a_small_number(text: str) -> None:
    found = read(text)
    assert found is not None and found.value == CHARGE


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,000", 1000),
        ("1{,}000", 1000),
        (r"1\,000", 1000),
        ("1 000", 1000),
        (r"1\ 000", 1000),
        ("1\u202f000", 1000),
        (r"11,\! 111,\! 111,\! 100", 11111111100),
        (r"\$1,000.00", 1000),
        (r"\$32,\!348", 32348),
        ("1,234,567.5", Fraction("1234567.5")),
        ("−5", -5),
        ("–5", -5),
        ("- 5", -5),
        ("+65.49", Fraction("65.49")),
        (".0000672", Fraction("0.0000672")),
        ("5.", 5),
        ("007", 7),
        ("-0", 0),
        ("10^{-3}", Fraction(1, 1000)),
        ("1e5", 100_000),
        ("3 million", 3_000_000),
        (r"\frac{1}{3}", Fraction(1, 3)),
        (r"\dfrac13", Fraction(1, 3)),
        (r"\frac 59", Fraction(5, 9)),
        (r"\frac{270}7\text{ degrees}", Fraction(270, 7)),
        ("1/3", Fraction(1, 3)),
        (r"-\frac{35}{9}", Fraction(-35, 9)),
        (r"\frac{-35}{9}", Fraction(-35, 9)),
        (r"1\frac{4}{5}", Fraction(9, 5)),
        (r"137 \frac{1}{2}", Fraction(275, 2)),
        ("1 1/2", Fraction(3, 2)),
        (r"\text{5}", 5),
        (r"\boxed{5}", 5),
        ("**5**", 5),
        ("x = 3.2", Fraction("3.2")),
        (r"\approx 3.2", Fraction("3.2")),
        (r"v_{\text{max}} = 3.2", Fraction("3.2")),
        (r"\Delta H = -3.2\ \mathrm{kJ\,mol^{-1}}", Fraction("-3.2")),
        ("P(X = 3) = 0.25", Fraction(1, 4)),
        ("about 5", 5),
    ],
)
def test_values(text: str, value: Fraction) -> None:
    found = read(text)
    assert found is not None and found.value == value


@pytest.mark.parametrize(
    "unit",
    [
        "m/s",
        " m/s",
        " kg·m/s^2",
        r"\,\mathrm{m/s}",
        r"\ \mathrm{~J} \mathrm{~mol}^{-1} \mathrm{~K}^{-1}",
        r"\text{ dollars}",
        " dollars per hour",
        " km",
        "km",
        r"^\circ",
        r"^{\circ} \mathrm{C}",
        "°",
        " degrees",
        " cm²",
        r"\ \frac{\text{m}}{\text{s}}",
        r"\,\Omega",
        " ft-lb",
        r"\ \mathrm{N\cdot m^2/C}",
        " sandwiches left",
        " $",
    ],
)
def test_a_unit_changes_nothing(unit: str) -> None:
    found = read(f"3.2{unit}")
    assert found is not None and found.value == Fraction("3.2") and not found.is_percent


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "3 or 4",
        "between 3 and 4",
        "3.2.1",
        "1,2,3",
        "12,34",
        "1,0000",
        "3 - 5",
        "3 – 5",
        "2+3",
        "5x",
        "5 n",
        "2k",
        r"2\pi",
        "5!",
        "5^2",
        "52_8",
        "12-25-2020",
        "12/25/2020",
        "1.2.3-rc",
        "3:30",
        "1,2",
        "5 feet 3 inches",
        r"5\pm 1",
        "5 or",
        "not 5",
        "5 not",
        "5 dozen",
        "5 halves",
        "5 five",
        r"5 \text{ or } 6",
        "x = 3 = 4",
        "x = 1 or x = 5",
        "f(x) = x+1, f(x) = 5",
        "2x = 6",
        "1/0",
        "1e99999",
        "10^{99999}",
        "--5",
        "5 -",
        "3e",
        "3 4",
        "12 345 67",
        r"\sqrt{2}",
        "1\\frac{5}{4}",
        "5 squared",
    ],
)
def test_no_number(text: str) -> None:
    assert read(text) is None


def test_a_bare_letter_of_a_gold_is_a_factor() -> None:
    assert read("6m", has_bare_unit=False) is None
    assert read(r"\frac{1}{2}m", has_bare_unit=False) is None
    assert read("0.64N", has_bare_unit=False) is None
    assert read(r"5.4 \text{ cents}", has_bare_unit=False) == Number(Fraction("5.4"), digits=2)
    assert read("1e5", has_bare_unit=False) == Number(Fraction(100_000))


def test_percent_is_read_either_way_by_one_side_alone() -> None:
    sixty, share, percent, small = (read(text) for text in ("60", "0.6", r"60\%", "0.6%"))
    assert sixty and share and percent and small
    assert same(sixty, percent) and same(percent, sixty) and same(share, percent) and same(percent, share)
    assert not same(sixty, share) and not same(percent, small) and not same(small, percent)
    assert read("60 percent") == percent == read("60 %") == read(r"60 \text{ percent}")


def test_an_absolute_tolerance_is_in_the_units_of_the_gold() -> None:
    """4.2 % within 0.1 is 4.1 to 4.3, or 0.041 to 0.043: not 0."""
    gold = Number(Fraction("4.2"), is_percent=True)
    assert same(gold, Number(Fraction("4.3")), Fraction("0.1"), is_relative=False)
    assert same(gold, Number(Fraction("0.043")), Fraction("0.1"), is_relative=False)
    assert not same(gold, Number(Fraction(0)), Fraction("0.1"), is_relative=False)
    assert not same(gold, Number(Fraction("0.044")), Fraction("0.1"), is_relative=False)


@pytest.mark.parametrize(
    ("gold", "answer", "is_same"),
    [
        ("1/3", "0.333333", True),
        ("1/3", "0.33333", False),  # five digits
        ("1/3", "0.333", False),
        ("0.333333", "1/3", True),
        ("8/3", "2.667", False),
        ("8/3", "2.666667", True),
        ("8/3", "2.66667", False),
        ("2/3", "0.666666", True),  # cut off instead of rounded: 1e-6 of it
        ("1/4", "0.2500001", False),  # has a finite decimal, which is to be given exactly
        ("3", "3.0000000001", False),
        ("1000000", "1000001", False),
    ],
)
def test_a_long_decimal_may_stand_for_a_fraction(gold: str, answer: str, is_same: bool) -> None:
    left, right = read(gold), read(answer)
    assert left and right and same(left, right) is is_same


def test_relative_tolerance_is_inclusive_and_exact() -> None:
    gold = Number(CHARGE)
    five = Fraction(5, 100)
    assert same(gold, Number(CHARGE * Fraction(105, 100)), five) and same(gold, Number(CHARGE * Fraction(95, 100)), five)
    assert not same(gold, Number(CHARGE * Fraction(105, 100) + Fraction(1, 10**60)), five)
    assert not same(gold, Number(-CHARGE), five) and not same(gold, Number(Fraction(0)), five)
    assert same(Number(Fraction(0)), Number(Fraction(0)), five) and not same(
        Number(Fraction(0)), Number(Fraction(1, 10**30)), five
    )


def test_random_decimals_agree_with_the_decimal_module() -> None:
    chance = random.Random(0)
    for _ in range(500):
        value = Decimal(chance.randint(-(10**6), 10**6)).scaleb(chance.randint(-30, 30))
        digits, exponent = f"{value:E}".split("E")
        for text in (str(value), f"{value:f}", f"{value:,f}", rf"{digits} \times 10^{{{int(exponent)}}}", f"x={value:E} m"):
            found = read(text)
            assert found is not None and found.value == Fraction(value), text


@pytest.mark.parametrize(
    ("unit", "power"),
    [
        (r"$10^{-19} \mathrm{~J}$", -19),
        (r" $\mathrm{10^7} \mathrm{~km}$", 7),
        (r" $\mathrm{10^{-4}} \mathrm{~cm}^3/\mathrm{s}$", -4),
        (r" 10^{-5} \mathrm{~m}", -5),
        (" $\r\n10^{15} \\text { photon } \\cdot \\mathrm{s}^{-1}\r\n$", 15),
        (r" $10 ^ {-6}m/s^2$", -6),
        (r" $10^{-3} \%$", -3),
        (r" $10^{16}$ photons", 16),
        (" $10^6$ m", 6),
        (r"$10^{28} $", 28),
        (r"$\mathrm{~N} \cdot \mathrm{m}^{-1}$ ", 0),
        (r"$\mathrm{~cm}^{-1}$", 0),
        ("m/s", 0),
        ("", 0),
        ("%", 0),
        ("$", 0),
        (r"$\mathrm{m}\, 10^{-3}$", 0),  # not at the head
    ],
)
def test_power_of_ten_in_a_unit(unit: str, power: int) -> None:
    assert power_of_ten(unit) == power


@pytest.mark.parametrize(
    "text", ["x", "T_2", r"\Delta H", "f(n)", "P(X = 3)", "speed", r"v_{\max}", r"\theta", "|v|", r"\angle ABC", "x'"]
)
def test_symbols(text: str) -> None:
    assert is_symbol(text)


@pytest.mark.parametrize("text", ["2x", "x+1", "xy", "3", "", "x y", "x^2+y", r"\frac{1}{2}", r"2\pi r", "-x", "not x", "a, b"])
def test_not_one_symbol(text: str) -> None:
    assert not is_symbol(text)


@pytest.mark.parametrize(
    "text", [" 3", "x", " or 4", " + 3 m", "-3", "^2", " and", ")", " m 3", "abc", " times 4", " but not", " m-3"]
)
def test_not_a_unit(text: str) -> None:
    assert not is_unit(text)
