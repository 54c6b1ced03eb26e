"""What `reprise replay --as-publisher` does, in words."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from console.interruption import asked_to_stop
from console.progress import progress_shown
from console.terminal import printable

if TYPE_CHECKING:
    from replay.capture.reader import Capture


class SendOptions(NamedTuple):
    """The options.

    Attributes:
        endpoint, replay_endpoint: of the first publisher; "" for no replay socket.
        only: the name of the one that is sent, or None for all.
        wait_s: begin after so long, None with the first subscriber of each.
        stay_s: answer for so long after the end, None until Ctrl-C.
        speed: None for as fast as it goes.
        renumber: see `Outgoing`.
    """

    endpoint: str
    replay_endpoint: str
    only: str | None
    wait_s: float | None
    stay_s: float | None
    speed: float | None
    renumber: bool


def say_notes(capture: "Capture") -> None:
    """Says what is not whole about it."""
    for note in capture.notes:
        click.echo(printable(f"note: {note}"), err=True)
    if capture.is_partial:
        click.echo(
            "note: the range begins after its log did: blocks that were stored before are not in"
            " it, and instances that may hold some are degraded",
            err=True,
        )


def publish(file: Path, sending: SendOptions) -> tuple[bool, bool]:
    """Sends a capture out; whether it is intact, and whether all was sent.

    Raises:
        CaptureError: it cannot be read, or an address cannot be bound.
    """
    from replay.capture.errors import CaptureError
    from replay.capture.reader import Capture
    from replay.publisher import CapturePublishers
    from replay.wire_batches import Outgoing

    with Capture(file) as capture, asked_to_stop() as stopped:
        say_notes(capture)
        outgoing = Outgoing(capture, renumber=sending.renumber)
        numbers = [n for n, name in enumerate(outgoing.names) if sending.only in (None, name)]
        if not numbers:
            known = ", ".join(outgoing.names[:10]) or "none"
            raise CaptureError(f"Expected a publisher of this capture, which has: {known}")
        publishers = CapturePublishers(
            numbers, sending.endpoint, sending.replay_endpoint, stopped=stopped
        )
        try:
            for number, one in publishers.publishers.items():
                replay = f"  replay {one.replay_endpoint}" if one.replay_endpoint else ""
                click.echo(printable(f"{one.endpoint}{replay}  {outgoing.names[number]}"))
            if sending.wait_s is None:
                click.echo("waiting for a subscriber of each", err=True)
                publishers.serve_until(publishers.are_subscribed)
            else:
                publishers.serve_until(lambda: False, seconds=sending.wait_s)
            with progress_shown("Sending", "messages") as tell:
                ended = publishers.publish(outgoing, speed=sending.speed, tell=tell)
            for number, one in publishers.publishers.items():
                click.echo(printable(f"sent {one.sent}  {outgoing.names[number]}"))
            if ended:
                publishers.serve_until(lambda: False, seconds=sending.stay_s)
        finally:
            publishers.close()
        return capture.damage is None, ended
