from typing import Any

from reprise.discovery.engines import Engine, read_pod, read_slice
from reprise.discovery.membership import Membership, PodSource
from tests.kubernetes import endpoint_slice, pod

GRACE_S = 10.0


class Cluster:
    """A membership, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.membership = Membership(GRACE_S)

    def put(self, uid: str = "1", name: str = "a", **fields: Any) -> None:
        self.membership.changed(PodSource.PODS, uid, engines(name, uid, **fields), self.now)

    def delete(self, uid: str = "1", source: PodSource = PodSource.PODS) -> None:
        self.membership.deleted(source, uid, self.now)

    def wanted(self) -> list[tuple[str, str]]:
        return [(one.pod, one.uid) for one in self.membership.wanted(self.now)]


def engines(name: str, uid: str, **fields: Any) -> list[Engine]:
    found = read_pod(pod(name, uid, **fields))
    return [] if found is None else [found]


def test_a_pod_is_wanted_once_it_was_ready_and_then_for_good() -> None:
    cluster = Cluster()
    cluster.put(ready=False)
    assert cluster.wanted() == []
    cluster.put()
    assert cluster.wanted() == [("a", "1")]
    cluster.put(ready=False)
    assert cluster.wanted() == [("a", "1")], "it still has what it cached"


def test_one_that_is_gone_stays_for_the_grace() -> None:
    cluster = Cluster()
    cluster.put()
    cluster.delete()
    cluster.now += GRACE_S - 0.1
    assert cluster.wanted() == [("a", "1")]
    assert 0 < (cluster.membership.next_end(cluster.now) or 0) < 0.2
    cluster.now += 0.1
    assert cluster.wanted() == []
    assert cluster.membership.next_end(cluster.now) is None


def test_one_that_comes_under_the_same_name_takes_its_place_at_once() -> None:
    cluster = Cluster()
    cluster.put("1")
    cluster.delete("1")
    cluster.put("2")
    assert cluster.wanted() == [("a", "2")]
    cluster.now += 2 * GRACE_S
    assert cluster.wanted() == [("a", "2")]


def test_a_delete_that_comes_after_the_new_pod_is_of_the_old_one() -> None:
    cluster = Cluster()
    cluster.put("1")
    cluster.put("2")
    cluster.delete("1")
    assert cluster.wanted() == [("a", "2")]


def test_what_is_told_of_a_pod_after_its_end_comes_too_late() -> None:
    cluster = Cluster()
    cluster.put()
    cluster.delete()
    cluster.put()
    cluster.now += GRACE_S
    assert cluster.wanted() == []


def test_a_listing_is_all_that_there_is() -> None:
    cluster = Cluster()
    cluster.put("1", "a")
    cluster.put("2", "b")
    cluster.membership.listed(PodSource.PODS, {"2": engines("b", "2")}, cluster.now)
    cluster.now += GRACE_S
    assert cluster.wanted() == [("b", "2")]


def test_one_that_a_listing_missed_and_the_next_one_has_was_never_gone() -> None:
    cluster = Cluster()
    cluster.put()
    cluster.membership.listed(PodSource.PODS, {}, cluster.now)
    cluster.now += GRACE_S - 1
    cluster.membership.listed(PodSource.PODS, {"1": engines("a", "1")}, cluster.now)
    cluster.now += 10 * GRACE_S
    assert cluster.wanted() == [("a", "1")]


def test_a_pod_that_has_ended_is_gone_though_it_is_still_there() -> None:
    cluster = Cluster()
    cluster.put()
    cluster.put(phase="Failed")
    cluster.now += GRACE_S
    assert cluster.wanted() == []


def test_either_source_is_enough_and_the_pod_counts_first() -> None:
    cluster = Cluster()
    found = read_slice(endpoint_slice(pod("a", "1"), kv_events=6000))
    cluster.membership.changed(PodSource.SLICES, "s", found, cluster.now)
    assert cluster.wanted() == [("a", "1")]
    assert cluster.membership.wanted(cluster.now)[0].facts["events-port"] == "6000"
    cluster.put(events_port="7000")
    assert cluster.membership.wanted(cluster.now)[0].facts["events-port"] == "7000"
    cluster.delete("1")
    assert cluster.wanted() == [("a", "1")], "the Service still points to it"
    cluster.delete("s", PodSource.SLICES)
    cluster.now += GRACE_S
    assert cluster.wanted() == []
