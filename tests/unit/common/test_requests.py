"""Requests: ids, seeds and orders (pain 21)."""

from common.requests import arrange, derive_seed, group_name, group_requests


def test_seeds_differ_in_every_part_and_never_change() -> None:
    """3 seeds, 4 rounds, 8 groups, 8 members: 768 different numbers of 62 bits, one of them pinned for all machines."""
    parts = [(s, r, g, m) for s in range(3) for r in range(4) for g in range(8) for m in range(8)]
    seeds = [derive_seed(*part) for part in parts]
    assert len(set(seeds)) == 768 and all(0 <= seed < 2**62 for seed in seeds)
    assert seeds == [derive_seed(*part) for part in parts]
    assert derive_seed(0, 0, 0, 0) == 4331259340555509608


def test_parts_of_a_seed_do_not_run_into_each_other() -> None:
    """Group 1, member 11 is not group 11, member 1."""
    assert derive_seed(0, 0, 1, 11) != derive_seed(0, 0, 11, 1) != derive_seed(0, 1, 1, 1)


def test_a_group_has_k_requests_of_one_prompt_and_order() -> None:
    """Ids say round, group and member."""
    requests = group_requests(3, 17, (1, 2), 4, seed=5)
    assert [request.request_id for request in requests] == [f"r3/g17/m{member}" for member in range(4)]
    assert {(request.group_id, request.order, request.prompt_ids) for request in requests} == {(group_name(3, 17), 17, (1, 2))}
    assert [request.member for request in requests] == [0, 1, 2, 3] and len({request.seed for request in requests}) == 4


def test_orders_hold_the_same_requests() -> None:
    """Grouped, interleaved and shuffled differ in their order alone."""
    groups = [group_requests(0, order, (order,), 3, seed=0) for order in range(4)]
    places = {
        name: [(request.order, request.member) for request in arrange(groups, name, 9)]
        for name in ("grouped", "interleaved", "shuffled")
    }
    assert places["grouped"] == [(order, member) for order in range(4) for member in range(3)]
    assert places["interleaved"] == [(order, member) for member in range(3) for order in range(4)]
    assert places["shuffled"] not in (places["grouped"], places["interleaved"])
    assert sorted(places["shuffled"]) == places["grouped"]
