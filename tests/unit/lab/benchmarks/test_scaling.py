"""Scaling on paper: the arithmetic, by hand, and that docs/benchmarks.md has what is computed."""

import pytest
from click.testing import CliRunner
from msgspec import structs

from lab.benchmarks.report.markers import DOCUMENT
from lab.benchmarks.scaling import __main__ as command
from lab.benchmarks.scaling.document import SECTIONS, written
from lab.benchmarks.scaling.measurements import FIGURES, Figures, Measurement
from lab.benchmarks.scaling.model import (
    Limit,
    Machines,
    Model,
    Prices,
    Workload,
    first_limit,
)
from schemas.limits import GIB, KIB, MIB, PUBLISHERS_MAX


def figures(**values: float) -> Figures:
    """All of them 1, but for these."""
    return Figures(
        **{
            name: Measurement(values.get(name, 1.0), "", "", "")
            for name in Figures.__struct_fields__
        }
    )


LOAD = Workload(
    engines=100, ranks=2, blocks_per_s=200, messages_per_s=10, queries_per_s=3, held=1_000
)


def test_a_role_pays_for_messages_records_and_blocks() -> None:
    model = Model(
        figures=figures(
            worker_message_cpu=2,
            worker_record_cpu=30,
            worker_block_cpu=5,
            embedded_stored_cpu=4,
            embedded_removed_cpu=2,
        )
    )
    # 10 messages, 10 records, 200 blocks that are removed, too, for half of what storing takes.
    assert model.worker_cores(LOAD) == pytest.approx((20 + 300 + 200 * 5 * 1.5) * 1e-6)


def test_a_bridge_pays_for_silent_publishers() -> None:
    model = Model(figures=figures(silent_publisher_cpu=50))
    # 2 publishers; 10 messages, 10 records, 200 blocks, stored and removed, at 1 us.
    assert model.bridge_cores(LOAD) == pytest.approx((100 + 10 + 10 + 400) * 1e-6)


def test_a_window_makes_one_record_of_all_messages_in_it() -> None:
    model = Model()
    assert model.records_per_s(LOAD) == 10
    assert model.records_per_s(structs.replace(LOAD, messages_per_s=1000)) == 40  # 20 of each rank
    assert model.records_per_s(structs.replace(LOAD, window_ms=1000)) == 2


def test_messages_share_turns_of_one_process() -> None:
    alone = Workload(engines=10, blocks_per_s=0, messages_per_s=10, queries_per_s=0)
    model = Model(
        figures=figures(silent_publisher_cpu=0, lone_message_cpu=1_000, embedded_message_cpu=100)
    )
    assert model.embedded_cores(alone) == pytest.approx(0.1)  # 100 messages, as many turns
    many = structs.replace(alone, engines=100)
    assert model.embedded_cores(many) == pytest.approx(0.2)  # 1,000 messages in 200 turns
    most = structs.replace(alone, engines=1_000)
    assert model.embedded_cores(most) == pytest.approx(1.0)  # 10,000 messages at 100 us


def test_bytes_of_the_topics() -> None:
    model = Model(figures=figures(record_bytes=60, stored_bytes=40, removed_bytes=8, row_bytes=24))
    assert model.events_bytes_per_s(LOAD) == 10 * 60 + 200 * 48
    # 400 changes; and a dump of the live state for each 1.25 times of it in deltas.
    assert model.table_bytes_per_s(LOAD) == pytest.approx(400 * 24 * 1.8)


def test_what_is_stored_is_kept_for_the_retention_in_each_copy() -> None:
    model = Model(
        figures=figures(record_bytes=0, stored_bytes=40, removed_bytes=10),
        machines=Machines(replication=2),
    )
    needs = model.needs(structs.replace(LOAD, retention_hours=2))
    assert needs.events_bytes_per_s == 100 * 200 * 50
    assert needs.events_stored == 100 * 200 * 50 * 7200 * 2
    assert needs.table_stored == 100 * 1_000 * 2  # a row of 1 byte, once, in two copies


def test_each_replica_has_the_whole_table() -> None:
    needs = Model(figures=figures(block_memory=44, process_memory=100)).needs(LOAD)
    assert needs.replica_memory == 100 * MIB + 100 * 1_000 * 44
    assert needs.worker_memory == 100 * MIB + 100 * 1_000 * 44 / needs.workers


def test_processes_are_as_many_as_keep_them_half_busy_and_one_bridge_and_replica_more() -> None:
    model = Model(figures=figures(bridge_block_cpu=50, worker_block_cpu=60, query_cpu=10_000))
    needs = model.needs(LOAD)
    assert needs.bridge_cores == pytest.approx(100 * (2 + 10 + 10 + 200 * 50 * 2) * 1e-6)  # 2.0
    assert needs.bridges == 5 + 1
    assert needs.worker_cores == pytest.approx(2.402)
    assert needs.workers == 5
    assert needs.partitions == 16  # twice the workers, so that more may come
    assert needs.replicas == 3 + 1  # three cores of queries, two of a replica half busy


def test_an_answer_without_hits_only_grows_with_the_engines() -> None:
    model = Model(figures=figures(query_cpu=30, listed_instance_cpu=0.5))
    assert model.needs(LOAD).full_query_us == 30 + 100 * 0.5


def test_several_deployments_share_a_fleet_that_is_above_a_limit() -> None:
    model = Model()
    load = Workload(engines=4 * PUBLISHERS_MAX, blocks_per_s=0, messages_per_s=0)
    assert model.limits(load)[0].engines == PUBLISHERS_MAX
    assert model.deployments(load) == 4
    assert model.deployments(structs.replace(load, engines=load.engines + 1)) == 5
    assert model.deployments(structs.replace(load, ranks=8)) == 32


def test_an_engine_that_is_too_much_for_a_deployment_is_an_error() -> None:
    with pytest.raises(ValueError, match="within all limits, got above: CPU of a replica's fold"):
        Model().needs(Workload(engines=1, blocks_per_s=10_000_000))


def test_the_first_limit_is_the_lowest_that_is_passed() -> None:
    limits = [Limit(name=name, engines=n, remedy="") for name, n in (("a", 10), ("b", 20))]
    assert first_limit(limits, 10) is None
    found = first_limit(limits, 25)
    assert found is not None
    assert found.name == "a"


def test_limits_of_one_process() -> None:
    model = Model(
        figures=figures(block_memory=40, publisher_memory=100, process_memory=0, publisher_files=5),
        machines=Machines(memory_gib=2, open_files=20_000, busy=1.0),
    )
    load = structs.replace(LOAD, blocks_per_s=0, messages_per_s=0, queries_per_s=100, ranks=1)
    by_name = {limit.name.split()[0]: limit.engines for limit in model.embedded_limits(load)}
    assert by_name["CPU:"] == 9_900  # 100 queries and a silent publisher at 1 us; a turn is none
    assert by_name["4,096"] == 4_096
    assert by_name["open"] == (20_000 - 1_024) // 5
    assert by_name["memory,"] == GIB // (1_000 * 40 + 100 * KIB)


def test_a_longer_window_is_taken_where_the_fleet_is_above_a_limit() -> None:
    model = Model()
    few, many = Workload(engines=10), Workload(engines=10_000)
    assert model.windowed(few) == few
    assert model.windowed(many).window_ms == 1_000
    assert model.deployments(model.windowed(many)) < model.deployments(many)


def test_costs_are_of_cores_memory_and_disks() -> None:
    free = Prices(core_hour=0, memory_gib_hour=0, disk_gib_month=0)
    needs = Model().needs(LOAD)

    def cost(**price: float) -> float:
        return Model(prices=structs.replace(free, **price)).needs(LOAD).cost_a_month

    assert cost() == 0
    assert cost(core_hour=2) == pytest.approx(needs.reserved_cores * 2 * 730)
    assert cost(memory_gib_hour=3) == pytest.approx(needs.memory / GIB * 3 * 730)
    disks = needs.events_stored + needs.table_stored
    assert cost(disk_gib_month=5) == pytest.approx(disks / GIB * 5)


def test_every_figure_says_where_it_was_measured() -> None:
    for name in Figures.__struct_fields__:
        figure = getattr(FIGURES, name)
        assert figure.source, name
        assert figure.what, name
        assert figure.value > 0, name


def test_the_document_has_what_is_computed_now() -> None:
    text = DOCUMENT.read_text()
    assert written(text, Model()) == text, "run `python -m lab.benchmarks.scaling --write`"


def test_other_figures_make_another_document() -> None:
    text = DOCUMENT.read_text()
    other = written(text, Model(machines=Machines(memory_gib=1)))
    assert other != text
    assert written(other, Model()) == text


def test_a_document_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="one pair of the markers of `assumed`, got: 0"):
        written("# Scaling", Model())


def test_the_command_prints_all_tables() -> None:
    shown = CliRunner().invoke(command.main, [], catch_exceptions=False).output
    for lines in SECTIONS.values():
        assert "\n".join(lines(Model())) in shown
