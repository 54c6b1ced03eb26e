"""The past in the distributed form: what `reprise serve --history` answers `as_of` from."""

import time

from brokers.clients import partition_of
from query_api.past_answers import PastAnswers
from query_api.ports import Positions
from schemas.identities import StreamKey
from schemas.topics import encode_stream
from streams.history.follower import HistoryFollower


class TopicHistory(PastAnswers):
    """Implements `query_api.ports.History` over a `HistoryFollower`."""

    def __init__(self, follower: HistoryFollower) -> None:
        self._follower = follower
        super().__init__(
            follower.tables,
            positions_at=self._positions_of_time,
            partition_of=self._partition_of,
            look=follower.logs.look,
        )

    def _positions_of_time(self, seconds: float) -> Positions:
        return self._follower.logs.positions_at(seconds, now=time.time())

    def _partition_of(self, stream: StreamKey) -> int:
        return partition_of(encode_stream(stream), len(self._follower.logs.logs))
