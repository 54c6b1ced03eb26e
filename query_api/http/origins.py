"""Which requests a web browser sends for a page of somebody else's.

A page that a user has open may have the browser send a POST to any address, this service's on the
user's own machine included. It cannot read the answer, so questions need no guard; what changes
something is refused. Programs send no `Origin`, so nothing changes for them.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from query_api.http.errors import RequestError
from query_api.http.wire import Headers, header

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


def check_origin(method: str, headers: Headers) -> None:
    """Lets through what no page of somebody else's can have caused. Cost O(headers).

    Raises:
        RequestError: 403; the request would change something, and comes from a page that is not of
            this address, or of a name that anyone may point to it.
    """
    if method in _READING:
        return
    origin = header(headers, b"origin").decode("latin-1")
    if not origin:
        return
    page, host = _netloc(origin), header(headers, b"host").decode("latin-1").lower()
    if page != host or not _is_of_this_network(page):
        text = (
            f"Expected a program, or a page of this address, got Origin `{origin[:200]}` for Host"
            f" `{host[:200]}`; call it by its IP address, or without Origin"
        )
        raise RequestError("cross_site", text, status=403)


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_of_this_network(netloc: str) -> bool:
    """Whether it is an address, or a name without a dot: any other name may be made to mean this
    address by whoever owns it ("DNS rebinding").
    """
    try:
        name = urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return False
    try:
        ip_address(name)
    except ValueError:
        return bool(name) and "." not in name
    return True
