"""Which instance decodes, by hand."""

from collections import deque

import pytest

from routing.estimates.decode import DecodeTerms
from routing.policies.decode_choice import (
    DecodeParameters,
    Decoder,
    DecodeRequest,
    exposed_s,
    is_separate,
    rank_decoders,
)
from schemas.routing_records import Reason

REQUEST = DecodeRequest(prompt_tokens=10_000, output_tokens=100, prefill_s=1.0)
TERMS = DecodeTerms(0.0, 0.001, 1e-7)


def decoder(name: str, **values: object) -> Decoder:
    return Decoder(name, terms=TERMS, **values)  # type: ignore[arg-type]


def order(*decoders: Decoder, request: DecodeRequest = REQUEST, **parameters: float) -> str:
    choices = rank_decoders(request, decoders, DecodeParameters(**parameters))  # type: ignore[arg-type]
    return "".join(choice.decoder.instance_id for choice in choices)


def test_the_key_by_hand() -> None:
    one = decoder("a", running=9, kv_tokens=50_000, held=2_000, move_tokens_per_s=4_000)
    (choice,) = rank_decoders(REQUEST, [one], DecodeParameters(layers=10))
    assert choice.tbt_s == pytest.approx(10 * 0.001 + 60_000 * 1e-7)
    assert choice.move_s == 2.0
    assert choice.exposed_s == pytest.approx(2.0 - 1.0 + 0.2)
    assert choice.key == pytest.approx(1.2 + 100 * 0.016)
    assert choice.reasons == ()


@pytest.mark.parametrize(
    ("move_s", "prefill_s", "layers", "seconds"),
    [(2.0, 1.0, 0, 2.0), (2.0, 1.0, 80, 1.025), (2.0, 5.0, 80, 0.025), (0.0, 1.0, 80, 0.0)],
)
def test_layers_hide_a_move(move_s: float, prefill_s: float, layers: int, seconds: float) -> None:
    assert exposed_s(move_s, prefill_s, layers) == pytest.approx(seconds)


def test_load_comes_first() -> None:
    holder = decoder("a", running=30, held=10_000, move_tokens_per_s=20_000)
    idle = decoder("b", running=5, move_tokens_per_s=20_000)
    assert order(holder, idle) == "ba"
    assert order(holder._replace(running=5), idle) == "ab"


def test_who_computes_the_prompt_waits_for_nothing() -> None:
    assert order(decoder("a", move_tokens_per_s=100), decoder("b", computes=True)) == "ba"


def test_equals_take_turns() -> None:
    assert order(decoder("a", last_chosen=7), decoder("b", last_chosen=3), decoder("c")) == "cba"


def test_equals_without_a_past_take_turns_by_the_decision() -> None:
    firsts = {
        order(*map(decoder, "abc"), request=REQUEST._replace(tie=tie))[0] for tie in range(50)
    }
    assert firsts == set("abc")


def test_nobody_starves_where_all_are_alike() -> None:
    running = dict.fromkeys("abcdef", 0)
    chosen = dict.fromkeys("abcdef", 0)
    last = dict.fromkeys("abcdef", -1)
    under_way: deque[str] = deque()
    for number in range(3_000):
        decoders = [
            decoder(
                name, running=running[name], last_chosen=last[name], held=9_000 * (name < "c")
            )._replace(move_tokens_per_s=50_000)
            for name in "abcdef"
        ]
        request = REQUEST._replace(tie=number, prefill_s=0.05)
        name = rank_decoders(request, decoders, DecodeParameters())[0].decoder.instance_id
        running[name] += 1
        chosen[name] += 1
        last[name] = number
        under_way.append(name)
        if len(under_way) > 60:
            running[under_way.popleft()] -= 1
    assert max(chosen.values()) <= 3 * min(chosen.values())


def test_what_cannot_be_chosen_comes_last_with_its_reason() -> None:
    full = decoder("a", running=8, running_max=8)
    no_room = decoder("b", kv_tokens=80_000, capacity_tokens=100_000)
    slow = decoder("c", running=99)
    good = decoder("d", running=50, running_max=64, kv_tokens=70_000, capacity_tokens=100_000)
    request = REQUEST._replace(tbt_slo_s=0.08)
    choices = rank_decoders(request, [full, no_room, slow, good], DecodeParameters())
    assert choices[0].decoder is good
    assert {one.decoder.instance_id: one.reasons for one in choices} == {
        "a": (Reason.QUEUE_FULL,),
        "b": (Reason.MEMORY,),
        "c": (Reason.SLO,),
        "d": (),
    }


def test_room_is_for_the_prompt_and_its_output() -> None:
    one = decoder("a", kv_tokens=79_900, capacity_tokens=100_000)  # and 10,100: 0.9 of it
    (fits,) = rank_decoders(REQUEST, [one], DecodeParameters())
    (does_not,) = rank_decoders(REQUEST, [one._replace(kv_tokens=79_901)], DecodeParameters())
    assert (fits.reasons, does_not.reasons) == ((), (Reason.MEMORY,))


@pytest.mark.parametrize(
    ("held", "busy_s", "separate"),
    [
        (7_953, 0.0, False),
        (7_952, 0.0, True),
        (5_905, 1.5, False),
        (5_904, 1.5, True),
    ],
)
def test_little_to_compute_is_computed_where_it_is_decoded(
    held: int, busy_s: float, separate: bool
) -> None:
    one = decoder("a", held=held)
    assert is_separate(REQUEST, one, DecodeParameters(), busy_s) is separate
