"""How queries are answered over HTTP where a request does not say it."""

from query_api.http.wire import Wire
from schemas.setting import part, setting


@part
class HttpSettings:
    """What the table `http` says.

    Attributes:
        default_wire: where it is msgpack, an unknown path has Conductor's own answer, too.
    """

    only_exact: bool = setting(
        "http.only_exact",
        "Leave instances out of answers that are not `exact`, unless asked by ?only=all.",
        flag="--only-exact",
        default=False,
    )
    default_wire: Wire = setting(
        "http.wire",
        "The form of requests that name none, and of their answers, as GET /services. msgpack:"
        " as Mooncake Conductor, also for unknown paths and methods.",
        flag="--wire",
        default=Wire.JSON,
    )
