"""Salts, images and adapters in queries, against what vLLM's released code publishes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.wire import open_source
from query_api.http.requests.block_keys import (
    EXTRA_KEYS_BYTES_MAX,
    KEYED_BLOCKS_MAX,
    MEDIA_KEYS_BYTES_MAX,
    MEDIA_MAX,
)
from reprise.application import create_app
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.events import StoredBlocks, encode_events, extra_key
from schemas.limits import NAME_BYTES_MAX
from streams.kernel import array_packer, open_kernel
from tests.fakes import AsgiClient, FakeTable, registration
from tests.strategies import u32s, u64s

CAPTURED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "vectors" / "vllm-extra-keys.json").read_text()
)
VERSIONS = sorted({one["version"] for one in CAPTURED})
CASES = sorted({one["case"] for one in CAPTURED})
BARE = {"0.17.0", "0.18.0"}
"""Releases whose events name an image alone, and not where it begins."""

A, B = "a3f1" * 16, "b7d2" * 16


@pytest.fixture(params=["reference", "rust"])
def table(request: pytest.FixtureRequest) -> FakeTable:
    return FakeTable(open_kernel(1337, name=request.param))


@pytest.fixture(params=["python", "kernel"])
def packer(request: pytest.FixtureRequest) -> ArrayPacker:
    return PythonArrayPacker() if request.param == "python" else array_packer()


@pytest.fixture
def client(table: FakeTable) -> AsgiClient:
    return AsgiClient(create_app(table, table))


def captured(case: str, version: str) -> dict[str, Any]:
    (found,) = (one for one in CAPTURED if (one["case"], one["version"]) == (case, version))
    return found


def publish(table: FakeTable, packer: ArrayPacker, name: str, of: dict[str, Any]) -> None:
    """What a release has sent comes by an instance of that name."""
    registered = registration(name, endpoint=f"tcp://127.0.0.1:{2000 + len(table.registrations)}")
    publisher, source = table.add(registered), open_source(registered, packer)
    for number, payload in enumerate(of["payloads_hex"]):
        frames = [b"", number.to_bytes(8, "big"), bytes.fromhex(payload)]
        batch = source.decode(frames)
        assert batch.dropped == []
        table.kernel.apply(publisher, encode_events(batch.events), -1)


def asked(one: dict[str, Any], **fields: Any) -> dict[str, Any]:
    texts = {name: one[name] for name in ("cache_salt", "lora_name")}
    return {"model": "m", "block_size": 4, "token_ids": one["token_ids"], **texts, **fields}


def held(client: AsgiClient, body: dict[str, Any], *, msgpack: bool = False) -> dict[str, int]:
    """What each instance holds of it, in tokens."""
    if msgpack:
        reply = client.post_msgpack("/query", body)
        found = reply.document()["instances"] if reply.status == 200 else reply.document()
    else:
        reply = client.post_json("/query", body)
        found = json.loads(reply.body).get("default", {})
    assert reply.status == 200, reply.body
    return {name: one["longest_matched"] for name, one in found.items()}


def rows_of(one: dict[str, Any]) -> list[Any]:
    """Its extra keys, with the digests of embeddings as they were sent."""
    if not one["case"].startswith("embeddings"):
        return list(one["extra_keys"])
    return [[*row[:-1], bytes.fromhex(row[-1])] for row in one["extra_keys"]]


def features_of(one: dict[str, Any]) -> dict[str, Any]:
    """As vLLM's `/render` answers it, with tensors."""
    places = [{"offset": item["offset"], "length": item["length"]} for item in one["media"]]
    return {
        "mm_hashes": {"image": [item["hash"] for item in one["media"]]},
        "mm_placeholders": {"image": places},
        "kwargs_data": {"image": ["AAAA" for _ in one["media"]]},
    }


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("embeddings")])
def test_media_find_what_each_release_has_published(
    table: FakeTable, client: AsgiClient, packer: ArrayPacker, case: str
) -> None:
    for version in VERSIONS:
        publish(table, packer, version, captured(case, version))
    one = captured(case, VERSIONS[-1])
    expected = dict.fromkeys(VERSIONS, 20)
    if case == "a turn that begins where an image ended":
        # These releases key the turn's first block by the image before it, as no other turn does.
        expected |= dict.fromkeys(BARE, 8)
    assert held(client, asked(one, media=one["media"])) == expected
    assert held(client, asked(one, media=one["media"][::-1]), msgpack=True) == expected
    assert held(client, asked(one, features=features_of(one))) == expected


@pytest.mark.parametrize("case", CASES)
def test_rows_as_events_have_them_find_the_whole_prompt(
    table: FakeTable, client: AsgiClient, packer: ArrayPacker, case: str
) -> None:
    for version in VERSIONS:
        one = captured(case, version)
        publish(table, packer, version, one)
        rows = rows_of(one)
        # The salt and the adapter may stand in the rows alone, or beside them alone.
        texts = (one["cache_salt"], one["lora_name"])
        beside = [[key for key in row or () if key not in texts] for row in rows]
        for body in (
            asked(one, extra_keys=rows),
            asked(one, extra_keys=rows, cache_salt="", lora_name=""),
            asked(one, extra_keys=beside),
        ):
            assert held(client, body, msgpack=True)[version] == 20
            if not case.startswith("embeddings"):
                assert held(client, body)[version] == 20


@pytest.mark.parametrize("version", VERSIONS)
def test_of_two_images_with_the_same_placeholders_each_is_found_by_its_own(
    table: FakeTable, client: AsgiClient, packer: ArrayPacker, version: str
) -> None:
    one = captured("image A", version)
    publish(table, packer, "a", one)
    publish(table, packer, "b", captured("image B", version))
    assert held(client, asked(one)) == {"a": 4, "b": 4}, "plain: up to before the image"
    assert held(client, asked(one, media=one["media"])) == {"a": 20, "b": 4}
    of_b = [one["media"][0] | {"hash": B}]
    assert held(client, asked(one, media=of_b)) == {"a": 4, "b": 20}
    elsewhere = [one["media"][0] | {"offset": 7}]
    expected = {"a": 4, "b": 4} if version not in BARE else {"a": 20, "b": 4}
    assert held(client, asked(one, media=elsewhere)) == expected
    assert held(client, asked(one, media=one["media"], cache_salt="blue")) == {"a": 0, "b": 0}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_adapter_in_the_keys_is_a_level_and_the_salt_and_images_stay_keys(
    table: FakeTable, client: AsgiClient, packer: ArrayPacker, version: str
) -> None:
    one = captured("adapter, image A, salt", version)
    publish(table, packer, "a", one)
    media = one["media"]
    assert held(client, asked(one, media=media)) == {"a": 20}
    assert held(client, asked(one, media=media, cache_salt=None)) == {"a": 0}
    assert held(client, asked(one)) == {"a": 4}
    assert held(client, asked(one, media=media, lora_name=None)) == {"a": 0}


@pytest.mark.parametrize(("length", "is_found"), [(3, False), (5, True)])
def test_an_image_called_like_a_salt_does_not_find_the_salted_blocks(
    table: FakeTable, client: AsgiClient, length: int, is_found: bool
) -> None:
    """Within the first block vLLM 0.17 would key it as a salt; beyond, no salt is keyed so."""
    rows: list[list[object] | None] = [["user-7"], ["user-7"] if is_found else None]
    of_salt = StoredBlocks(
        sequence=0,
        hashes=u64s([1, 2]),
        tokens=u32s([*range(8)]),
        block_size=4,
        extra_keys=tuple(extra_key(one or []) for one in rows),
    )
    table.kernel.apply(table.add(registration("a")), encode_events([of_salt]), -1)
    body = {"model": "m", "block_size": 4, "token_ids": list(range(8))}
    media = [{"hash": "user-7", "offset": 0, "length": length}]
    assert held(client, body | {"media": media}) == {"a": 8 if is_found else 0}


def test_a_text_query_matches_what_it_did(
    table: FakeTable, client: AsgiClient, packer: ArrayPacker
) -> None:
    plain = captured("text", "0.33.0")
    for case in CASES:
        publish(table, packer, case, captured(case, "0.33.0"))
    nothing: dict[str, Any] = {"media": [], "extra_keys": None, "features": None}
    found = held(client, asked(plain))
    assert found == dict.fromkeys(found, 0) | {"text": 20} | {
        "image A": 4,
        "image B": 4,
        "an image that ends with its block": 4,
        "a turn that begins where an image ended": 4,
    }
    assert held(client, asked(plain, **nothing)) == found
    assert held(client, asked(plain, extra_keys=[None] * 5)) == found


def test_a_salt_that_names_a_namespace_enters_no_block(
    table: FakeTable, client: AsgiClient, packer: ArrayPacker
) -> None:
    one = captured("image A", "0.33.0")
    registered = registration("a", additional_salt="blue")
    publisher, source = table.add(registered), open_source(registered, packer)
    for number, payload in enumerate(one["payloads_hex"]):
        frames = [b"", number.to_bytes(8, "big"), bytes.fromhex(payload)]
        table.kernel.apply(publisher, encode_events(source.decode(frames).events), -1)
    assert held(client, asked(one, media=one["media"], cache_salt="blue")) == {"a": 20}


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"extra_keys": 5}, "invalid_type", "extra_keys"),
        ({"extra_keys": ["s"]}, "invalid_type", "extra_keys"),
        ({"extra_keys": [["s"]]}, "invalid_value", "extra_keys"),
        ({"extra_keys": [["s"], *[None] * 6]}, "invalid_value", "extra_keys"),
        ({"media": {}}, "invalid_type", "media"),
        ({"media": [{"hash": A, "offset": 0}]}, "invalid_type", "media"),
        ({"media": [{"hash": "", "offset": 0, "length": 1}]}, "invalid_type", "media"),
        ({"media": [{"hash": A, "offset": -1, "length": 1}]}, "invalid_type", "media"),
        ({"media": [{"hash": A, "offset": 0, "length": 0}]}, "invalid_type", "media"),
        ({"media": [{"hash": A, "offset": 0, "length": 1, "x": 1}]}, "invalid_type", "media"),
        ({"media": [{"hash": A, "offset": 18, "length": 3}]}, "out_of_range", "media"),
        (
            {"media": [{"hash": A, "offset": at, "length": 2} for at in (4, 3)]},
            "invalid_value",
            "media",
        ),
        ({"features": []}, "invalid_type", "features"),
        ({"features": {"mm_hashes": {"image": [A]}}}, "invalid_type", "features"),
        (
            {"features": {"mm_hashes": {"image": [A]}, "mm_placeholders": {"image": []}}},
            "invalid_value",
            "features",
        ),
        (
            {
                "features": {
                    "mm_hashes": {"image": ["x" * (NAME_BYTES_MAX + 1)]},
                    "mm_placeholders": {"image": [{"offset": 0, "length": 1}]},
                }
            },
            "invalid_value",
            "features",
        ),
        ({"media": [], "extra_keys": [None] * 5}, "invalid_value", "media"),
    ],
)
@pytest.mark.parametrize("msgpack", [False, True])
def test_what_is_wrong_is_named(
    fields: dict[str, Any], reason: str, field: str, msgpack: bool
) -> None:
    table = FakeTable()
    client = AsgiClient(create_app(table, table))
    body = {"model": "m", "block_size": 4, "token_ids": list(range(20)), **fields}
    reply = client.post_msgpack("/query", body) if msgpack else client.post_json("/query", body)
    assert reply.status == 400, reply.body
    if not msgpack:
        error = json.loads(reply.body)
        assert (error["reason"], error["field"]) == (reason, field)


def test_what_is_too_much_is_refused_before_it_costs() -> None:
    table = FakeTable()
    client = AsgiClient(create_app(table, table))

    def refused(**fields: Any) -> tuple[int, str]:
        body = {"model": "m", "block_size": 1, "token_ids": [1] * 40_000, **fields}
        reply = client.post_json("/query", body)
        return reply.status, json.loads(reply.body)["reason"]

    many = [{"hash": A, "offset": at, "length": 1} for at in range(MEDIA_MAX + 1)]
    assert refused(media=many) == (413, "too_many_elements")
    whole = [{"hash": "x" * NAME_BYTES_MAX, "offset": 0, "length": 40_000}]
    assert NAME_BYTES_MAX * 40_000 > MEDIA_KEYS_BYTES_MAX
    assert refused(media=whole) == (413, "body_too_large")
    far = {"token_ids": [1] * (KEYED_BLOCKS_MAX + 1)}
    last = {"hash": A, "offset": KEYED_BLOCKS_MAX, "length": 1}
    assert refused(media=[last], **far) == (413, "too_many_elements")
    rows = [None] * KEYED_BLOCKS_MAX
    assert refused(extra_keys=[*rows, [A]], **far) == (413, "too_many_elements")
    too_long = "x" * EXTRA_KEYS_BYTES_MAX
    assert refused(extra_keys=[[too_long]]) == (413, "body_too_large")
    assert refused(media=[{"hash": too_long}]) == (413, "body_too_large")
    features: dict[str, Any] = {"mm_hashes": {"image": []}, "mm_placeholders": {"image": []}}
    long = features | {"mm_hashes": {"image": [too_long]}}
    assert refused(features=long) == (413, "body_too_large")
    tensors = features | {"kwargs_data": {"image": [too_long]}}
    small = {"model": "m", "block_size": 1, "token_ids": [1], "features": tensors}
    assert client.post_json("/query", small).status == 200
    for odd in (
        "[" * 100_000,
        "[[36893488147419103232],null]",
        '[["\\ud800"],null]',
        "[[1e999],null]",
    ):
        body = f'{{"model":"m","block_size":4,"token_ids":[1,2,3,4,5,6,7,8],"extra_keys":{odd}}}'
        reply = client.post("/query", body.encode(), content_type="application/json")
        assert reply.status == 400, reply.body


def test_where_there_is_no_place_for_them_they_are_refused(client: AsgiClient) -> None:
    url = "/query?model=m&block_size=4&extra_keys=s"
    reply = client.post(url, b"\0" * 16, content_type="application/octet-stream")
    assert reply.status == 400
    assert "stands in a body of JSON or msgpack" in json.loads(reply.body)["error"]
    body = {"model": "m", "block_size": 4, "seq_hashes": [1], "media": []}
    reply = client.post_json("/query_by_hash", body)
    assert (reply.status, json.loads(reply.body)["reason"]) == (400, "unknown_field")
