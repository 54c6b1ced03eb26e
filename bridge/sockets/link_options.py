"""What libzmq is told of a link: its defaults drop messages and never find a dead link."""

from typing import Final

import zmq

from bridge.bounds import LINK_CONNECT_MS, LINK_DEAD_MS
from bridge.sockets.bounds import LINK_RETRY_FIRST_MS, LINK_RETRY_MAX_MS
from schemas.limits import LINK_HEARTBEAT_MS, LINK_HEARTBEAT_WAIT_MS, MESSAGE_BYTES_MAX

LINK_KEEPALIVE_IDLE_S: Final = 30  # a dead host is noticed after this, and probes * interval
LINK_KEEPALIVE_INTERVAL_S: Final = 10  # between two probes of TCP
LINK_KEEPALIVE_PROBES_MAX: Final = 3  # without an answer; then the host is dead


def set_options(socket: "zmq.Socket[bytes]", *, reconnects: bool, tells_life: bool) -> None:
    """Sets all that matters of a SUB socket, and subscribes to everything.

    Args:
        socket: new.
        reconnects: whether libzmq connects again by itself once a link has ended.
        tells_life: whether the system tells of its links when something came (`LinkLife`): then
            libzmq does not find out that a peer is silent. The system knows whether the peer's host
            is there, and counts no time in which this process, or the peer, gets no core. And
            libzmq, which would have a timer for each question, looks through the timers of all
            links to take one back: with a thousand links, half of what heartbeats cost.
    """
    socket.linger = 0
    # None: libzmq forgets a link whose bound is changed, and one in messages bounds no memory. What
    # it holds is bounded by `LinkBytes`, what we hold by the inbox.
    socket.rcvhwm = 0
    socket.maxmsgsize = MESSAGE_BYTES_MAX
    socket.reconnect_ivl = LINK_RETRY_FIRST_MS if reconnects else -1
    socket.reconnect_ivl_max = LINK_RETRY_MAX_MS
    socket.connect_timeout = LINK_CONNECT_MS
    socket.heartbeat_ivl = LINK_HEARTBEAT_MS
    socket.heartbeat_timeout = 0 if tells_life else LINK_HEARTBEAT_WAIT_MS  # 0: none
    if tells_life:
        socket.tcp_maxrt = LINK_DEAD_MS
    socket.handshake_ivl = LINK_CONNECT_MS
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = LINK_KEEPALIVE_IDLE_S
    socket.tcp_keepalive_intvl = LINK_KEEPALIVE_INTERVAL_S
    socket.tcp_keepalive_cnt = LINK_KEEPALIVE_PROBES_MAX
    socket.ipv6 = True
    socket.subscribe(b"")
