"""What others say of ranks that hang: torch's flight recorder in each rank, and NCCL's RAS.

Neither is asked before ranks hang, and both within seconds: a rank that does not answer costs its word alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from validation.model.contract import ContractError, loads
from validation.probes import nccl_ras
from validation.probes.flight_recorder import FlightRecord
from validation.probes.nccl_ras import RasError
from validation.processes.pool import ProcessOutcome

TORCH, NCCL = "torch's flight recorder", "NCCL's RAS"


@dataclass(frozen=True)
class Testimony:
    """Which ranks a witness says that the others wait for, and why; no ranks: it cannot tell them apart."""

    witness: str
    ranks: tuple[int, ...]
    what: str


def flight_records(ranks: Sequence[ProcessOutcome]) -> list[Testimony]:
    """Return what the flight recorders of those ranks say together that answered.

    A rank that is silent is the better suspect: beside one, no other is named.
    """
    records = {rank: record for rank, one in enumerate(ranks) if (record := _record(one.said))}
    if len(records) < 2:
        return []
    places = {rank: (record.called, record.handed_over) for rank, record in records.items()}
    most = max(places.values())
    behind = tuple(rank for rank, place in places.items() if place < most)
    last = next(record for rank, record in records.items() if places[rank] == most)
    collective = f"collective {last.called}, {last.name}"
    if silent := [one.request.name for rank, one in enumerate(ranks) if rank not in records]:
        who = f"{'some of ' if behind else ''}those that answered"
        return [Testimony(TORCH, (), f"{who} called {collective}, {' and '.join(silent)} did not answer")]
    if not behind:
        return [Testimony(TORCH, (), f"all called {collective}")]
    begun = all(places[rank][0] == most[0] for rank in behind)
    return [Testimony(TORCH, behind, f"{'hangs in the call of' if begun else 'did not call'} {collective}")]


def _record(said: str) -> FlightRecord | None:
    try:
        return loads(FlightRecord, said) if said else None
    except ContractError:
        return None


class RasWitness:
    """NCCL's RAS of ranks that are told `address`, which no job beside them has."""

    def __init__(self) -> None:
        self.address = nccl_ras.own_address()
        self._answer = ""

    def ask(self) -> None:
        """Ask for its answer, while the ranks are there."""
        try:
            self._answer = nccl_ras.ask(self.address)
        except RasError:
            self._answer = ""  # older than 2.24, switched off, or hanging itself

    def testimonies(self, size: int) -> list[Testimony]:
        """Return what it says of so many ranks."""
        try:
            lags = nccl_ras.read(self._answer, size) if self._answer else []
        except RasError:
            return []
        return [
            Testimony(
                NCCL,
                tuple(sorted(lag.ranks)),
                f"launched fewer {lag.kind} than others" if lag.kind else "do not answer it",
            )
            for lag in lags[:1]
        ]


def say(
    testimonies: Sequence[Testimony], ranks: Sequence[ProcessOutcome], named: Sequence[ProcessOutcome]
) -> str:
    """Return how witnesses agree with what is named, as the end of a sentence."""
    texts = []
    for one in testimonies:
        theirs = [ranks[rank] for rank in one.ranks]
        who = " and ".join(outcome.request.name for outcome in theirs)
        if not theirs:
            texts.append(f"; {one.witness} tells no rank apart: {one.what}")
        elif theirs == list(named):
            texts.append(f"; {one.witness} agrees: {who} {one.what}")
        else:
            texts.append(f"; {one.witness} names {who} instead: {one.what}")
    return "".join(texts)
