"""What a validation result is: its states, its parts, and its form as JSON (schemas/node-result.schema.json).

Four states are kept from end to end. `not-run` means that the environment kept a test from running (no
driver, no torch, one GPU where two are needed). It is never counted as passed, and it never blames hardware.

Reading is strict: an unknown field, a missing one, a wrong type or a number that is not finite raises
ContractError, which names the place. A half-read result would be a wrong verdict.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import math
import types
import typing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

#: Each document has a version of its own: what one run on a node found, and the rounds of a burn-in that it
#: is made of; the summary of a report; what is expected of nodes; what passes between the nodes of a fabric.
#: Since 4 findings say what a machine can do.
RESULT_VERSION = 4
SUMMARY_VERSION = 4
EXPECTATIONS_VERSION = 3
FABRIC_VERSION = 6
#: A result of version 3 has no machine actions, and says the same otherwise.
READABLE_RESULTS = frozenset({3, RESULT_VERSION})

T = TypeVar("T")


class ContractError(ValueError):
    """JSON that does not have the form it must have; the message says where."""


class StringEnum(str, Enum):
    """A word out of a few. Python 3.11 has enum.StrEnum for it; machines with 3.10 are measured, too."""

    __str__ = str.__str__


class State(StringEnum):
    """How a test, a node or a fleet came out."""

    PASS = "pass"  # noqa: S105 - a state
    DEGRADED = "degraded"
    FAIL = "fail"
    NOT_RUN = "not-run"

    @property
    def severity(self) -> int:
        """Its place among all states, from the best to the worst."""
        return _BEST_TO_WORST.index(self)


#: What was not run may hide a fault, so it is worse than a known weakness; a known fault is worst.
_BEST_TO_WORST = (State.PASS, State.DEGRADED, State.NOT_RUN, State.FAIL)


def worst(states: typing.Iterable[State], default: State = State.PASS) -> State:
    """The state of a whole made of parts; `default` where it has none."""
    return max(states, key=lambda state: state.severity, default=default)


class MachineAction(StringEnum):
    """What a program can do about a finding."""

    RERUN = "rerun"
    RESET_GPU = "reset-gpu"
    REBOOT = "reboot"
    REPLACE = "replace"
    CONFIGURE = "configure"
    NONE = "none"


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    `code` is stable, for suppression and history. `action` says to people what to do, `machine_action` to
    programs; that is null in a result of schema version 3, which did not say.
    """

    code: str
    state: State
    text: str
    action: str = ""
    device: int | None = None
    machine_action: MachineAction | None = None


class UnderConditions:
    """Something with the conditions that it was taken under."""

    conditions: dict[str, int | str]

    @functools.cached_property
    def taken(self) -> tuple[tuple[str, str], ...]:
        """Its conditions, to tell whether it was taken in the same way as another."""
        if not self.conditions:
            return ()
        # With the types: to Python, true is 1.
        return _taken(tuple(self.conditions.items()), tuple(map(type, self.conditions.values())))


@functools.lru_cache(maxsize=1 << 16)
def _taken(
    conditions: tuple[tuple[str, int | str], ...], _types: tuple[type, ...]
) -> tuple[tuple[str, str], ...]:
    """The same object for all of a fleet that was taken in the same way."""
    return tuple(sorted((name, str(value)) for name, value in conditions))


@dataclass(frozen=True)
class Measurement(UnderConditions):
    """A number: the median of `samples`.

    The unit is the end of its name (_tflops, _gflops, _gb_s; 1 GB = 1e9 bytes).

    `spread` is the interquartile range as a part of the median. `device` is a GPU's index, None for the
    node as a whole. Noisy numbers are measured again; of `attempts`, the calmest is kept.
    """

    name: str
    value: float
    samples: int
    spread: float
    device: int | None = None
    conditions: dict[str, int | str] = field(default_factory=dict)
    attempts: int = 1


@dataclass(frozen=True)
class Digest(UnderConditions):
    """A checksum of every bit of a result.

    `conditions` say what the bits depend on, all that is known of it: where they are equal, the checksums
    must be. `device` is a GPU's index.
    """

    name: str
    value: str
    device: int | None = None
    conditions: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """What one measuring process brings home. With `not_run`, the reason why it could not measure."""

    measurements: tuple[Measurement, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_run: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    digests: tuple[Digest, ...] = ()


@dataclass(frozen=True)
class TestResult:
    """One test on one node.

    `method` is the version of the way it measures: numbers of different methods do not compare.
    """

    __test__ = False  # not pytest's

    id: str
    state: State
    method: int
    duration_s: float
    reason: str = ""
    measurements: tuple[Measurement, ...] = ()
    findings: tuple[Finding, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    digests: tuple[Digest, ...] = ()


@dataclass(frozen=True)
class GpuIdentity:
    """A GPU as nvidia-smi names it. `pci_id` is the PCI device id: 4 hexadecimal digits, lower case.

    `pcie_generation_max` and `pcie_width_max` are what the GPU and the port above it both can do.
    """

    index: int
    name: str
    uuid: str
    pci_address: str
    pci_id: str
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None

    @functools.cached_property
    def kind(self) -> tuple[str, str, int | None, int | None]:
        """What the table of models is asked by."""
        return (self.pci_id, self.name, self.pcie_generation_max, self.pcie_width_max)


@dataclass(frozen=True)
class Machine:
    """What was measured on; enough to know whether two results compare."""

    hostname: str
    system: str
    kernel: str
    cpu_model: str
    cpus: int
    memory_bytes: int
    python: str
    torch: str | None
    driver: str | None


@dataclass(frozen=True)
class NodeResult:
    """Everything one run found on one node, before anybody judges it."""

    schema_version: int
    node: str
    plan: str
    started_at: str
    duration_s: float
    machine: Machine
    gpus: tuple[GpuIdentity, ...]
    tests: tuple[TestResult, ...]

    def gpus_of(self, device: int | None) -> tuple[GpuIdentity, ...]:
        """The GPUs that a number is of: the one with this index, or all where it is of the node."""
        return self.gpus if device is None else self._by_index.get(device, ())

    @functools.cached_property
    def _by_index(self) -> dict[int, tuple[GpuIdentity, ...]]:
        found: dict[int, tuple[GpuIdentity, ...]] = {}
        for gpu in self.gpus:
            found[gpu.index] = (*found.get(gpu.index, ()), gpu)
        return found


def node_result(value: Any, known_tests: typing.Collection[str] | None = None) -> NodeResult:
    """A result from what the json module gives, in the form of this version.

    Raises ContractError, also for a schema version that is not readable, and for a result that contradicts
    itself or has a test that is none of `known_tests`: what is not understood must not pass.
    """
    version = value.get("schema_version") if isinstance(value, dict) else None
    if isinstance(version, int) and version not in READABLE_RESULTS:
        raise ContractError(
            f"a result of schema version {version}; this program reads "
            f"{' and '.join(map(str, sorted(READABLE_RESULTS)))}"
        )
    result = dataclasses.replace(decode(NodeResult, value), schema_version=RESULT_VERSION)
    _refuse_twice("tests", [test.id for test in result.tests])
    _refuse_twice("gpus", [f"GPU {gpu.index}" for gpu in result.gpus])
    for test in result.tests:
        if known_tests is not None and test.id not in known_tests:
            raise ContractError(f"tests: {test.id} is no test that this program knows")
        for finding in test.findings:
            if finding.state not in {State.DEGRADED, State.FAIL}:
                raise ContractError(
                    f"tests: {finding.code} of {test.id} is {finding.state}; expected degraded or fail"
                )
    return result


def _refuse_twice(path: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ContractError(f"{path}: {name} is there twice")


def encode(value: Any) -> Any:
    """A dataclass as what the json module takes."""
    return dataclasses.asdict(value)


def dumps(value: Any) -> str:
    """A dataclass as JSON text. Raises ValueError for a number that JSON does not have (NaN, infinity)."""
    return "".join(json_text(value))


class Encoded(str):
    """JSON text that stands in a list of what `json_text` writes: encoded once, and written many times."""

    __slots__ = ()


def encoded(value: Any) -> Encoded:
    """A dataclass, or what the json module takes, on one line. Raises ValueError as `dumps` does."""
    return Encoded(_ENCODER.encode(value))


def json_text(value: Any, lists: int = 1) -> typing.Iterator[str]:
    """A dataclass, or what the json module takes, as pieces of JSON text; an iterator is written as a list.

    Each field stands on a line of its own, and so does each item of a list; `lists` says of lists in how many
    lists. What is further inside stands on one line: the json module's fast encoder knows no indentation, and
    a fleet's documents have millions of values. Raises ValueError as `dumps` does.
    """
    yield from _pieces(value, lists, "\n")
    yield "\n"


def _pieces(value: Any, lists: int, line: str) -> typing.Iterator[str]:
    """The pieces of a value. `line` is a line's end and the next line's indentation."""
    if type(value) is Encoded:
        yield value
        return
    if dataclasses.is_dataclass(value):
        value = _fields(value)
    within = f"{line}  "
    if isinstance(value, dict) and value:
        for place, (key, item) in enumerate(value.items()):
            yield f"{',' if place else '{'}{within}{_ENCODER.encode(str(key))}: "
            yield from _pieces(item, lists, within)
        yield f"{line}}}"
    elif lists and isinstance(value, list | tuple | collections.abc.Iterator):
        place = -1
        for place, item in enumerate(value):
            start = f"{',' if place else '['}{within}"
            if type(item) is Encoded:
                yield f"{start}{item}"
            elif lists > 1:
                yield start
                yield from _pieces(item, lists - 1, within)
            else:
                yield f"{start}{_ENCODER.encode(item)}"
        yield "[]" if place < 0 else f"{line}]"
    else:
        yield _ENCODER.encode(value)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass; unlike asdict it copies nothing."""
    names = _names(typing.cast("typing.Hashable", type(value)))
    found: dict[str, Any] = vars(value)
    # Other attributes are what it has been asked for, and keeps.
    return found if len(found) == len(names) else {name: found[name] for name in names}


@functools.cache
def _names(kind: typing.Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(typing.cast("Any", kind)))


_ENCODER = json.JSONEncoder(allow_nan=False, default=_fields)


def loads(kind: type[T], text: str | bytes) -> T:
    """The dataclass `kind` from JSON text. Raises ContractError."""
    return decode(kind, parse(text))


def parse(text: str | bytes) -> Any:
    """What the json module gives. Raises ContractError, also for a name that is twice in an object."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except ContractError:
        raise
    except ValueError as error:  # also undecodable bytes, and numbers of thousands of digits
        raise ContractError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ContractError("not JSON of this program: it is nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ContractError(
            f"{_show(twice)} is twice in one object; which of the two holds is anybody's guess"
        )
    return found


def decode(kind: type[T], value: Any, path: str = "") -> T:
    """`value`, as the json module gives it, as an instance of the dataclass `kind`. Raises ContractError."""
    try:
        return typing.cast("T", _decoder(typing.cast("typing.Hashable", kind))(value))
    except _MisfitError as error:
        place = "".join([path, *reversed(error.steps)])
        raise ContractError(f"{place.removeprefix('.') or 'the top level'}: {error}") from error


class _MisfitError(Exception):
    """A value that has not the form it must have.

    `steps` lead to it, the innermost first: `.name` or `[index]`. They are collected on the way out, because
    nearly all values fit, and a fleet's have no time to say where they are.
    """

    def __init__(self, said: str, *steps: str) -> None:
        super().__init__(said)
        self.steps = list(steps)


#: What makes of a value of the json module one of a type. Raises _MisfitError.
_Decoder = typing.Callable[[Any], Any]
#: What makes the value of a field that is missing.
_Default = typing.Callable[[], Any]


@functools.cache
def _decoder(kind: Any) -> _Decoder:
    """What decodes values of a type; made once, because looking at types takes longer than the values do."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _finite
    if origin in (types.UnionType, typing.Union):
        choices = [_decoder(choice) for choice in arguments if choice is not type(None)]
        fitting = frozenset({int, str, bool, type(None)}.intersection(arguments))
        return functools.partial(_one_of, fitting, choices)
    if origin is tuple:
        return functools.partial(_tuple_of, _decoder(arguments[0]))
    if origin is dict:
        return functools.partial(_dict_of, arguments[0], _decoder(arguments[1]))
    if dataclasses.is_dataclass(kind):
        return functools.partial(_dataclass, kind)
    if issubclass(kind, StringEnum):
        return functools.partial(_word, kind, {str(word): word for word in kind})
    return _float if kind is float else functools.partial(_scalar, kind)


@functools.cache
def _fields_of(
    kind: typing.Hashable,
) -> tuple[tuple[str, str, _Decoder, typing.Callable[[], Any] | None], ...]:
    """The name of each field of a dataclass, its step, its decoder, and what makes it where it is missing."""
    hints = typing.get_type_hints(kind)
    assert not hasattr(kind, "__post_init__"), "_dataclass would leave it out"
    return tuple(
        (one.name, f".{one.name}", _decoder(hints[one.name]), _default(one))
        for one in dataclasses.fields(typing.cast("Any", kind))
    )


def _default(one: dataclasses.Field[Any]) -> _Default | None:
    if one.default_factory is not dataclasses.MISSING:
        return one.default_factory
    return None if one.default is dataclasses.MISSING else lambda: one.default


def _dataclass(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise _MisfitError(f"expected an object, found {_show(value)}")
    # Without its __init__, which would take as long as all the rest.
    made = kind.__new__(kind)
    found = vars(made)
    step, missing = "", 0
    try:
        for name, step, decoder, default in _fields_of(kind):  # noqa: B007 - used where it fails
            if name in value:
                found[name] = decoder(value[name])
            elif default is None:
                raise _MisfitError("missing")
            else:
                found[name] = default()
                missing += 1
    except _MisfitError as error:
        # A field that is not known is said before anything else.
        _refuse_unknown(kind, value)
        error.steps.append(step)
        raise
    if len(found) - missing < len(value):
        _refuse_unknown(kind, value)
    return made


def _refuse_unknown(kind: Any, value: dict[str, Any]) -> None:
    if unknown := sorted(value.keys() - {name for name, *_ in _fields_of(kind)}):
        raise _MisfitError(f"no such field in {kind.__name__}", f".{unknown[0]}")


def _one_of(fitting: frozenset[type], choices: list[_Decoder], value: Any) -> Any:
    """`fitting` are types of which every value is one of these as it is."""
    if type(value) in fitting:
        return value
    errors = []
    for decoder in choices:
        try:
            return decoder(value)
        except _MisfitError as error:
            errors.append(error)
    raise errors[0]


def _tuple_of(decoder: _Decoder, value: Any) -> Any:
    if not isinstance(value, list):
        raise _MisfitError(f"expected a list, found {_show(value)}")
    found: list[Any] = []
    try:
        for item in value:
            found.append(decoder(item))
    except _MisfitError as error:
        error.steps.append(f"[{len(found)}]")
        raise
    return tuple(found)


def _dict_of(kind: Any, decoder: _Decoder, value: Any) -> Any:
    if not isinstance(value, dict):
        raise _MisfitError(f"expected an object, found {_show(value)}")
    found = {}
    key = ""
    try:
        for key, item in value.items():
            found[key] = decoder(item)
    except _MisfitError as error:
        error.steps.append(f".{key}")
        raise
    return {_whole(key): item for key, item in found.items()} if kind is int else found


def _whole(key: str) -> int:
    """A key of an object: JSON knows only text."""
    if not key.isascii() or not key.isdigit():
        raise _MisfitError(f"expected a whole number as key, found {_show(key)}")
    return int(key)


def _word(kind: Any, words: dict[str, Any], value: Any) -> Any:
    found = words.get(value) if isinstance(value, str) else None
    if found is None:
        raise _MisfitError(f"expected one of {', '.join(kind)}, found {_show(value)}")
    return found


def _float(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass  # a whole number beyond all bounds
    raise _MisfitError(f"expected a finite number, found {_show(value)}")


def _scalar(kind: Any, value: Any) -> Any:
    if type(value) is kind:
        return value
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _MisfitError(f"expected {kind.__name__}, found {_show(value)}")
    return value


def _finite(value: Any) -> Any:
    """`value` as it is, when no number in it is NaN or infinite."""
    step: object = None
    try:
        if isinstance(value, dict):
            for step, item in value.items():  # noqa: B007 - used where it fails
                if isinstance(item, _WITH_NUMBERS):
                    _finite(item)
        elif isinstance(value, list) and not _finite_numbers(value):
            for step, item in enumerate(value):  # noqa: B007 - likewise
                if isinstance(item, _WITH_NUMBERS):
                    _finite(item)
        elif isinstance(value, float):
            _float(value)
    except _MisfitError as error:
        if step is not None:
            error.steps.append(f"[{step}]" if isinstance(value, list) else f".{step}")
        raise
    return value


#: Of the json module's types, those that may be, or hold, a number that is not finite.
_WITH_NUMBERS = (float, dict, list)


def _finite_numbers(values: list[Any]) -> bool:
    """Whether these are numbers of which none is NaN or infinite; False where that takes a closer look."""
    # To look at the first takes less time than to add words up and fail.
    if values and not isinstance(values[0], int | float):
        return False
    try:
        return math.isfinite(sum(values))
    except (TypeError, OverflowError):
        return False


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
