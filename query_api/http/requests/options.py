"""What a query's URL asks of its answer, beside what the body asks of the table.

    ?detail=1      each instance of the scope with its state, reason and since
    ?only=exact    instances whose state is not `exact` are left out
    ?hits_only=1   instances that hold nothing of the prompt are left out

Other parameters mean nothing, as in Conductor; where the body is octets, they are the query's
fields.
"""

from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from query_api.http.errors import RequestError
from schemas.limits import URL_PARAMETERS_MAX

_YES = ("1", "true")
_NO = ("0", "false", "")


class AnswerOptions(NamedTuple):
    """How an answer is to be given."""

    detail: bool = False
    only_exact: bool = False
    hits_only: bool = False


OPTION_NAMES: Final = frozenset({"detail", "only", "hits_only"})


def read_parameters(url_query: bytes, *, errors: str = "replace") -> list[tuple[str, str]]:
    """What stands behind the `?` of a URL, in order.

    Args:
        url_query: as received.
        errors: what becomes of bytes that are no UTF-8; `strict`: they are refused.

    Raises:
        RequestError: more than URL_PARAMETERS_MAX; and see `errors`.
    """
    try:
        text = url_query.decode("ascii" if errors == "strict" else "latin-1")
        return parse_qsl(
            text, keep_blank_values=True, errors=errors, max_num_fields=URL_PARAMETERS_MAX
        )
    except UnicodeDecodeError as error:
        raise RequestError(
            "invalid_parameter", "expected URL parameters in UTF-8, percent-encoded"
        ) from error
    except ValueError as error:
        raise RequestError(
            "too_many_parameters", f"expected at most {URL_PARAMETERS_MAX} URL parameters"
        ) from error


def read_options(query_string: bytes, default: AnswerOptions) -> AnswerOptions:
    """The options of one request.

    Args:
        query_string: of its URL, as received.
        default: where it names none.

    Raises:
        RequestError: a value that no option has.
    """
    options = default
    for name, value in read_parameters(query_string):
        if name in ("detail", "hits_only"):
            if value not in _YES + _NO:
                raise RequestError("invalid_parameter", f"{name} must be 1 or 0, got: {value[:64]}")
            options = options._replace(**{name: value in _YES})
        elif name == "only":
            if value not in ("exact", "all"):
                raise RequestError(
                    "invalid_parameter", f"only must be exact or all, got: {value[:64]}"
                )
            options = options._replace(only_exact=value == "exact")
    return options
