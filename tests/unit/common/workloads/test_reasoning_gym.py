"""Generated problems: reproducible, mixed as asked, faults in one line."""

from collections import Counter
from typing import Any

import pytest

from common.config import WorkloadConfig
from common.errors import ConfigError
from common.workloads.plain import decode, encode
from common.workloads.reasoning_gym import generate_rows
from common.workloads.rows import Row

SHORT = {"name": "chain_sum", "weight": 0.7, "min_terms": 2, "max_terms": 4}
LONG = {"name": "chain_sum", "weight": 0.3, "min_terms": 8, "max_terms": 14}


def rows(name: str, size: int = 20, seed: int = 0, **options: Any) -> list[Row]:
    return list(generate_rows(WorkloadConfig(name=f"reasoning_gym:{name}", options=options, size=size, seed=seed)))


def test_the_same_seed_gives_the_same_problems_and_neighbouring_seeds_share_none() -> None:
    first, again, other = (rows("chain_sum", seed=seed, min_digits=6, max_digits=9) for seed in (0, 0, 1))
    assert first == again
    assert not {row.question for row in first} & {row.question for row in other}


def test_parameters_reach_the_data_set() -> None:
    for row in rows("chain_sum", min_terms=3, max_terms=3):
        assert row.task["entry"]["metadata"]["num_terms"] == 3


def test_a_mix_draws_by_weight_from_parts_of_the_same_name() -> None:
    mixed = rows("mix", size=1000, datasets=[SHORT, LONG])
    terms = Counter(row.task["entry"]["metadata"]["num_terms"] for row in mixed)
    assert set(terms) == {2, 3, 4, *range(8, 15)}
    # Binomial, 1000 draws at 0.7: standard deviation 14.5, so 60 is beyond four of them.
    assert abs(sum(terms[n] for n in (2, 3, 4)) - 700) < 60
    assert mixed[:50] != sorted(mixed[:50], key=lambda row: row.task["options"]["min_terms"])
    assert mixed == rows("mix", size=1000, datasets=[SHORT, LONG])


def test_a_mix_may_hold_different_data_sets() -> None:
    mixed = rows("mix", size=40, datasets=[{"name": "gcd"}, {"name": "lcm"}])
    assert {row.task["dataset"] for row in mixed} == {"gcd", "lcm"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chian_sum", {}, r"^workload\.name: must be a reasoning-gym data set, got 'chian_sum'; did you mean chain_sum\?"),
        ("qqqqqq", {}, r"^workload\.name: .*; `rolloutpipe workloads --generated` lists the names"),
        ("composite", {}, r"^workload\.name: .*; use reasoning_gym:mix"),
        (
            "chain_sum",
            {"min_term": 2},
            r"^workload\.options\.min_term: is no setting of chain_sum, got 2; did you mean min_terms\?",
        ),
        ("chain_sum", {"min_terms": 0}, r"^workload\.options: must suit chain_sum, got .*\(min_terms must be positive\)"),
        ("chain_sum", {"min_terms": "two"}, r"^workload\.options: must suit chain_sum"),
        ("chain_sum", {"seed": 3}, r"^workload\.options\.seed: is set for the whole workload, got 3; use workload\.seed"),
        ("mix", {}, r"^workload\.options: must be \{datasets: \[\.\.\.\]\} for reasoning_gym:mix"),
        ("mix", {"datasets": []}, r"^workload\.options: must be \{datasets"),
        ("mix", {"datasets": ["gcd"]}, r"^workload\.options\.datasets\.0: must be \{name, weight, \.\.\.\}, got 'gcd'"),
        ("mix", {"datasets": [SHORT, {"name": "gdc"}]}, r"^workload\.options\.datasets\.1\.name: .* did you mean gcd\?"),
        (
            "mix",
            {"datasets": [{"name": "gcd", "weight": 0}]},
            r"^workload\.options\.datasets\.0\.weight: must be a number above 0",
        ),
        ("mix", {"datasets": [{"name": "gcd", "x": 1}]}, r"^workload\.options\.datasets\.0\.x: is no setting of gcd"),
    ],
)
def test_a_fault_is_one_line_with_field_and_remedy(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        list(generate_rows(WorkloadConfig(name=f"reasoning_gym:{name}", options=options)))
    assert "\n" not in str(caught.value)


def test_tuples_and_integer_keys_go_through_json_unchanged() -> None:
    value = {"a": (1, [2, (3,)]), "b": {1: "x", (1, 2): None}, "c": {"plain": True}}
    assert decode(encode(value)) == value
    assert encode({"plain": [1, "x", None]}) == {"plain": [1, "x", None]}
