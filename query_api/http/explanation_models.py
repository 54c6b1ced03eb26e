"""What `GET /explain` answers, as types."""

from typing import Annotated

import msgspec
from msgspec import Meta

from query_api.http.models import PublishedMatch


class BlockChangeDocument(msgspec.Struct, kw_only=True):
    """What one record of the log did to a block."""

    position: Annotated[str, Meta(description="`partition:offset` of the record.")]
    time: Annotated[float, Meta(description="When its bridge wrote it, Unix seconds.")]
    kind: Annotated[str, Meta(description="Of the record.")]
    what: Annotated[
        str,
        Meta(description="`stored` or `removed`; `cleared`, or the record's kind, where all went."),
    ]
    incarnation: Annotated[int, Meta(description="Of the publisher; -1 where there is none.")]
    sequence: Annotated[int, Meta(description="Of the publisher's batch; -1 where there is none.")]
    engine_time: Annotated[float, Meta(description="Of the engine, Unix seconds; 0 for none.")]
    dp_rank: int
    medium: str
    shared: bool


class EndedByDocument(msgspec.Struct, kw_only=True):
    """The first block of the prompt that was not held."""

    block: Annotated[int, Meta(description="Which, from 0.")]
    tokens: Annotated[
        list[int],
        Meta(
            description="Its first token, and the one behind its last.", min_length=2, max_length=2
        ),
    ]
    prefix_hash: Annotated[str, Meta(description="Decimal, u64; empty: it has none.")]
    reason: Annotated[
        str,
        Meta(
            description="`not_stored`: nothing that is kept says that it ever was; `left_out`: nor"
            " that, and the instance has announced blocks that are left out, of which it may be one"
            " (`left_out` says why); `cache_group`: of a hybrid model,"
            " the cache group `group` lacks what the engine needs to reuse this block;"
            " `no_next_token`: the instance has blocks of pairs (EAGLE), and the prompt has no"
            " token behind this one; else what last ended it: `removed`, `cleared`, `reset`, ..."
        ),
    ]
    group: Annotated[
        int | None, Meta(description="The sparse cache group that ended it; null where none did.")
    ]
    changes: Annotated[
        list[BlockChangeDocument], Meta(description="What became of it up to then, the latest.")
    ]
    later: Annotated[
        BlockChangeDocument | None, Meta(description="The first thing that became of it since.")
    ]


class ExplanationDocument(msgspec.Struct, kw_only=True):
    """What an instance held of a prompt at a position, and why no more."""

    instance_id: str
    position: str
    prompt_tokens: Annotated[int, Meta(description="Of whole blocks.")]
    longest_matched: int
    match: Annotated[
        PublishedMatch | None, Meta(description="As `/query` answered; null: no part in answers.")
    ]
    ended_by: Annotated[
        EndedByDocument | None, Meta(description="null where it held the whole prompt.")
    ]
    left_out: Annotated[
        dict[str, int],
        Meta(
            description="Blocks, of any prompt, that the instance had announced and held, and that"
            " no answer counted, by reason; see `LeftOut` of `/services`."
        ),
    ]
