"""What `/metrics` says of the gateway."""

from typing import TYPE_CHECKING, Final

from schemas.metric_family import Family, Samples, by_label, counter, counters, gauge

if TYPE_CHECKING:
    from gateway.gateway import Gateway

_FAILURES: Final = ("unreachable", "broken", "refused", "key_refused", "not_found", "broken_off")


def _answered(gateway: "Gateway") -> Samples:
    return [
        ((path, str(status)), count)
        for (path, status), count in sorted(gateway.endpoint.answered.items())
    ]


def _tries(gateway: "Gateway") -> Samples:
    return [((str(tries),), count) for tries, count in sorted(gateway.endpoint.tries.items())]


def _failures(gateway: "Gateway") -> Samples:
    return by_label({kind: gateway.endpoint.failures[kind] for kind in _FAILURES})


def _faults(gateway: "Gateway") -> int:
    parts = (gateway.placer, gateway.prompts, gateway.catalog, gateway.enrollment)
    picker = 0 if gateway.picker is None else gateway.picker.faults
    return gateway.endpoint.faults + picker + sum(one.faults for one in parts)


def _picked(gateway: "Gateway") -> Samples:
    return [] if gateway.picker is None else by_label(gateway.picker.results)


def _ended(gateway: "Gateway") -> Samples:
    return [] if gateway.picker is None else by_label(gateway.picker.ended)


GATEWAY: Final[tuple[Family["Gateway"], ...]] = (
    gauge(
        "reprise_gateway_under_way",
        "Requests of clients that an engine is sought for, or answers.",
        lambda gateway: gateway.endpoint.under_way,
    ),
    gauge(
        "reprise_gateway_held_bytes",
        "Bodies of requests that are kept while another engine may still be tried.",
        lambda gateway: gateway.held.size_bytes,
    ),
    gauge(
        "reprise_gateway_unusable_engines",
        "Registrations without an HTTP address that the gateway may send requests to.",
        lambda gateway: gateway.fleet.unusable,
    ),
    counters(
        "reprise_gateway_requests",
        "Requests of clients, by path and by the status of their answer: 499 where the client had"
        " gone, 0 where the engine broke off behind the first byte.",
        ("path", "status"),
        _answered,
    ),
    counters(
        "reprise_gateway_tries",
        "Requests of clients of the gateway, by how many engines were tried for each request.",
        ("engines",),
        _tries,
    ),
    counters(
        "reprise_gateway_failures",
        "Engines that did not answer a request of the gateway: unreachable, broken (no whole answer"
        " in HTTP, so that another one was tried), refused (408, 425, 429 and 5xx), key_refused"
        " (401 and 403 to the engine's key of engines.keys), not_found (404 where another engine"
        " could be tried), broken_off (behind the first byte, when no other one could be tried).",
        ("kind",),
        _failures,
    ),
    counter(
        "reprise_gateway_given_up",
        "Requests for which another engine was tried since theirs had become silent.",
        lambda gateway: gateway.fleet.given_up,
    ),
    counters(
        "reprise_gateway_refused",
        "Requests or connections of clients of the gateway that were refused or ended, by reason.",
        ("reason",),
        lambda gateway: by_label(gateway.refused),
    ),
    counters(
        "reprise_gateway_placed",
        "Requests that an engine was found for, by what decided: index, or load, with the reason"
        " why the index had no say.",
        ("by",),
        lambda gateway: by_label(gateway.placer.placed),
    ),
    gauge(
        "reprise_ext_proc_streams",
        "Requests of proxies that the endpoint picker was asked about, and that are under way.",
        lambda gateway: 0 if gateway.picker is None else gateway.picker.streams,
    ),
    counters(
        "reprise_ext_proc_requests",
        "Requests of proxies that the endpoint picker was asked about, by result: picked, or the"
        " code of the error that the client is answered.",
        ("result",),
        _picked,
    ),
    counters(
        "reprise_ext_proc_ended",
        "Streams of proxies to the endpoint picker that have ended, by reason: complete, refused,"
        " gone (before the answer was whole), too_slow (a body), silent, too_long, unread,"
        " malformed, no_access, too_many_streams, internal_error.",
        ("reason",),
        _ended,
    ),
    counter(
        "reprise_ext_proc_elsewhere",
        "Requests that a proxy sent to another engine than the first that it was told.",
        lambda gateway: 0 if gateway.picker is None else gateway.picker.elsewhere,
    ),
    counter(
        "reprise_gateway_internal_errors",
        "Unexpected errors of the gateway, which are logged.",
        _faults,
    ),
)
