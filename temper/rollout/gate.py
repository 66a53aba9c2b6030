"""The gate: does a node with the new driver do what it did with the old one, an hour ago?

Pure: from results of the payload on both sides, settings read back and findings of the soak to a verdict with
its reasons and numbers. Nothing is measured, asked or stored here.

Numbers pair by test, method, conditions and GPU (UUID). One fails the node where the median of its GPUs lost
more than the limit and more than chance explains, and does so again in a second round: a gate that looks at
dozens of numbers would otherwise roll back good nodes. What cannot be told from chance is measured again, a
bounded number of times. A number that did not fall never fails a node. Everything else is a comparison of
states, not of numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from temper.judge import pairing
from temper.rollout import gpu_settings
from temper.rollout.noise import Series
from validation.model import checksums
from validation.model.contract import Finding, NodeResult, State, StringEnum, TestResult
from validation.model.grouping import by_key
from validation.model.printable import first_of
from validation.model.quantities import is_searched, label, number, unit
from validation.verdict.baseline import among
from validation.verdict.verdicts import NodeVerdict, TestVerdict

#: What an Xid or SXid is called among the findings: one in the soak fails the node at once.
ERRORS_OF_THE_DRIVER = ("xid-", "sxid-")
#: Storage is shared, and no driver of GPUs makes it slower.
NOT_OF_THE_DRIVER = frozenset(
    {"storage_read", "storage_write", "storage_random_read", "storage_checkpoint", "storage_loading"}
)
#: What tests of GPUs are called (quantities.of_gpus).
OF_GPUS = "gpu_"


class GateState(StringEnum):
    """What the gate says of a node."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    MEASURE_AGAIN = "measure-again"


@dataclass(frozen=True)
class Rules:
    """What the gate allows. Losses are parts of what was measured before.

    `limit` is what the median of a node's GPUs may lose. `must_find` is the loss that no noise may hide:
    numbers that scatter further are measured again, and a node with no better ones is no baseline. In the
    last round of the new driver `widest_noise` must do: then a median within the limit still rules out a loss
    of 10 %. `one_gpu_limit` is for one GPU whose neighbours are as fast as before, `host_limit` for CPUs and
    memory of the host. `runs` is how many results a side needs in each round, `rounds` how often that many
    are taken. `numbers` are patterns of tests whose numbers decide. `accepted` are codes of findings that a
    node may have had before: a weakness that the operator knows. `overruled`: a person has accepted this
    node, so that neither numbers nor weaknesses decide; faults do. `way_back`: the former driver is judged,
    which only a loss that is shown keeps out of service.
    """

    limit: float = 0.03
    must_find: float = 0.06
    widest_noise: float = 0.15
    one_gpu_limit: float = 0.10
    host_limit: float = 0.20
    runs: int = 5
    rounds: int = 3
    #: Runs are unsteady where most of them scatter so many times as far as those before. A few that stand out
    #: are not enough: of many numbers, one has them on a good driver, too.
    unsteady: float = 4.0
    numbers: tuple[str, ...] = ("*",)
    accepted: frozenset[str] = frozenset()
    overruled: bool = False
    way_back: bool = False

    @property
    def compares_numbers(self) -> bool:
        """Whether any number decides."""
        return bool(self.numbers) and not self.overruled

    def decides(self, test: str) -> bool:
        """Return whether the numbers of this test decide."""
        return self.compares_numbers and any(fnmatchcase(test, pattern) for pattern in self.numbers)


@dataclass(frozen=True)
class Compared:
    """One number, before and after: medians over runs and GPUs, what was lost, and what chance explains.

    `gpus` says what each GPU lost, by UUID. `said` is a sentence.
    """

    test: str
    name: str
    conditions: tuple[tuple[str, str], ...]
    before: float
    after: float
    loss: float
    noise: float
    gpus: Mapping[str, float]
    said: str


@dataclass(frozen=True)
class GateVerdict:
    """The verdict; `reasons` are sentences, empty for a pass. `notes` decide nothing, but are worth saying.

    `numbers` are losses and noise by name, as parts, for a report and for machines.
    """

    verdict: GateState
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    compared: tuple[Compared, ...] = ()


@dataclass
class _Said:
    """What has been found so far. A reason to measure again becomes one to fail when no round is left."""

    fail: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)

    def verdict(self, rules: Rules, round_number: int) -> GateVerdict:
        numbers = {
            f"{name}_{what}": round(value, 5)
            for one in self.compared
            for name in (".".join((one.test, one.name, *(text for _, text in one.conditions))),)
            for what, value in (("loss", one.loss), ("noise", one.noise))
        }
        verdict, reasons = GateState.PASS, list[str]()
        if self.fail:
            verdict, reasons = GateState.FAIL, self.fail
        elif self.again and round_number < rules.rounds:
            verdict, reasons = GateState.MEASURE_AGAIN, self.again
        elif self.again:
            verdict = GateState.FAIL
            reasons = [
                f"{one.rstrip('.')} (still so in round {round_number}, the last)." for one in self.again
            ]
        return GateVerdict(
            verdict,
            tuple(dict.fromkeys(reasons)),
            tuple(dict.fromkeys(self.notes)),
            numbers,
            tuple(self.compared),
        )


def judge_baseline(
    before: Sequence[NodeResult],
    judged: Sequence[NodeVerdict] = (),
    *,
    rules: Rules = Rules(),
    round_number: int = 1,
) -> GateVerdict:
    """Return whether a node on its old driver can be the measure of the new one.

    Fail means: leave it out, as it is.

    `judged` are the verdicts on the same results, each of a report on this node alone: they know references,
    and what equal GPUs of the node say of each other, not the rest of the fleet nor the node's past. What was
    slow or broken before is refused here, and never blamed on the upgrade.
    """
    said = _Said()
    _alike(before, said)
    if len(before) < rules.runs:
        said.again.append(f"The baseline has {len(before)} results; {rules.runs} are needed.")
    _something_ran(before, "old", said)
    node = before[0].node if before else "the node"
    found = [
        {(test.id, one.code): one for test in run.tests for one in test.findings}
        for run in (judged or before)
    ]
    for key in dict.fromkeys(key for run in found for key in run):
        runs = [run[key] for run in found if key in run]
        known = rules.overruled or key[1] in rules.accepted
        if known and all(one.state is State.DEGRADED for one in runs):
            said.notes.append(f"Known before and accepted: {runs[0].text}")
        elif _clear(len(runs), len(found)) or any(map(_of_the_driver, runs)):
            said.fail.append(
                f"{node} was {runs[0].state} before the upgrade ({key[0]}: {runs[0].text.rstrip('.')}): "
                "repair that first."
            )
        else:
            said.again.append(
                f"{key[0]} found in {len(runs)} of {len(found)} runs on the old driver: {runs[0].text}"
            )
    for test, states in _states(before).items():
        if State.NOT_RUN in states and len(set(states)) > 1:
            said.again.append(f"{test} ran only in some of the runs on the old driver.")
        elif State.FAIL in states and not any(test == key[0] for run in found for key in run):
            said.fail.append(f"{node} failed {test} before the upgrade: repair that first.")
    for test_id, verdicts in _required_and_not_run(judged).items():
        where = f"in {len(verdicts)} of {len(judged)} runs on the old driver"
        why = verdicts[0].reason.rstrip(".") or "no reason given"
        to = said.fail if _clear(len(verdicts), len(judged)) else said.again
        to.append(f"{test_id} is required and was not run {where}: {why}.")
    for test, bits in _unstable(before):
        said.fail.append(f"{test}: {bits} changed from run to run on the old driver: this GPU is no measure.")
    steady, unsteady = False, list[str]()
    for what, series in _series(before, before).items():
        limit, find = _limits(what[0], rules)
        noise = series.noise(series.sigma_before())
        if limit is not None and noise <= find:
            steady = True
        elif limit is not None:
            unsteady.append(f"{_name(*what)} on the old driver: {_too_noisy(noise, find)}.")
    said.notes += unsteady
    if before and not steady and not said.fail and rules.compares_numbers and not rules.way_back:
        said.again.append(
            "No number is steady enough on the old driver to judge the new one by. "
            + (unsteady[0] if unsteady else "None was measured whose changes a driver causes.")
        )
    return said.verdict(rules, round_number)


def judge(
    before: Sequence[NodeResult],
    after: Sequence[NodeResult],
    *,
    settings_before: Mapping[str, Mapping[str, str]] | None = None,
    settings_after: Mapping[str, Mapping[str, str]] | None = None,
    rules: Rules = Rules(),
    round_number: int = 1,
) -> GateVerdict:
    """Return the verdict on a node with its new driver.

    All rounds' results are given, not only the last one's.

    Settings are those that were read back (gpu_settings.py).

    Raises:
        ValueError: the results are of two nodes, or of none.
    """
    if not before or not after:
        raise ValueError("The gate compares results, and found none on one side.")
    if names := {run.node for run in (*before, *after)} - {before[0].node}:
        raise ValueError(f"The gate compares a node with itself, found {before[0].node} and {names.pop()}.")
    said = _Said()
    if settings_before is not None and settings_after is not None:
        judge_settings(settings_before, settings_after, said.fail, said.notes)
    _gpus(before, after, said)
    comparable = _alike([*before, *after], said)
    for side, runs in (("old", before), ("new", after)):
        if len(runs) < rules.runs:
            said.again.append(f"{len(runs)} results on the {side} driver; {rules.runs} are needed.")
        _something_ran(runs, side, said)
    if comparable:
        _tests(before, after, said)
        _findings(before, after, said, rules, last=round_number >= rules.rounds)
        _numbers(before, after, said, rules, round_number)
        _bits(before, after, said)
    return said.verdict(rules, round_number)


def errors_in_soak(findings: Iterable[Finding]) -> list[str]:
    """Return what fails a node after its soak, of all that `health` finds then: one Xid or SXid is enough."""
    return [one.text for one in findings if _of_the_driver(one) or one.state is State.FAIL]


def judge_settings(
    before: Mapping[str, Mapping[str, str]],
    after: Mapping[str, Mapping[str, str]],
    lost: list[str],
    notes: list[str],
) -> None:
    """Add a sentence to `lost` for each setting that is another one now, to `notes` for what is not said.

    What is the same of several GPUs is one sentence.
    """
    absent: dict[str, list[str]] = {}
    changed: dict[str, list[str]] = {}
    for gpu, settings in before.items():
        now = after.get(gpu)
        if now is None:
            lost.append(f"GPU {gpu} gave no settings with the new driver.")
            continue
        for name, was in settings.items():
            # A mode that waited for a boot has had one.
            value = settings.get(f"pending {name}", was)
            if name not in now:
                absent.setdefault(f"the new driver does not say the {name}, which was {value}", []).append(
                    gpu
                )
            elif not gpu_settings.alike(name, value, now[name]):
                text = f"{name} was {value}, and is {now[name]} since the upgrade"
                changed.setdefault(text, []).append(gpu)
    notes += [f"{_named(gpus)}: {text}." for text, gpus in absent.items()]
    lost += [f"{_named(gpus)}: {text}." for text, gpus in changed.items()]


def _named(uuids: Sequence[str]) -> str:
    """Return one GPU by its UUID, several by their number and the first of them."""
    return f"GPU {uuids[0]}" if len(uuids) == 1 else f"{len(uuids)} GPUs ({first_of(uuids, 2)})"


def _limits(test: str, rules: Rules) -> tuple[float | None, float]:
    """Return what a number of a test may lose, and the loss that must be found; None: it does not decide."""
    if test in NOT_OF_THE_DRIVER or not rules.decides(test):
        return None, 0.0
    if test.startswith(OF_GPUS):
        return rules.limit, rules.must_find
    return rules.host_limit, 2 * rules.host_limit


def _clear(runs: int, of: int) -> bool:
    return 2 * runs > of


def _of_the_driver(one: Finding) -> bool:
    return one.code.startswith(ERRORS_OF_THE_DRIVER)


def _alike(runs: Sequence[NodeResult], said: _Said) -> bool:
    """Return whether results were taken in one way; where not, why they do not compare."""
    asked: tuple[tuple[str, Callable[[NodeResult], str]], ...] = (
        ("plans", lambda run: run.plan),
        ("versions of torch", lambda run: run.machine.torch or "none"),
        ("CPUs", lambda run: f"{run.machine.cpus} x {run.machine.cpu_model}"),
    )
    for what, of in asked:
        if len(found := dict.fromkeys(map(of, runs))) > 1:
            said.again.append(
                f"The results do not compare, because their {what} differ ({', '.join(found)}): measure both "
                "sides in the same way."
            )
            return False
    methods: dict[str, set[int]] = {}
    for run in runs:
        for test in filter(_ran, run.tests):
            methods.setdefault(test.id, set()).add(test.method)
    for test_id, versions in methods.items():
        if len(versions) > 1:
            said.again.append(
                f"{test_id} was measured by methods {' and '.join(map(str, sorted(versions)))}, whose "
                "numbers do not compare: measure both sides with one version of the payload."
            )
            return False
    return True


def _ran(test: TestResult) -> bool:
    return test.state is not State.NOT_RUN


def _something_ran(runs: Sequence[NodeResult], side: str, said: _Said) -> None:
    """Whatever the rules: where no test ran, nothing is known of a node."""
    if not any(_ran(test) for run in runs for test in run.tests):
        said.again.append(f"No test ran on the {side} driver, so nothing tells whether the node works.")


def _required_and_not_run(judged: Sequence[NodeVerdict]) -> dict[str, list[TestVerdict]]:
    every = (test for run in judged for test in run.tests)
    return by_key((test.id, test) for test in every if test.required and test.state is State.NOT_RUN)


def _gpus(before: Sequence[NodeResult], after: Sequence[NodeResult], said: _Said) -> None:
    had = {gpu.uuid: gpu for run in before for gpu in run.gpus}
    for uuid, gpu in had.items():
        missing = sum(uuid not in {one.uuid for one in run.gpus} for run in after)
        if missing:
            runs = "" if missing == len(after) else f" in {missing} of {len(after)} runs"
            said.fail.append(f"GPU {uuid} ({gpu.name}, {gpu.pci_address}) is gone since the upgrade{runs}.")
    new = {gpu.uuid: gpu for run in after for gpu in run.gpus if gpu.uuid not in had}
    for uuid, gpu in new.items():
        said.fail.append(
            f"GPU {uuid} ({gpu.pci_address}) was not there before, so nothing tells whether it is as fast "
            f"as it was."
        )


def _states(runs: Sequence[NodeResult]) -> dict[str, list[State]]:
    return by_key((test.id, test.state) for run in runs for test in run.tests)


def _tests(before: Sequence[NodeResult], after: Sequence[NodeResult], said: _Said) -> None:
    """Require that what was measured before is measured now."""
    now = _states(after)
    for test, states in _states(before).items():
        if State.NOT_RUN in states or len(states) < len(before):
            continue
        ran = [state for state in now.get(test, []) if state is not State.NOT_RUN]
        why = next((one.reason for run in after for one in run.tests if one.id == test and one.reason), "")
        reason = f": {why}" if why else ""
        if not ran:
            said.fail.append(f"{test} was measured before the upgrade and is not-run now{reason}.")
        elif len(ran) < len(after):
            said.again.append(f"{test} ran in {len(ran)} of {len(after)} runs on the new driver{reason}.")


def _findings(
    before: Sequence[NodeResult], after: Sequence[NodeResult], said: _Said, rules: Rules, *, last: bool
) -> None:
    """Note what is wrong now and was not before, by GPU."""

    def of(run: NodeResult) -> dict[tuple[str, str | int | None], tuple[str, Finding]]:
        uuids: dict[int, str] = {gpu.index: gpu.uuid for gpu in run.gpus}
        return {
            (one.code, None if one.device is None else uuids.get(one.device, one.device)): (test.id, one)
            for test in run.tests
            for one in test.findings
        }

    known = {key for run in before for key in of(run)}
    found = [of(run) for run in after]
    for key in dict.fromkeys(key for run in found for key in run if key not in known):
        runs = [run[key] for run in found if key in run]
        test, one = runs[-1]
        text = f"{test}: {one.text.rstrip('.')}"
        if rules.overruled and all(
            one.state is State.DEGRADED and not _of_the_driver(one) for _, one in runs
        ):
            said.notes.append(f"New since the upgrade, and accepted: {text}.")
        elif _of_the_driver(one) or _clear(len(runs), len(found)):
            said.fail.append(f"New since the upgrade: {text}.")
        elif last:
            said.notes.append(f"In {len(runs)} of {len(found)} runs since the upgrade: {text}.")
        else:
            said.again.append(f"In {len(runs)} of {len(found)} runs since the upgrade: {text}.")
    had, named = _states(before), {test for run in found for test, _ in run.values()}
    for test_id, states in _states(after).items():
        failed = states.count(State.FAIL)
        if failed and State.FAIL not in had.get(test_id, [State.FAIL]) and test_id not in named:
            said.fail.append(
                f"{test_id} passed before the upgrade and failed in {failed} of {len(after)} runs since."
            )


_SeriesKey = tuple[str, str, tuple[tuple[str, str], ...]]


def _values(runs: Sequence[NodeResult]) -> dict[_SeriesKey, dict[str | None, list[float]]]:
    """Return each number's values, run by run: test, name and conditions -> GPU -> values.

    Those of a searched shape are left out: it may be another one in each run, whatever the driver.
    """
    found: dict[_SeriesKey, dict[str | None, list[float]]] = {}
    for run in runs:
        for test in filter(_ran, run.tests):
            for key, one in pairing.numbers(test, run, by_uuid=True).items():
                if is_searched(key.name):
                    continue
                where = None if key.where is None else str(key.where)
                by_gpu = found.setdefault((test.id, key.name, key.conditions), {})
                by_gpu.setdefault(where, []).append(one.value)
    return found


def _series(before: Sequence[NodeResult], after: Sequence[NodeResult]) -> dict[_SeriesKey, Series]:
    """Return the numbers that both sides have of at least one GPU."""
    was, now = _values(before), _values(after)
    found = {key: Series(values, now.get(key, {})) for key, values in was.items()}
    return {key: series for key, series in found.items() if series.devices}


def _numbers(
    before: Sequence[NodeResult],
    after: Sequence[NodeResult],
    said: _Said,
    rules: Rules,
    round_number: int,
) -> None:
    was, now = _values(before), _values(after)
    gpus = {gpu.uuid for run in after for gpu in run.gpus}
    ran = {test for test, states in _states(after).items() if set(states) != {State.NOT_RUN}}
    for key, values in was.items():
        # A GPU that is gone, and a test that does not run, have their own sentence.
        here = [where for where in values if where is None or where in gpus]
        if key[0] in ran and (missing := [where for where in here if where not in now.get(key, {})]):
            _one_side(key, missing, now, said)
    for key in now:
        if key not in was:
            said.notes.append(f"{_name(*key)} was measured with the new driver only, so it proves nothing.")
    proven = 0
    both = _series(before, after)
    for key, series in both.items():
        proven += _number(key, series, said, rules, round_number, len(both))
    if not proven and not said.fail and not said.again and rules.compares_numbers:
        # Only a number that fell speaks against the new driver, and the former one needs no proof.
        fell = any(rules.decides(one.test) and one.loss > 0 for one in said.compared)
        why = "; ".join(dict.fromkeys(said.undecided)) or "none was measured on both drivers"
        passes = rules.way_back or (said.undecided and not fell)
        (said.notes if passes else said.fail).append(f"No number could decide: {why}.")


def _one_side(
    key: _SeriesKey, missing: Sequence[str | None], now: Mapping[_SeriesKey, object], said: _Said
) -> None:
    """Note a number that was there before and is not now, at least not of these GPUs."""
    test, name, conditions = key
    where = ", ".join(f"GPU {gpu}" for gpu in missing if gpu is not None)
    on = f" on {where}" if where else ""
    others = [other[2] for other in now if other[:2] == (test, name) and other[2] != conditions]
    if others and key not in now:
        said.again.append(
            f"{_name(*key)} was measured before, now with {_conditions(others[0])}: measure both sides with "
            f"the same "
            "shapes and options."
        )
    else:
        said.fail.append(f"{_name(*key)}{on} was measured before the upgrade and is missing now.")


def _number(key: _SeriesKey, series: Series, said: _Said, rules: Rules, round_number: int, of: int) -> bool:
    """Judge one number `of` so many; returns whether it proves anything."""
    limit, find = _limits(key[0], rules)
    sigma = series.sigma()
    loss, noise, losses = series.loss(), series.noise(sigma), series.losses()
    if not losses:
        return False
    compared = _compared(key, series, loss, noise, losses)
    said.compared.append(compared)
    if limit is None:
        why = "it is not the driver's" if key[0] in NOT_OF_THE_DRIVER else "the policy or a person says so"
        said.notes.append(f"{compared.said}. It does not decide, because {why}.")
        return False
    first, last = round_number == 1, round_number >= rules.rounds
    if loss > limit and loss > noise * among(of):
        if first and not last:
            said.again.append(f"{compared.said}. One more round has to confirm that loss.")
        else:
            said.fail.append(f"{compared.said}. A loss of {percent(limit)} is allowed.")
        return True
    if noise > (max(find, rules.widest_noise) if last else find):
        return _noisy(series, compared, said, find, rules, last=last)
    if loss > limit and not last:
        said.again.append(
            f"{compared.said}. That is more than {percent(limit)}, and chance alone could explain it."
        )
    elif loss > find:
        # The rule is both, limit and noise; but what may have lost so much is no proof either.
        said.undecided.append(f"{compared.said}, which chance alone could explain")
        said.notes.append(f"{said.undecided[-1]}, so it does not decide.")
        return False
    elif loss > limit or noise > find:
        said.notes.append(f"{compared.said}. Chance alone could explain that, also in {round_number} rounds.")
    _one_gpu(compared, series, said, rules, last=last)
    return True


def _noisy(series: Series, compared: Compared, said: _Said, find: float, rules: Rules, *, last: bool) -> bool:
    """Note a number that scatters too far, and return whether it decides all the same.

    It is measured again. In the last round it fails the node where only the runs of the new driver scatter.
    """
    text = f"{compared.said}. {_too_noisy(compared.noise, find).capitalize()}"
    if not last:
        said.again.append(f"{text}.")
    elif (
        compared.loss > 0
        and not rules.way_back
        and series.noise(series.sigma_before()) <= find
        and series.usual_after() > rules.unsteady * series.sigma_before()
        and series.noise(series.usual_after()) > rules.widest_noise
    ):
        said.fail.append(f"{text}. Before the upgrade its runs were steady.")
        return True
    else:
        said.undecided.append(text)
        said.notes.append(f"{text}. So it does not decide.")
    return False


def _too_noisy(noise: float, find: float) -> str:
    """Say what the scatter of the runs hides."""
    return (
        f"the runs scatter so much that chance alone could explain {percent(noise)}; even a loss of "
        f"{percent(find)} could not be detected"
    )


def _one_gpu(compared: Compared, series: Series, said: _Said, rules: Rules, *, last: bool) -> None:
    """Note a GPU that lost far more than its neighbours: hardly the driver, but not to return to service."""
    if len(compared.gpus) < 2:
        return
    noise = series.noise(series.sigma_of_gpus())
    for gpu, loss in compared.gpus.items():
        if loss > rules.one_gpu_limit and loss > noise:
            text = (
                f"{compared.test} {label(compared.name)} of GPU {gpu} alone: {percent(-loss, '+.1f')} (all "
                f"GPUs: {percent(-compared.loss, '+.1f')}): look at this GPU, as the driver would slow all "
                "of them"
            )
            (said.fail if last else said.again).append(f"{text}.")
        elif loss > rules.limit and loss > noise:
            said.notes.append(
                f"{compared.test} {label(compared.name)} of GPU {gpu} alone: {percent(-loss, '+.1f')}."
            )


def _compared(
    key: _SeriesKey, series: Series, loss: float, noise: float, losses: Mapping[str | None, float]
) -> Compared:
    test, name, conditions = key
    was, now = (
        statistics.median(value for device in series.devices for value in side[device])
        for side in (series.before, series.after)
    )
    gpus = {gpu: value for gpu, value in losses.items() if gpu is not None}
    of = f", median of {len(gpus)} GPUs" if len(gpus) > 1 else ""
    said = f"{_name(*key)}: {number(was)} -> {number(now)} {unit(name)} ({percent(-loss, '+.1f')}{of})"
    return Compared(test, name, conditions, was, now, loss, noise, gpus, said)


def percent(part: float, form: str = ".0f") -> str:
    """Write a part as people read it: `-18.5 %`."""
    return f"{100 * part:{form}} %"


def _name(test: str, name: str, conditions: tuple[tuple[str, str], ...]) -> str:
    size = dict(conditions).get("size_bytes", "")
    of = f" of {int(size) / 1e6:.0f} MB" if size.isdigit() else ""
    return f"{test} {label(name)}{of}"


def _conditions(conditions: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {value}" for name, value in conditions) or "no conditions"


_Bits = dict[tuple[str, "pairing.DigestKey"], list[str]]


def _digests(runs: Sequence[NodeResult]) -> tuple[_Bits, dict[tuple[str, pairing.DigestKey], str]]:
    """Return the checksums of the runs, and what each is of."""
    found: _Bits = {}
    what: dict[tuple[str, pairing.DigestKey], str] = {}
    for run in runs:
        for test in run.tests:
            for key, one in pairing.digests(test, run, by_uuid=True).items():
                found.setdefault((test.id, key), []).append(one.value)
                what[test.id, key] = f"the bits of the {checksums.product(one)} on GPU {key.where}"
    return found, what


def _unstable(runs: Sequence[NodeResult]) -> Iterator[tuple[str, str]]:
    """Checksums that changed between runs with one driver: test and product."""
    found, what = _digests(runs)
    for key, values in found.items():
        if len(set(values)) > 1:
            yield key[0], what[key]


def _bits(before: Sequence[NodeResult], after: Sequence[NodeResult], said: _Said) -> None:
    """Checksums: a GPU repeats itself, and where the driver is another, all GPUs have changed alike."""
    was, _ = _digests(before)
    now, what = _digests(after)
    for test, text in _unstable(after):
        said.fail.append(f"{test}: {text} change from run to run since the upgrade: this GPU computes wrong.")
    drivers = {run.machine.driver for run in before}
    same_driver = drivers == {run.machine.driver for run in after}
    changed = [key for key, values in now.items() if key in was and set(values).isdisjoint(was[key])]
    for key in changed:
        test, digest = key
        peers = [
            (other, values)
            for other, values in now.items()
            if other[0] == test and other in was and _product_of(other[1]) == _product_of(digest)
        ]
        agreed = len({was[other][0] for other, _ in peers}) == 1
        agree = len({values[0] for _, values in peers}) == 1
        if same_driver:
            said.fail.append(f"{test}: {what[key]} are others than before, with the same driver.")
        elif agreed and not agree:
            said.fail.append(
                f"{test}: {what[key]} are others than before, and others than those of equal GPUs, which "
                "all agreed."
            )
        else:
            said.notes.append(
                f"{test}: {what[key]} are others than before: another driver may compile other code, and "
                f"equal GPUs "
                "agree."
            )


def _product_of(key: pairing.DigestKey) -> tuple[object, ...]:
    return key.method, key.name, key.conditions, key.pci_id
