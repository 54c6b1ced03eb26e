from lmcache_adapter.worker.keys import LMCACHE_LOCATIONS_MAX, Budget, Keys


def held(keys: Keys) -> dict[str, set[int]]:
    return {location: set(found) for location, found in keys}


def test_a_budget_takes_all_or_none() -> None:
    budget = Budget(10)
    assert budget.take(9)
    assert budget.is_full
    assert not budget.take(2)
    assert budget.take()
    budget.give_back(5)
    assert (budget.used, budget.is_full) == (5, False)


def test_keys_are_of_their_location() -> None:
    budget = Budget(10)
    keys = Keys(budget)
    for location in ("x", "y"):
        at = keys.at(location)
        assert at is not None
        assert keys.add(at, 1)
    at = keys.at("x")
    assert at is not None
    keys.remove(at, 1)
    assert held(keys) == {"x": set(), "y": {1}}
    assert (len(keys), budget.used) == (1, 1)


def test_what_replaces_a_location_takes_its_place_or_leaves_it_empty() -> None:
    budget = Budget(3)
    keys = Keys(budget)
    assert keys.replace("x", [1, 2, 2])
    assert held(keys) == {"x": {1, 2}}
    assert keys.replace("x", [3])
    assert (held(keys), budget.used) == ({"x": {3}}, 1)
    assert not keys.replace("x", range(4))
    assert (held(keys), budget.used) == ({"x": set()}, 0)


def test_there_is_no_room_for_ever_more_locations() -> None:
    keys = Keys(Budget(10))
    for number in range(LMCACHE_LOCATIONS_MAX):
        assert keys.at(str(number)) is not None
    assert keys.at("more") is None
    assert not keys.replace("more", [1])
    assert keys.at("0") is not None


def test_cleared_keys_are_given_back() -> None:
    budget = Budget(10)
    keys = Keys(budget)
    keys.replace("x", [1, 2])
    keys.clear()
    assert (held(keys), budget.used) == ({}, 0)
