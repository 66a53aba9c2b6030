"""The one loop that measures: warm up, time, rate, check the result, and keep what came of it.

It runs in measuring processes, on any backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from validation.backends.protocol import Backend, Operation
from validation.backends.sampling import rate, times
from validation.findings.catalogue import finding
from validation.model.contract import Digest, Finding, Measured, Measurement
from validation.model.not_run import NotRunError
from validation.model.plans import Timing
from validation.processes.child import Request

#: Of the first warm-up, what later numbers of the same process need: the device is warm, only their code is
#: not loaded yet.
LATER_WARM_UP = 0.1


class Recorder:
    """What one measuring process found so far: numbers, and results that were wrong.

    With `of_gpu`, they are the request's GPU's, if it has one; else the node's.
    """

    def __init__(
        self, backend: Backend, request: Request, stage: Callable[[str], None], *, of_gpu: bool = True
    ) -> None:
        self.backend = backend
        self.device = request.device if of_gpu and request.backend == "cuda" else None
        self._name = request.name
        self._timing = Timing(**request.parameters["timing"])
        self._stage = stage
        self._warm = False
        self._measurements: list[Measurement] = []
        self._findings: list[Finding] = []

    def need(self, size_bytes: int) -> None:
        """Raise NotRunError where the device has less free memory."""
        if (free := self.backend.free_bytes()) < size_bytes:
            raise NotRunError(f"{size_bytes / 1e9:.1f} GB of free memory needed, {free / 1e9:.1f} GB found")

    def rate(
        self,
        name: str,
        operation: Operation,
        *,
        doing: str,
        per_run: float = 1.0,
        scale: float = 1e9,
        conditions: dict[str, int | str] | None = None,
        peak: str = "",
        timing: Timing | None = None,
    ) -> Measurement:
        """Measure how often `operation` runs, as `per_run` times its work a second in units of `scale`.

        Under the name `peak`, what the fastest tenth of the runs reached; `timing` in place of the request's.
        """
        go_on = partial(self._stage, doing)
        seconds, attempts = times(self.backend, operation, timing or self._timing, go_on)
        if not self._warm:
            self._warm = True
            self._timing = replace(self._timing, warm_up_s=LATER_WARM_UP * self._timing.warm_up_s)
        found = rate(name, per_run * operation.work, seconds, scale, self.device, conditions, attempts)
        self._measurements.append(found)
        if peak:
            fastest = sorted(seconds)[: max(1, len(seconds) // 10)]
            self._measurements.append(
                rate(peak, per_run * operation.work, fastest[-1:], scale, self.device, conditions, attempts)
            )
        return found

    def keep(self, name: str, value: float, conditions: dict[str, int | str] | None = None) -> None:
        """Keep a number that is counted, not timed."""
        self._measurements.append(Measurement(name, round(value, 4), 1, 0.0, self.device, conditions or {}))

    def check(
        self,
        operation: Operation,
        *,
        doing: str,
        case: str,
        tolerance: float = 0.0,
        **facts: Any,
    ) -> None:
        """Check the result by another route, outside of what is timed.

        `case` is that of a wrong result, `facts` are what its sentence says beside the name and the error.
        """
        self._stage(doing)
        error = operation.error()
        if not error <= tolerance:  # also catches NaN
            self.find("wrong-result", case, who=self._name, error=error, **facts)

    def find(self, code: str, case: str = "", /, **facts: Any) -> None:
        """Keep a finding about this device, or the node."""
        self._findings.append(finding(code, case, gpu=self.device, **facts))

    def measured(
        self,
        details: dict[str, Any] | None = None,
        more: Iterable[Measurement] = (),
        digests: Iterable[Digest] = (),
    ) -> Measured:
        """Return all of it, for the parent; `more` are numbers that were taken in another way."""
        return Measured(
            (*self._measurements, *more),
            tuple(self._findings),
            details=details or {},
            digests=tuple(digests),
        )
