"""What a validation result is: its states, its parts, and its form as JSON (schemas/node-result.schema.json).

Four states are kept from end to end. `not-run` means that the environment kept a test from running (no
driver, no torch, one GPU where two are needed). It is never counted as passed, and it never blames hardware.

Reading is strict: an unknown field, a missing one, a wrong type, a number that is not finite, or more than
the bounds of a field allow (bounds.py) raises ContractError, which names the place. A half-read result would
be a wrong verdict, and a document may come from a machine that somebody has taken over.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import functools
import json
import math
import re
import reprlib
import types
import typing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Annotated, Any, TypeVar

from validation.model.bounds import (
    MOST_CHARACTERS,
    MOST_DEPTH,
    MOST_ITEMS,
    MOST_KEY,
    MOST_NUMBER,
    MOST_WHOLE,
    UNWRITABLE,
    Bounds,
    Count,
    Index,
    Moment,
    Name,
    Seconds,
    moment,
)
from validation.model.telemetry import Course, PowerLimit, Seen

#: Each document has a version of its own: what one run on a node found, and the rounds of a burn-in that it
#: is made of; the summary of a report; what is expected of nodes; what passes between the nodes of a fabric.
#: Since 4 findings say what a machine can do.
RESULT_VERSION = 4
SUMMARY_VERSION = 4
EXPECTATIONS_VERSION = 3
FABRIC_VERSION = 7
#: A result of version 3 has no machine actions, and says the same otherwise.
READABLE_RESULTS = frozenset({3, RESULT_VERSION})
#: Bytes of a document, and of one that a single node has written: a standard run on eight GPUs writes 50 kB.
MOST_DOCUMENT_BYTES = 4 << 30
MOST_RESULT_BYTES = 16 << 20
#: In one result: of numbers, findings and checksums each. A standard run on eight GPUs has 250 numbers.
MOST_OF_A_KIND = 10_000
#: Of a node; the largest servers of today have 16.
MOST_GPUS = 64
#: How far the clock of a node may be ahead of this machine's.
MOST_AHEAD = timedelta(minutes=15)

T = TypeVar("T")


class ContractError(ValueError):
    """JSON that does not have the form it must have; the message says where."""


class UsageError(Exception):
    """Input that a command cannot work with; the message says what was expected and what was found."""


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
    """Return the state of a whole made of parts; `default` where it has none."""
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

    code: Name
    state: State
    text: str
    action: str = ""
    device: Index | None = None
    machine_action: MachineAction | None = None


#: What a number or a checksum was taken under, by name.
Conditions = Annotated[dict[str, int | Annotated[str, Bounds(MOST_KEY)]], Bounds(64)]


class UnderConditions:
    """Something with the conditions that it was taken under."""

    conditions: Conditions

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
    """Return the same object for all of a fleet that was taken in the same way."""
    return tuple(sorted((name, str(value)) for name, value in conditions))


@dataclass(frozen=True)
class Measurement(UnderConditions):
    """A number: the median of `samples`.

    The unit is the end of its name (_tflops, _gflops, _gb_s; 1 GB = 1e9 bytes).

    `spread` is the interquartile range as a part of the median. `device` is a GPU's index, None for the
    node as a whole. Noisy numbers are measured again; of `attempts`, the calmest is kept.
    """

    name: Name
    value: float
    samples: int
    spread: float
    device: Index | None = None
    conditions: Conditions = field(default_factory=dict)
    attempts: Count = 1


@dataclass(frozen=True)
class Digest(UnderConditions):
    """A checksum of every bit of a result.

    `conditions` say what the bits depend on, all that is known of it: where they are equal, the checksums
    must be. `device` is a GPU's index.
    """

    name: Name
    value: Name
    device: Index | None = None
    conditions: Conditions = field(default_factory=dict)


#: What a test brings home.
Measurements = Annotated[tuple[Measurement, ...], Bounds(MOST_OF_A_KIND)]
Findings = Annotated[tuple[Finding, ...], Bounds(2000)]
Digests = Annotated[tuple[Digest, ...], Bounds(2000)]


@dataclass(frozen=True)
class Measured:
    """What one measuring process brings home. With `not_run`, the reason why it could not measure."""

    measurements: Measurements = ()
    findings: Findings = ()
    not_run: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    digests: Digests = ()


@dataclass(frozen=True)
class TestResult:
    """One test on one node.

    `method` is the version of the way it measures: numbers of different methods do not compare.
    """

    __test__ = False  # not pytest's

    id: Name
    state: State
    method: Count
    duration_s: Seconds
    reason: str = ""
    measurements: Measurements = ()
    findings: Findings = ()
    details: dict[str, Any] = field(default_factory=dict)
    digests: Digests = ()

    @property
    def telemetry(self) -> tuple[Seen, ...]:
        """What nvidia-smi said of each GPU during the test. Raises ContractError."""
        return self._listed("telemetry", Seen)

    @property
    def telemetry_series(self) -> tuple[Course, ...]:
        """The same over time. Raises ContractError."""
        return self._listed("telemetry_series", Course)

    @property
    def power_limits(self) -> tuple[PowerLimit, ...]:
        """The power limit of each GPU, as health found it. Raises ContractError; `node_result` has looked."""
        return self._listed("gpus", PowerLimit) if self.id == "health" else ()

    def _listed(self, name: str, kind: type[T]) -> tuple[T, ...]:
        """Return the known fields of the objects in a list of the details."""
        listed = self.details.get(name, [])
        place = f"details.{name} of {self.id}"
        if not isinstance(listed, list) or len(listed) > MOST_GPUS:
            raise ContractError(
                f"{place}: expected a list of at most {MOST_GPUS} GPUs, found {_show(listed)}"
            )
        known = _names(typing.cast("typing.Hashable", kind))
        return tuple(
            decode(
                kind,
                {key: one[key] for key in known if key in one} if isinstance(one, dict) else one,
                f"{place}[{number}]",
            )
            for number, one in enumerate(listed)
        )


@dataclass(frozen=True)
class GpuIdentity:
    """A GPU as nvidia-smi names it. `pci_id` is the PCI device id: 4 hexadecimal digits, lower case.

    `pcie_generation_max` and `pcie_width_max` are what the GPU and the port above it both can do.
    """

    index: Index
    name: Name
    uuid: Name
    pci_address: Name
    pci_id: Name
    pcie_generation_max: Index | None = None
    pcie_width_max: Index | None = None

    @functools.cached_property
    def kind(self) -> tuple[str, str, int | None, int | None]:
        """What the table of models is asked by."""
        return (self.pci_id, self.name, self.pcie_generation_max, self.pcie_width_max)


@dataclass(frozen=True)
class Machine:
    """What was measured on; enough to know whether two results compare."""

    hostname: Name
    system: Name
    kernel: Name
    cpu_model: Name
    cpus: Count
    memory_bytes: Annotated[int, Bounds(1 << 60, 0)]
    python: Name
    torch: Name | None
    driver: Name | None


@dataclass(frozen=True)
class NodeResult:
    """Everything one run found on one node, before anybody judges it."""

    schema_version: int
    node: Name
    plan: Name
    started_at: Moment
    duration_s: Seconds
    machine: Machine
    gpus: Annotated[tuple[GpuIdentity, ...], Bounds(MOST_GPUS)]
    tests: Annotated[tuple[TestResult, ...], Bounds(256)]

    def gpus_of(self, device: int | None) -> tuple[GpuIdentity, ...]:
        """Return the GPUs that a number is of: the one with this index, or all where it is of the node."""
        return self.gpus if device is None else self._by_index.get(device, ())

    @functools.cached_property
    def _by_index(self) -> dict[int, tuple[GpuIdentity, ...]]:
        found: dict[int, tuple[GpuIdentity, ...]] = {}
        for gpu in self.gpus:
            found[gpu.index] = (*found.get(gpu.index, ()), gpu)
        return found


def node_result(value: Any, known_tests: typing.Collection[str] | None = None) -> NodeResult:
    """Return a result from what the json module gives, in the form of this version.

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
    _refuse_twice("tests", (test.id for test in result.tests))
    _refuse_twice("gpus", (f"GPU {gpu.index}" for gpu in result.gpus))
    for kind in ("measurements", "findings", "digests"):
        if (count := sum(len(getattr(test, kind)) for test in result.tests)) > MOST_OF_A_KIND:
            raise ContractError(f"tests: expected at most {MOST_OF_A_KIND} {kind} in all, found {count}")
    for test in result.tests:
        # Each counts in the fleet's median, and each checksum is a vote.
        for path, ones in (("measurements", test.measurements), ("digests", test.digests)):
            if len({(one.name, one.device, one.taken) for one in ones}) < len(ones):
                _refuse_twice(f"{path} of {test.id}", ((one.name, one.device, one.taken) for one in ones))
        # Every verdict reads them: what is wrong with them is found here.
        _ = test.power_limits
        if known_tests is not None and test.id not in known_tests:
            raise ContractError(f"tests: {test.id} is no test that this program knows")
        for finding in test.findings:
            if finding.state not in {State.DEGRADED, State.FAIL}:
                raise ContractError(
                    f"tests: {finding.code} of {test.id} is {finding.state}; expected degraded or fail"
                )
    return result


def _refuse_twice(path: str, names: typing.Iterable[typing.Hashable]) -> None:
    seen: set[typing.Hashable] = set()
    for name in names:
        if name in seen:
            raise ContractError(f"{path}: {name if isinstance(name, str) else _show(name)} is there twice")
        seen.add(name)


def refuse_future(result: NodeResult, now: datetime) -> None:
    """Raise ContractError for a result that ends after `now`, which is by the clock of this machine.

    It would be newer than every later one, and recent for ever.
    """
    began = moment(result.started_at)
    if began + timedelta(seconds=result.duration_s) > now + MOST_AHEAD:
        raise ContractError(
            f"it claims to have begun at {result.started_at} and to have taken {result.duration_s:.0f} s, "
            f"and here it is {now:%Y-%m-%dT%H:%M:%S%z}; set the clock of the node, and measure again"
        )


def encode(value: Any) -> Any:
    """Return a dataclass as what the json module takes."""
    return dataclasses.asdict(value)


def dumps(value: Any) -> str:
    """Return a dataclass as JSON text.

    Raises ValueError for a number that JSON does not have (NaN, infinity).
    """
    return "".join(json_text(value))


class Encoded(str):
    """JSON text that stands in a list of what `json_text` writes: encoded once, and written many times."""

    __slots__ = ()


def encoded(value: Any) -> Encoded:
    """Return a dataclass, or what the json module takes, on one line. Raises ValueError as `dumps` does."""
    return Encoded(_ENCODER.encode(value))


def json_text(value: Any, lists: int = 1) -> typing.Iterator[str]:
    """Return a dataclass, or what the json module takes, as pieces of JSON text.

    An iterator is written as a list.

    Each field stands on a line of its own, and so does each item of a list; `lists` says of lists in how many
    lists. What is further inside stands on one line: the json module's fast encoder knows no indentation, and
    a fleet's documents have millions of values. Raises ValueError as `dumps` does.
    """
    yield from _pieces(value, lists, "\n")
    yield "\n"


def _pieces(value: Any, lists: int, line: str) -> typing.Iterator[str]:
    """Return the pieces of a value. `line` is a line's end and the next line's indentation."""
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
    """Return the fields of a dataclass; unlike asdict it copies nothing."""
    names = _names(typing.cast("typing.Hashable", type(value)))
    found: dict[str, Any] = vars(value)
    # Other attributes are what it has been asked for, and keeps.
    return found if len(found) == len(names) else {name: found[name] for name in names}


@functools.cache
def _names(kind: typing.Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(typing.cast("Any", kind)))


_ENCODER = json.JSONEncoder(allow_nan=False, default=_fields)


def loads(kind: type[T], text: str | bytes, most_bytes: int = MOST_DOCUMENT_BYTES) -> T:
    """Return the dataclass `kind` from JSON text. Raises ContractError."""
    return decode(kind, parse(text, most_bytes))


def parse(text: str | bytes, most_bytes: int = MOST_DOCUMENT_BYTES) -> Any:
    """Return what the json module gives. Raises ContractError, also for a name that is twice in an object."""
    if len(text) > most_bytes:
        raise ContractError(f"expected at most {most_bytes} bytes of JSON, found {len(text)}")
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
        counts = collections.Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ContractError(
            f"{_show(twice)} is twice in one object; which of the two holds is anybody's guess"
        )
    return found


def decode(kind: type[T], value: Any, path: str = "") -> T:
    """`value`, as the json module gives it, as an instance of the dataclass `kind`. Raises ContractError."""
    return typing.cast("T", _decoded(_decoder(typing.cast("typing.Hashable", kind)), value, path))


def bounded(value: Any) -> Any:
    """Return `value`, as the json module gives it, to be passed on by somebody who does not know its form.

    Raises ContractError where it does not keep to the default bounds of its types.
    """
    return _decoded(_free, value, "")


def _decoded(decoder: _Decoder, value: Any, path: str) -> Any:
    try:
        return decoder(value)
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
def _decoder(kind: Any, bounds: Bounds | None = None) -> _Decoder:
    """Return what decodes values of a type.

    Made once, because looking at types takes longer than the values do.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _decoder(arguments[0], next(one for one in arguments[1:] if isinstance(one, Bounds)))
    if kind is Any:
        return _free
    if origin in (types.UnionType, typing.Union):
        choices = tuple(_decoder(choice) for choice in arguments if choice is not type(None))
        return functools.partial(_one_of, _by_json_type(arguments), functools.partial(_first_of, choices))
    if origin is typing.Literal:
        return functools.partial(_word, arguments, {word: word for word in arguments})
    if dataclasses.is_dataclass(kind):
        # One whose form depends on what it says reads itself.
        own = getattr(kind, "from_json", None)
        return functools.partial(_by_itself, own) if own else functools.partial(_dataclass, kind)
    if origin is tuple:
        return functools.partial(_tuple_of, _decoder(arguments[0]), _most(bounds, MOST_ITEMS))
    if origin is dict:
        items = functools.partial(_dict_of, arguments[0], _decoder(arguments[1]), _most(bounds, MOST_ITEMS))
        return functools.partial(_alike, *_once(items)) if kind == typing.get_args(Conditions)[0] else items
    if issubclass(kind, StringEnum):
        return functools.partial(_word, kind, {str(word): word for word in kind})
    if kind is str:
        text = functools.partial(_text, _most(bounds, MOST_CHARACTERS))
        if bounds and bounds.pattern:
            return functools.partial(_matching, text, re.compile(bounds.pattern))
        return functools.partial(_moment, text) if bounds and bounds.moment else text
    if kind is bool:
        return _bool
    most = MOST_NUMBER if kind is float else MOST_WHOLE
    if bounds:
        least, most = -bounds.most if bounds.least is None else bounds.least, bounds.most
    else:
        least = -most
    return functools.partial(_float if kind is float else _whole_number, least, most)


def _most(bounds: Bounds | None, default: int) -> float:
    return bounds.most if bounds else default


def _by_json_type(choices: tuple[Any, ...]) -> dict[type, _Decoder]:
    """Return the decoders of some types by what the json module makes of their values."""
    found: dict[type, list[_Decoder]] = {}
    for choice in choices:
        plain = typing.get_args(choice)[0] if typing.get_origin(choice) is Annotated else choice
        origin = typing.get_origin(plain)
        if plain in (int, float, str, bool, type(None)):
            kinds: tuple[type, ...] = (float, int) if plain is float else (plain,)
        elif origin is tuple:
            kinds = (list,)
        elif origin is dict or dataclasses.is_dataclass(plain):
            kinds = (dict,)
        else:
            kinds = (str,)
        for one in kinds:
            found.setdefault(one, []).append(_none if plain is type(None) else _decoder(choice))
    return {
        one: decoders[0] if len(decoders) == 1 else functools.partial(_first_of, decoders)
        for one, decoders in found.items()
    }


@functools.cache
def _fields_of(
    kind: typing.Hashable,
) -> tuple[tuple[str, str, _Decoder, typing.Callable[[], Any] | None], ...]:
    """Return each field's name, step and decoder, and what makes it where it is missing."""
    hints = typing.get_type_hints(kind, include_extras=True)
    assert not hasattr(kind, "__post_init__"), "_dataclass would leave it out"
    return tuple(
        (one.name, f".{one.name}", _decoder(hints[one.name]), _default(one))
        for one in dataclasses.fields(typing.cast("Any", kind))
    )


def _default(one: dataclasses.Field[Any]) -> _Default | None:
    if one.default_factory is not dataclasses.MISSING:
        return one.default_factory
    return None if one.default is dataclasses.MISSING else lambda: one.default


def _by_itself(read: typing.Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except ContractError as error:
        raise _MisfitError(str(error)) from error


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
        raise _MisfitError(f"no such field in {kind.__name__}", f".{_key(unknown[0])}")


def _one_of(by_type: dict[type, _Decoder], any_of_them: _Decoder, value: Any) -> Any:
    return by_type.get(type(value), any_of_them)(value)


def _first_of(decoders: typing.Sequence[_Decoder], value: Any) -> Any:
    errors = []
    for decoder in decoders:
        try:
            return decoder(value)
        except _MisfitError as error:
            errors.append(error)
    raise errors[0]


def _none(value: Any) -> Any:
    return value


def _bool(value: Any) -> Any:
    if type(value) is bool:
        return value
    raise _MisfitError(f"expected bool, found {_show(value)}")


def _tuple_of(decoder: _Decoder, most: float, value: Any) -> Any:
    if not isinstance(value, list):
        raise _MisfitError(f"expected a list, found {_show(value)}")
    if len(value) > most:
        raise _MisfitError(f"expected at most {most} items, found {len(value)}")
    found: list[Any] = []
    try:
        for item in value:
            found.append(decoder(item))
    except _MisfitError as error:
        error.steps.append(f"[{len(found)}]")
        raise
    return tuple(found)


def _dict_of(kind: Any, decoder: _Decoder, most: float, value: Any) -> Any:
    if not isinstance(value, dict):
        raise _MisfitError(f"expected an object, found {_show(value)}")
    if len(value) > most:
        raise _MisfitError(f"expected at most {most} names, found {len(value)}")
    found = {}
    key = ""
    plain = _plain(value, MOST_KEY)
    try:
        for key, item in value.items():
            found[key if plain else _text(MOST_KEY, key)] = decoder(item)
    except _MisfitError as error:
        error.steps.append(f".{_key(key)}")
        raise
    return {_whole(key): item for key, item in found.items()} if kind is int else found


def _once(decoder: _Decoder) -> tuple[typing.Callable[..., Any], _Decoder]:
    """Return a decoder of objects that remembers them, and the decoder itself."""

    @functools.lru_cache(1 << 14)
    def known(items: tuple[tuple[str, Any], ...], _types: tuple[type, ...]) -> Any:
        return decoder(dict(items))

    return known, decoder


def _alike(known: typing.Callable[..., Any], decoder: _Decoder, value: Any) -> Any:
    """Return the same object for all of a fleet that was taken in the same way, looked at once."""
    try:
        # With the types: to Python, true is 1.
        return known(tuple(value.items()), tuple(map(type, value.values())))
    except (AttributeError, TypeError):
        return decoder(value)  # which says what is no condition


def _key(key: str) -> str:
    """Return a name in an object, as a step to it."""
    return key if len(key) <= MOST_SHOWN and key.isprintable() else _show(key)


def _whole(key: str) -> int:
    """Return a key of an object: JSON knows only text."""
    if not key.isascii() or not key.isdigit() or len(key) > len(str(MOST_WHOLE)):
        raise _MisfitError(f"expected a whole number as key, found {_show(key)}")
    return int(key)


def _word(kind: Any, words: dict[str, Any], value: Any) -> Any:
    found = words.get(value) if isinstance(value, str) else None
    if found is None:
        raise _MisfitError(f"expected one of {', '.join(kind)}, found {_show(value)}")
    return found


def _float(least: float, most: float, value: Any) -> float:
    if type(value) is float and least <= value <= most:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # A whole number may be too large to be asked whether it is finite.
    if not number or (isinstance(value, float) and not math.isfinite(value)):
        raise _MisfitError(f"expected a finite number, found {_show(value)}")
    return float(_within(least, most, value))


def _whole_number(least: float, most: float, value: Any) -> int:
    if type(value) is int and least <= value <= most:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise _MisfitError(f"expected int, found {_show(value)}")
    return _within(least, most, value)


_N = TypeVar("_N", int, float)


def _within(least: float, most: float, value: _N) -> _N:
    if not least <= value <= most:
        raise _MisfitError(f"expected a number from {least:g} to {most:g}, found {_show(value)}")
    return value


def _text(most: float, value: Any) -> str:
    # Nearly all texts are printable, which says that nothing in them is unwritable, and takes less time.
    if not isinstance(value, str):
        raise _MisfitError(f"expected str, found {_show(value)}")
    if len(value) > most:
        raise _MisfitError(f"expected at most {most} characters, found {len(value)}: {_show(value)}")
    if value.isprintable() or not UNWRITABLE.search(value):
        return value
    raise _MisfitError(f"expected text without NUL and halves of surrogate pairs, found {_show(value)}")


def _matching(text: _Decoder, pattern: re.Pattern[str], value: Any) -> str:
    found: str = text(value)
    if not pattern.fullmatch(found):
        raise _MisfitError(f"expected text like {pattern.pattern}, found {_show(value)}")
    return found


def _moment(text: _Decoder, value: Any) -> str:
    try:
        return moment(text(value)).isoformat(timespec="seconds")
    except ValueError as error:
        raise _MisfitError(f"{error}, found {_show(value)}") from error


def _free(value: Any, depth: int = MOST_DEPTH) -> Any:
    """Return `value` as it is, where it keeps to the default bounds of all its types."""
    if isinstance(value, str):
        _text(MOST_CHARACTERS, value)
    elif isinstance(value, dict | list):
        _free_items(value, depth)
    elif isinstance(value, float):
        _float(-MOST_NUMBER, MOST_NUMBER, value)
    elif value is not None:
        _within(-MOST_WHOLE, MOST_WHOLE, value)
    return value


def _free_items(value: dict[str, Any] | list[Any], depth: int) -> None:
    if len(value) > MOST_ITEMS:
        raise _MisfitError(f"expected at most {MOST_ITEMS} items, found {len(value)}")
    if not depth:
        raise _MisfitError(f"expected at most {MOST_DEPTH} objects and lists inside each other, found more")
    step: object = None
    try:
        if isinstance(value, dict):
            plain = _plain(value, MOST_KEY)
            for step, item in value.items():
                if not plain:
                    _text(MOST_KEY, step)
                _free(item, depth - 1)
        elif value and not (
            _usual_numbers(value) if isinstance(value[0], int | float) else _plain(value, MOST_CHARACTERS)
        ):
            for step, item in enumerate(value):  # noqa: B007 - used where it fails
                _free(item, depth - 1)
    except _MisfitError as error:
        error.steps.append(f"[{step}]" if isinstance(value, list) else f".{_key(str(step))}")
        raise


def _plain(values: typing.Collection[Any], most: int) -> bool:
    """Return whether these are texts that are usual even as one; False where that takes a closer look."""
    try:
        together = "".join(values)
    except TypeError:
        return False
    return len(together) <= most and together.isprintable()


def _usual_numbers(values: list[Any]) -> bool:
    """Return whether these are numbers within the default bounds; False where that takes a closer look."""
    try:
        # The sum, because what is not a number could hide between least and most.
        return math.isfinite(sum(values)) and max(*values, -min(values)) <= MOST_NUMBER
    except (TypeError, OverflowError):
        return False


MOST_SHOWN = 60
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = MOST_SHOWN


def _show(value: Any) -> str:
    text = _shown.repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."
