"""What an auditor's OpenSCAP found on a node, beside what Temper's own statement says of the same.

The results are of a foreign program on a foreign machine: an XCCDF 1.2 document, alone or in an ARF (NIST IR
7275 and 7694). The reader keeps nothing but the result of each rule, refuses a document type, and thereby
entities, and has limits on bytes, depth, rules, and a single tag or comment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO
from xml.parsers import expat

from temper.compliance.model import State
from temper.compliance.tailoring import CONTENT, XCCDF, Known, exemptions, owners_of
from validation.model.contract import StringEnum
from validation.model.printable import printable

#: An ARF has the data stream and what OVAL has collected: some 60 MB.
MOST_BYTES = 512 << 20
#: A tag that does not end is parsed anew with each piece.
MOST_UNPARSED = 2 << 20
MOST_DEPTH = 200
MOST_RULES = 10_000
MOST_TEXT = 300
PIECE = 1 << 20
#: From the worst on: a rule that is judged several times has the worst of its results. NIST IR 7275, 6.6.4.2.
RESULTS = (
    *("fail", "error", "unknown", "notchecked", "pass", "fixed", "notapplicable", "notselected"),
    "informational",
)
RULE = re.compile(rf"{re.escape(CONTENT)}_rule_([A-Za-z0-9_.-]{{1,200}})")


class ScanError(ValueError):
    """A sentence on a document that is no result of a scan."""


@dataclass(frozen=True)
class Scan:
    """The machine's name and the profile, both by the document's own word, and the result of each rule."""

    target: str
    profile: str
    results: dict[str, str]


class _Reader:
    """Takes what is wanted out of the document's events."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.tests = 0
        self.rule = self.target = self.profile = self.text = ""
        self.results: dict[str, str] = {}
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self.doctype
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters

    def doctype(self, *_: object) -> None:
        raise ScanError(
            "expected no document type (DOCTYPE), which results of OpenSCAP never have; found one"
        )

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.path) >= MOST_DEPTH:
            raise ScanError(f"expected at most {MOST_DEPTH} elements within each other, found more")
        namespace, _, local = name.rpartition(" ")
        self.path.append(local if namespace == XCCDF else "")
        self.text = ""
        if self.path[-1] == "TestResult":
            self.tests += 1
        elif self.path[-2:] == ["TestResult", "profile"]:
            self.profile = attributes.get("idref", "")[:MOST_TEXT]
        elif self.path[-2:] == ["TestResult", "rule-result"]:
            found = RULE.fullmatch(attributes.get("idref", ""))
            self.rule = found[1] if found else ""

    def characters(self, text: str) -> None:
        self.text = (self.text + text)[:MOST_TEXT]

    def end(self, _: str) -> None:
        if self.path[-3:] == ["TestResult", "rule-result", "result"] and self.rule:
            self.judge(self.text.strip())
        elif self.path[-2:] == ["TestResult", "target"]:
            self.target = self.text.strip()
        self.path.pop()

    def judge(self, result: str) -> None:
        if result not in RESULTS:
            raise ScanError(f"{self.rule}: expected {', '.join(RESULTS)}, found {result or 'nothing'}")
        former = self.results.get(self.rule, result)
        self.results[self.rule] = min(former, result, key=RESULTS.index)
        if len(self.results) > MOST_RULES:
            raise ScanError(f"expected at most {MOST_RULES} rules, found more")


def read(stream: BinaryIO) -> Scan:
    """Return what a document says. Raises ScanError, OSError."""
    reader = _Reader()
    fed = parsed = 0
    try:
        while piece := stream.read(PIECE):
            if (fed := fed + len(piece)) > MOST_BYTES:
                raise ScanError(f"expected at most {MOST_BYTES >> 20} MiB, found more")
            reader.parser.Parse(piece, False)
            # -1 before the first token, and where expat waits for more.
            parsed = max(parsed, reader.parser.CurrentByteIndex)
            if fed - parsed > MOST_UNPARSED:
                raise ScanError(
                    f"expected the end of a tag or comment within {MOST_UNPARSED >> 20} MiB, "
                    f"found none after byte {parsed}"
                )
        reader.parser.Parse(b"", True)
    except ScanError:
        raise
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two for an encoding
        raise ScanError(f"expected XML, found what is none: {error}") from error
    if reader.tests != 1 or not reader.results:
        raise ScanError(
            "expected one TestResult of XCCDF 1.2 with rules of ComplianceAsCode (`oscap xccdf eval "
            f"--results` or `--results-arf`), found {reader.tests} with {len(reader.results)} such rules"
        )
    return Scan(printable(reader.target), printable(reader.profile), reader.results)


def same_machine(target: str, node: str) -> bool:
    """Return whether both name one machine, where one of them may have the domain too."""
    one, other = target.lower(), node.lower()
    return one == other or bool(one and (other.startswith(f"{one}.") or one.startswith(f"{other}.")))


class Relation(StringEnum):
    """How a scanner and Temper stand to each other on one rule; what somebody has to look at first."""

    SCANNER_FAILS = "scanner-fails"
    TEMPER_FAILS = "temper-fails"
    UNKNOWN = "unknown"
    BOTH_FAIL = "both-fail"
    EXPLAINED = "explained"
    AGREE = "agree"
    NOT_JUDGED = "not-judged"

    @property
    def meaning(self) -> str:
        """What it says of its rules, for people."""
        return MEANINGS[self]

    @property
    def disagrees(self) -> bool:
        """Whether the two contradict each other, or Temper cannot say anything on what the scanner found."""
        return self in (Relation.SCANNER_FAILS, Relation.TEMPER_FAILS, Relation.UNKNOWN)


MEANINGS = {
    Relation.SCANNER_FAILS: "the scanner fails these rules, and the report does not fail their control",
    Relation.TEMPER_FAILS: "the scanner passes these rules, and the report fails their control",
    Relation.UNKNOWN: "the scanner fails these rules, and the report says nothing about them",
    Relation.BOTH_FAIL: "the scanner fails these rules, and the report their control",
    Relation.EXPLAINED: "the scanner fails these rules for the reasons given",
    Relation.AGREE: "the scanner passes these rules, and the report fails none of their controls",
    Relation.NOT_JUDGED: "the scanner did not select or check these rules, or found them not applicable",
}


@dataclass(frozen=True)
class Compared:
    """A rule: its result, the control (or role) that answers it and its state, and why the two differ."""

    rule: str
    result: str
    control: str
    state: str
    relation: Relation
    reason: str = ""


def compared(
    scan: Scan, controls: Mapping[str, Any], table: Mapping[str, Any], known: Known
) -> list[Compared]:
    """Return each rule of a scan beside Temper's own word, what has to be looked at first."""
    owners, exempt = owners_of(controls, table), exemptions(controls, table, known)
    found = []
    for rule, result in scan.results.items():
        owner = owners.get(rule, "")
        state = (known.states or {}).get(owner)
        excuse = exempt[rule].reason if rule in exempt else ""
        relation = _relation(result, state, bool(excuse))
        reason = excuse if relation is Relation.EXPLAINED else ""
        found.append(Compared(rule, result, owner, state or "", relation, reason))
    order = list(Relation)
    return sorted(found, key=lambda one: (order.index(one.relation), one.control, one.reason, one.rule))


def _relation(result: str, state: State | None, excused: bool) -> Relation:
    if result in ("pass", "fixed"):
        return Relation.TEMPER_FAILS if state is State.FAIL else Relation.AGREE
    if result not in ("fail", "error", "unknown"):
        return Relation.NOT_JUDGED
    if excused:
        return Relation.EXPLAINED
    if state in (None, State.NOT_CHECKED):
        return Relation.UNKNOWN
    return Relation.BOTH_FAIL if state is State.FAIL else Relation.SCANNER_FAILS
