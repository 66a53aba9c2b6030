"""From a report to its files: one HTML file, or, of many nodes, an index and a page of each node."""

from __future__ import annotations

import base64
import hashlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from markupsafe import Markup

from temper.compliance.alike import Once
from temper.compliance.model import ControlResult
from temper.judge.unshown import Unshown
from temper.report import fleet, node, words
from temper.report.changes import Change
from temper.report.inputs import Report, no_past
from temper.report.metrics import FleetNumbers, Hardware
from validation.model.grouping import by_key
from validation.model.printable import number_of, printable
from validation.processes.files import write_all, write_atomically

if TYPE_CHECKING:
    import jinja2


T = TypeVar("T")
#: A report of so many nodes is one file, where that has at most so many bytes; mail and browsers take it.
MOST_IN_ONE_FILE = 30
MOST_BYTES = 10_000_000
#: In a fleet of more nodes than this only those have a page that somebody may have to look at: pages of
#: thousands of good nodes take longer than all the rest.
MOST_WITH_PAGES = 1000
FOLDER = "nodes"


def write(
    directory: Path,
    report: Report,
    name: str = "report.html",
    wanted: Collection[str] = (),
    unshown: Unshown | None = None,
) -> list[Path]:
    """Write the report; returns its files. Raises OSError.

    The pages of the nodes are written before the index that leads to them. `wanted` are nodes that have one
    in any case. `unshown` gets what cannot be shown of a node.
    """
    made = Pages(report, wanted, unshown)
    whole = made.whole()
    if whole is not None:
        write_atomically(directory / name, whole)
        return [directory / name]
    texts = made.nodes.texts(made.with_page, f"../{name}")
    written = write_all((directory / FOLDER / file, text) for file, text in texts)
    write_atomically(directory / name, made.index())
    return [*written, directory / name]


class Pages:
    """The pages of a report as text."""

    def __init__(self, report: Report, wanted: Collection[str] = (), unshown: Unshown | None = None) -> None:
        validation = report.validation
        results = validation.results if validation else {}
        hardware = Hardware(validation.references if validation else {})
        self._report = report
        self._wanted = wanted
        self._changed = fleet.changed_on(report)
        self._numbers = hardware.distributions(results)
        self._last_measured = max((result.started_at for result in results.values()), default="")
        numbers = FleetNumbers(hardware, self._numbers)
        self.nodes = NodePages(report, numbers, self._changed, Unshown() if unshown is None else unshown)
        self.names = sorted(self.nodes.names)

    def whole(self) -> str | None:
        """Return all in one file; None where that is too much for one."""
        if len(self.names) > MOST_IN_ONE_FILE:
            return None
        text = _render(
            self._report,
            "fleet.html.j2",
            page=self._fleet,
            nodes=[self.nodes.page_of(name) for name in self.names],
            address="#node-",
            linked=self.names,
            **_rows(),
        )
        return text if len(text.encode()) <= MOST_BYTES else None

    def index(self) -> str:
        """Return the page of the fleet, with links to those of the nodes."""
        return _render(
            self._report,
            "fleet.html.j2",
            page=self._fleet,
            nodes=[],
            address=f"{FOLDER}/",
            linked=set(self.with_page),
        )

    @cached_property
    def with_page(self) -> list[str]:
        """The nodes that have a page of their own: all, or of a large fleet those that the index leads to."""
        if len(self.names) <= MOST_WITH_PAGES:
            return self.names
        page = self._fleet
        others = {*(change.node for change in self._changed), *self._wanted}
        lowest = {spread.lowest_slug for spread in page.spreads}
        return [
            row.name for row in page.rows if row.kind != "good" or row.slug in lowest or row.name in others
        ]

    @cached_property
    def _fleet(self) -> fleet.FleetPage:
        return fleet.page_of(self._report, self._numbers, self._changed, self._last_measured)


class NodePages:
    """The pages of nodes."""

    def __init__(
        self, report: Report, numbers: FleetNumbers, changed: Iterable[Change], unshown: Unshown
    ) -> None:
        """`unshown` gets what cannot be shown of a node, which costs that alone."""
        validation, statement = report.validation, report.compliance
        self._report = report
        self._numbers = numbers
        self._unshown = unshown
        self._changed = by_key((change.node, change) for change in changed)
        self._verdicts = {one.node: one for one in validation.verdict.nodes} if validation else {}
        self._statements = {one.node: one for one in statement.nodes} if statement else {}
        self.names = self._verdicts.keys() | self._statements.keys()

    def page_of(self, name: str) -> node.NodePage:
        """Return what the page of a node shows."""
        validation = self._report.validation
        past = validation.past if validation else no_past
        known = self._known(name)
        result = known.result
        return self._attempt(
            name,
            lambda: node.page_of(
                known, self._numbers, past(result) if result else None, self._report.origin.options
            ),
            node.unshown,
        )

    def texts(self, names: Iterable[str], index: str) -> Iterator[tuple[str, str]]:
        """Yield the page of each node, by its file's name. `index` is what leads to it."""
        rows = _rows()

        def text(page: node.NodePage) -> str:
            return _render(self._report, "node.html.j2", node=page, index=index, **rows)

        for name in names:
            page = self.page_of(name)
            yield (
                f"{page.slug}.html",
                self._attempt(name, partial(text, page), lambda known, why: text(node.unshown(known, why))),
            )

    def _attempt(self, name: str, make: Callable[[], T], instead: Callable[[node.Known, str], T]) -> T:
        return self._unshown.attempt(name, "its page", make, partial(instead, self._known(name)))

    def _known(self, name: str) -> node.Known:
        validation = self._report.validation
        return node.Known(
            name,
            self._verdicts.get(name),
            validation.results.get(name) if validation else None,
            self._statements.get(name),
            tuple(self._changed.get(name, ())),
        )


def _rows() -> dict[str, _Rows]:
    """Return what makes hundreds of rows on each page, which are the same for nodes that are alike."""
    parts: Any = _environment().get_template("parts.html.j2").module
    return {"control_rows": _Rows(parts.control_row), "relaxed_rows": _Rows(parts.relaxed_row)}


def _render(report: Report, template: str, **values: Any) -> str:
    return printable(
        _environment().get_template(template).render(label=report.label, origin=report.origin, **values)
    )


class _Rows:
    """The rows of some controls, each made once for all pages of a report."""

    def __init__(self, macro: Callable[[ControlResult], str]) -> None:
        self._row = Once(macro)

    def __call__(self, controls: Iterable[ControlResult]) -> Markup:
        return Markup("".join(map(self._row, controls)))  # noqa: S704 - of a template, which escapes


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("temper.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    style, script = _asset("style.css"), _asset("script.js")
    environment.globals.update(
        number_of=number_of,
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy="; ".join(
            (
                "default-src 'none'",
                f"style-src {_hash(style)}",
                f"script-src {_hash(script)}",
                "base-uri 'none'",
                "form-action 'none'",
            )
        ),
        signs=words.SIGNS,
        kinds=fleet.NAMES,
        slug=words.slug,
        moment=words.moment,
    )
    return environment


def _asset(name: str) -> str:
    content = pkgutil.get_data("temper.report", f"templates/{name}")
    assert content is not None
    return f"\n{content.decode()}"


def _hash(text: str) -> str:
    """Return what a content security policy knows a style or script by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
