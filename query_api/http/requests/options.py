"""What a query's URL asks of its answer, beside what the body asks of the table.

    ?detail=1      each instance of the scope with its state, reason and since
    ?only=exact    instances whose state is not `exact` are left out

Other parameters mean nothing, as in Conductor.
"""

from typing import NamedTuple
from urllib.parse import parse_qsl

from query_api.http.errors import RequestError
from schemas.limits import URL_PARAMETERS_MAX

_YES = ("1", "true")
_NO = ("0", "false", "")


class AnswerOptions(NamedTuple):
    """How an answer is to be given."""

    detail: bool = False
    only_exact: bool = False


def read_options(query_string: bytes, default: AnswerOptions) -> AnswerOptions:
    """The options of one request.

    Args:
        query_string: of its URL, as received.
        default: where it names none.

    Raises:
        RequestError: a value that no option has.
    """
    options = default
    text = query_string.decode("latin-1")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=URL_PARAMETERS_MAX)
    except ValueError as error:
        raise RequestError(
            "too_many_parameters", f"expected at most {URL_PARAMETERS_MAX} URL parameters"
        ) from error
    for name, value in pairs:
        if name == "detail":
            if value not in _YES + _NO:
                raise RequestError("invalid_parameter", f"detail must be 1 or 0, got: {value[:64]}")
            options = options._replace(detail=value in _YES)
        elif name == "only":
            if value not in ("exact", "all"):
                raise RequestError(
                    "invalid_parameter", f"only must be exact or all, got: {value[:64]}"
                )
            options = options._replace(only_exact=value == "exact")
    return options
