"""The answer of `GET /memory`."""

from collections.abc import Iterable

from query_api.access.rights import Access
from query_api.http.memory_models import MemoryInstance, MemorySegment, MemoryView
from query_api.ports import SegmentView, View
from schemas.registration import Registration


def memory_document(segments: Iterable[SegmentView], view: View | None = None) -> MemoryView:
    """The answer of `GET /memory`.

    Args:
        view: says how far answers of an instance can be trusted; None where nobody knows.
    """
    shown = [_segment(one, view) for one in segments]
    return MemoryView(count=len(shown), segments=shown)


def shown_segments(segments: Iterable[SegmentView], access: Access) -> list[SegmentView]:
    """Those that the caller may see: of which an instance of its tenants is told, and no others'
    instances.
    """
    if access.tenants is None:
        return list(segments)
    found = []
    for one in segments:
        own = tuple(each for each in one.instances if access.admits(each.tenant_id))
        if own:
            found.append(one._replace(instances=own))
    return found


def _segment(one: SegmentView, view: View | None) -> MemorySegment:
    state = one.state
    return MemorySegment(
        host=one.key.host,
        segment=one.key.segment,
        state=one.standing.value,
        total=state.total,
        used=state.used,
        preallocated=state.preallocated,
        pressure=round(state.pressure, 6),
        instances=[_instance(registration, view) for registration in one.instances],
        writer=state.writer,
        age=round(one.age_s, 3),
        observed_at=state.observed_at,
        changed_at=state.changed_at,
        since=state.since,
        inode=state.inode,
        bridge=state.bridge,
    )


def _instance(registration: Registration, view: View | None) -> MemoryInstance:
    standing = None if view is None else view.standing(registration.publisher)
    return MemoryInstance(
        tenant_id=registration.tenant_id,
        model_name=registration.model_name,
        instance_id=registration.instance_id,
        dp_rank=registration.dp_rank,
        state="" if standing is None else standing.state.value,
        reason="" if standing is None else str(standing.reason),
    )
