"""Ranks that hang are named by torch's flight recorder and NCCL's RAS, as recorded and as published."""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.validation.test_checks import outcome
from validation.checks import collectives
from validation.checks.witnesses import RasWitness, flight_records
from validation.model.contract import encoded
from validation.probes import flight_recorder, nccl_ras
from validation.probes.flight_recorder import FlightError, FlightRecord
from validation.probes.nccl_ras import Lag, RasError
from validation.processes.pool import Ending, ProcessOutcome


def dump(*collectives: int, enqueued: int | str | None, state: str = "scheduled") -> dict[str, Any]:
    """The dump of `_dump_fr_trace_json` of torch 2.13.0 with gloo, recorded 2026-11-27, cut to what is read.

    One rank of two slept instead of the fifth collective. A pickle has numbers where this has text.
    """
    return {
        "entries": [
            {
                "collective_seq_id": number,
                "is_p2p": False,
                "op_id": number,
                "p2p_seq_id": 0,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "profiling_name": "gloo:barrier" if number == 4 else "gloo:all_reduce",
                "record_id": number - 1,
                "retired": number < 5,
                "state": state,
            }
            for number in collectives
        ],
        "pg_config": {"": {"desc": "", "name": "", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": enqueued, "last_started_collective": "-1"}}
        if enqueued is not None
        else {},
        "version": "2.10",
    }


def test_a_dump_of_torch_gives_the_last_collective() -> None:
    other_group = dump(9, enqueued=None) | {"entries": [dump(9, enqueued=None)["entries"][0] | {"pg_id": 1}]}
    for given, record in (
        (dump(3, 4, 5, enqueued="5"), FlightRecord(5, 5, "gloo:all_reduce", "scheduled")),
        (dump(3, 4, enqueued="4"), FlightRecord(4, 4, "gloo:barrier", "scheduled")),
        # NCCL records a collective before it is launched, and counts it as enqueued afterwards.
        (dump(4, 5, enqueued=4, state="started"), FlightRecord(5, 4, "gloo:all_reduce", "started")),
        (dump(5, enqueued=None), FlightRecord(5, 5, "gloo:all_reduce", "scheduled")),
        ({"version": "2.10"}, None),
        (other_group, None),
    ):
        assert flight_recorder.read(given) == record, given


@each(
    [],
    {"entries": {}},
    {"entries": [7]},
    {"entries": [{}] * 20_000},
    dump(5, enqueued="5", state="lost"),
    dump(5, enqueued="five"),
    dump(5, enqueued="9" * 99),
    {"entries": [{"pg_id": 0, "profiling_name": "a\x1b[31m", "state": "started", "collective_seq_id": 1}]},
)
def test_what_is_no_dump_of_torch_is_refused(given: Any) -> None:
    with pytest.raises(FlightError):
        flight_recorder.read(given)


def hung(*records: FlightRecord | None, calls: tuple[int, ...] | None = None) -> list[ProcessOutcome]:
    counted = calls or (9,) * len(records)
    return [
        outcome(
            f"rank {rank}", Ending.HUNG, "measuring all-reduce of 1 MiB", steps=7, calls=counted[rank],
            said=encoded(record) if record else "",
        )
        for rank, record in enumerate(records)
    ]  # fmt: skip


FIVE, FOUR = FlightRecord(5, 5, "nccl:all_reduce", "started"), FlightRecord(4, 4, "nccl:barrier", "completed")
IN_THE_CALL = FlightRecord(5, 4, "nccl:all_reduce", "scheduled")


def test_flight_records_name_the_rank_that_did_not_enter() -> None:
    for records, ranks, what in (
        ((FIVE, FOUR, FIVE), (1,), "did not call collective 5, nccl:all_reduce"),
        ((FIVE, IN_THE_CALL), (1,), "hangs in the call of collective 5, nccl:all_reduce"),
        ((FIVE, FIVE), (), "all called collective 5, nccl:all_reduce"),
        # The rank that is silent is the better suspect.
        (
            (FIVE, None, FOUR),
            (),
            "some of those that answered called collective 5, nccl:all_reduce, rank 1 did not answer",
        ),
        (
            (FIVE, FIVE, None),
            (),
            "those that answered called collective 5, nccl:all_reduce, rank 2 did not answer",
        ),
    ):
        (found,) = flight_records(hung(*records))
        assert (found.ranks, found.what) == (ranks, what)
    assert not flight_records(hung(FIVE, None))


def test_a_finding_says_whether_witnesses_agree_and_takes_their_word_where_nothing_else_tells() -> None:
    fifth = "collective 5, nccl:all_reduce"
    for ranks, begins, ends in (
        (hung(FIVE, FIVE, FOUR), "rank 2 hung", f"recorder agrees: rank 2 did not call {fifth}"),
        (
            hung(FIVE, FOUR, FIVE, calls=(9, 9, 8)),
            "rank 2 hung",
            f"recorder names rank 1 instead: did not call {fifth}",
        ),
        (
            hung(FIVE, None, FOUR),
            "all 3 ranks hung",
            f"tells no rank apart: some of those that answered called {fifth}, rank 1 did not answer",
        ),
        (hung(FIVE, FIVE), "all 2 ranks hung", f"recorder tells no rank apart: all called {fifth}"),
        (hung(None, None), "all 2 ranks hung", "cannot be told"),
    ):
        (found,) = collectives.name_the_culprit(ranks)
        assert found.text.startswith(begins)
        assert found.text.endswith(ends)


#: NCCL's user guide, RAS, "Sample Output" (docs of NCCL 2.30): the text of 2.24, cut to what is read.
TABLE = """\
Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  {}

"""
GUIDE_COUNTS = (
    TABLE.format("MISMATCH")
    + """\
Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
  Rank 4 -- GPU 4 managed by process 483076 on node 172.16.64.210
  Rank 5 -- GPU 5 managed by process 483077 on node 172.16.64.210
  Rank 7 -- GPU 7 managed by process 483079 on node 172.16.64.210
"""
)
GUIDE_MISSING = (
    TABLE.format("INCOMPLETE")
    + """\
Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""
)
#: The formats of src/ras/client_support.cc of NCCL 2.27.5, with numbers of our own.
SINCE_2_26 = (
    TABLE.format("MISMATCH").replace("8        32        32", "4         4         4")
    + """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 40
  Rank 2 has launched up to operation 39 -- GPU 2 managed by process 12 on node 10.0.0.1

"""
)
#: The user guide's JSON of NCCL 2.29.1, with what is read.
STATUS = {
    "init_state": 0,
    "async_error": 0,
    "finalize_called": False,
    "destroy_flag": False,
    "abort_flag": False,
}


def guide_json(*counts: int, missing: int | None = 1) -> dict[str, Any]:
    ranks = [
        {
            "rank": rank, "host": "172.16.64.245", "pid": 1524344 + rank, "cuda_dev": rank, "nvml_dev": rank,
            "status": STATUS, "collective_counts": {"Broadcast": 0, "AllReduce": count},
        }
        for rank, count in enumerate(counts)
    ]  # fmt: skip
    absent: dict[str, Any] = {
        "rank": missing,
        "host": "172.16.64.245",
        "pid": 1524345,
        "cuda_dev": 1,
        "nvml_dev": 1,
    }
    absent["status"] = {"unresponsive": True, "considered_dead": False}
    gone = [absent] if missing is not None else []
    return {
        "nccl_version": "2.29.1", "communicators_count": 1,
        "communicators": [
            {"hash": "0xae94423cfbb2ef4a", "size": len(ranks) + len(gone), "ranks_count": len(ranks),
             "missing_ranks_count": len(gone), "ranks": ranks, "missing_ranks": gone}
        ],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }  # fmt: skip


def test_an_answer_of_ras_gives_the_ranks_that_are_behind() -> None:
    for text, size, lags in (
        (GUIDE_COUNTS, 32, [Lag(32, frozenset({0, 2, 3, 4, 5, 7}), "collectives")]),
        (GUIDE_COUNTS, 8, []),
        (GUIDE_MISSING, 32, [Lag(32, frozenset({21}))]),
        (SINCE_2_26, 4, [Lag(4, frozenset({2}), "AllReduce")]),
        # Of two equal halves the text names no rank.
        (SINCE_2_26.replace("  3 ranks", "  1 ranks").replace("  Rank 2 has", "  2 ranks have"), 4, []),
        (TABLE.format("OK"), 32, []),
        (json.dumps(guide_json(0)), 2, [Lag(2, frozenset({1}))]),
        (json.dumps(guide_json(7, 7, 6, missing=None)), 3, [Lag(3, frozenset({2}), "AllReduce")]),
        (json.dumps(guide_json(7, 7, missing=None)), 2, []),
    ):
        assert nccl_ras.read(text, size) == lags, text


@each(
    "",
    "ERROR: Unknown command",
    "{",
    '{"communicators": 7}',
    json.dumps(guide_json(-1)),
    json.dumps(guide_json(7)).replace("AllReduce", "\\u001b[31m"),
    "{" + '"a":[' * 100_000,
)
def test_what_is_no_answer_of_ras_is_refused(text: str) -> None:
    with pytest.raises(RasError):
        nccl_ras.read(text, 2)


def answering(reply: bytes) -> str:
    """The address of a server that answers one query with this."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as client:
            asked = b""
            while b"STATUS\n" not in asked:
                asked += client.recv(4096)
            assert asked == nccl_ras.QUERY
            client.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_ras_is_asked_with_its_protocol_and_names_the_rank_in_the_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_json = json.dumps(guide_json(7, 6, missing=None)).encode()
    for reply in (b"SERVER PROTOCOL 2\nOK\nOK\n" + as_json, b"SERVER PROTOCOL 2\nOK\nOK\n" + as_json + b"\n"):
        address = answering(reply)
        monkeypatch.setattr(nccl_ras, "own_address", lambda address=address: address)
        ras = RasWitness()
        ras.ask()
        (found,) = collectives.name_the_culprit(hung(None, None), ras=ras)
        assert found.text.startswith("rank 1 hung")
        assert found.text.endswith("; NCCL's RAS agrees: rank 1 launched fewer AllReduce than others")
    old = b"SERVER PROTOCOL 2\nOK\nERROR: Unknown command set format json\n" + SINCE_2_26.encode()
    assert nccl_ras.read(nccl_ras.ask(answering(old)), 4) == [Lag(4, frozenset({2}), "AllReduce")]
    with pytest.raises(RasError):
        nccl_ras.ask(answering(b"HTTP/1.1 400 Bad Request\r\n\r\n"))


def test_ranks_have_an_address_that_no_other_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job beside them may have a communicator of as many ranks, and the node's address."""
    monkeypatch.setenv(nccl_ras.VARIABLE, "127.0.0.1:28028")
    addresses = {RasWitness().address for _ in range(9)}
    assert len(addresses) > 1
    for address in addresses:
        host, _, port = address.partition(":")
        assert (ipaddress.ip_address(host).is_loopback, port) == (True, "28028")
    assert "127.0.0.1:28028" not in addresses


def test_without_ras_the_finding_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(nccl_ras, "own_address", lambda: f"127.0.0.1:{port}")
    ras = RasWitness()
    ras.ask()
    assert ras.testimonies(2) == []
    for address in ("nowhere", "127.0.0.1:x"):
        with pytest.raises(RasError):
            nccl_ras.ask(address)
