"""Prometheus' text format, version 0.0.4, as node_exporter's textfile collector reads it.

https://prometheus.io/docs/instrumenting/exposition_formats/. No timestamps: that collector refuses a file
with any.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from validation.model.contract import StringEnum

NAME = re.compile(r"[a-z][a-z0-9_]*")


class Kind(StringEnum):
    """What a metric is: a number that goes up and down, or one that only grows."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True)
class Metric:
    """A metric's name, kind, help and the names of its labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(map(NAME.fullmatch, (self.name, *self.labels))):
            raise ValueError(f"{self.name}: expected names of lower-case letters, digits and underscores")
        if (self.kind is Kind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: a counter's name ends in _total, and no other's")


def gauge(name: str, text: str, *labels: str) -> Metric:
    """Return a metric of ours that goes up and down."""
    return Metric(f"temper_{name}", Kind.GAUGE, text, labels)


def counter(name: str, text: str, *labels: str) -> Metric:
    """Return a metric of ours that only grows."""
    return Metric(f"temper_{name}_total", Kind.COUNTER, text, labels)


@dataclass
class Exposition:
    """Values of metrics. What nobody read has no value, and none is written for it."""

    metrics: Iterable[Metric]
    _values: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._known = {metric.name: metric for metric in self.metrics}

    def set(self, name: str, value: float | None, /, **labels: object) -> None:
        """Set the value of a metric for these labels; of None nothing is kept. Raises ValueError."""
        metric = self._known[name]
        if labels.keys() != set(metric.labels):
            raise ValueError(f"{name}: expected the labels {metric.labels}, found {tuple(labels)}")
        if value is None:
            return
        values = self._values.setdefault(name, {})
        key = tuple(str(labels[label]) for label in metric.labels)
        if key in values:
            raise ValueError(f"{name}: a second value for the labels {labels}")
        if not math.isfinite(value):
            raise ValueError(f"{name}: expected a number, found {value}")
        values[key] = float(value)

    def text(self) -> str:
        """Return all values, each metric with its help and kind."""
        return "".join(
            line
            for name, metric in self._known.items()
            if name in self._values
            for line in _family(metric, self._values[name])
        )


def _family(metric: Metric, values: dict[tuple[str, ...], float]) -> Iterable[str]:
    yield f"# HELP {metric.name} {_escaped(metric.help)}\n"
    yield f"# TYPE {metric.name} {metric.kind}\n"
    for key, value in values.items():
        pairs = ",".join(f'{label}="{_quoted(text)}"' for label, text in zip(metric.labels, key, strict=True))
        yield f"{metric.name}{{{pairs}}} {_number(value)}\n" if pairs else f"{metric.name} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    # A name out of a GPU's firmware may hold anything; half a surrogate is no UTF-8.
    return _escaped(text).replace('"', '\\"').encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
