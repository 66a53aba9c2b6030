"""When nodes may be upgraded: windows by weekday and local time, less exclusions. Computed in UTC.

A window opens the first time that its zone's clock shows `start` or later on one of its days, and closes
the first time after that when it shows `end` or later. So where the clock jumps from 02:00 to 03:00, a
window from 02:30 opens at the jump, and one from 01:00 to 05:00 lasts 3 hours. Where the clock goes back, it
lasts 5. A window past midnight belongs to the day on which it opens. Exclusions beat windows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY = timedelta(days=1)
#: Spans are computed for so many days at a time.
CHUNK_DAYS = 14
#: A window that does not come back within this time (a year, and a leap day) never does.
HORIZON_DAYS = 366 + CHUNK_DAYS
#: How often the controller looks for an open window.
TIMER_MINUTES = 15


@dataclass(frozen=True)
class Window:
    """Weekdays (0 is Monday) on which it opens, local times, zone; with `groups`, for nodes of those only."""

    days: frozenset[int]
    start: time
    end: time
    zone: str
    groups: frozenset[str] = frozenset()

    def span(self, day: date) -> tuple[datetime, datetime] | None:
        """Return opening and closing in UTC of the window that belongs to this day, if there is one."""
        if day.weekday() not in self.days:
            return None
        last = day if self.end > self.start else day + DAY
        opening, closing = instant(day, self.start, self.zone), instant(last, self.end, self.zone)
        return (opening, closing) if opening < closing else None


@dataclass(frozen=True)
class Exclusion:
    """Days, the last included, on which no window is open in this zone; or from and to an instant."""

    first: date
    last: date
    zone: str
    reason: str = ""

    def span(self) -> tuple[datetime, datetime]:
        """Beginning and end in UTC."""
        return instant(self.first, time(0), self.zone), instant(self.last + DAY, time(0), self.zone)


def instant(day: date, clock: time, zone: str) -> datetime:
    """Return the first instant of a day at which the zone's clock shows this time or later, in UTC."""
    local = datetime.combine(day, clock, ZoneInfo(zone))
    found = local.astimezone(UTC)
    if found.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == local.replace(tzinfo=None):
        return found
    # The clock never shows it: the jump itself. Before it, offsets differ from those behind it.
    early, late = found - DAY, found
    before = early.astimezone(ZoneInfo(zone)).utcoffset()
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) / 2
        if middle.astimezone(ZoneInfo(zone)).utcoffset() == before:
            early = middle
        else:
            late = middle
    return late.replace(microsecond=0)


@dataclass(frozen=True)
class Calendar:
    """All windows and exclusions of a policy. Without windows, every time is right that is not excluded."""

    windows: tuple[Window, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()

    @property
    def always(self) -> bool:
        """Whether no time is ever wrong."""
        return not self.windows and not self.exclusions

    def for_groups(self, groups: Collection[str]) -> tuple[Window, ...]:
        """Return the windows of a node: those that name one of its groups, or else those for all."""
        named = tuple(window for window in self.windows if window.groups & set(groups))
        return named or tuple(window for window in self.windows if not window.groups)

    def remaining(self, now: datetime, groups: Collection[str] = ()) -> timedelta:
        """Return how long nodes of these groups may still be worked on; nothing outside a window.

        Longer than CHUNK_DAYS is said as some number of days beyond it.
        """
        for opening, closing in self._spans(now, groups):
            if opening <= now < closing:
                return closing - now
        return timedelta(0)

    def next_start(self, now: datetime, need: timedelta, groups: Collection[str] = ()) -> datetime | None:
        """Return the first instant from now on at which this much time remains; None where there never is."""
        moment = now
        for _ in range(0, HORIZON_DAYS, CHUNK_DAYS):
            for opening, closing in self._spans(moment, groups):
                start = max(opening, now)
                if closing - start >= need:
                    return start
            moment += timedelta(days=CHUNK_DAYS)
        return None

    def _spans(self, now: datetime, groups: Collection[str]) -> tuple[tuple[datetime, datetime], ...]:
        return _spans(self, self.for_groups(groups), now.astimezone(UTC).date())


@lru_cache(maxsize=4096)
def _spans(
    calendar: Calendar, windows: tuple[Window, ...], today: date
) -> tuple[tuple[datetime, datetime], ...]:
    """Free time in UTC around a day, merged and in order: from before it to CHUNK_DAYS and more later."""
    if calendar.windows:
        days = [today + timedelta(days=count) for count in range(-3, CHUNK_DAYS * 2)]
        opened = (window.span(day) for window in windows for day in days)
        free = list(_merged(span for span in opened if span))
    else:
        first = datetime.combine(today - 3 * DAY, time(0), UTC)
        free = [(first, first + timedelta(days=CHUNK_DAYS * 2))]
    for begin, end in (exclusion.span() for exclusion in calendar.exclusions):
        free = [part for span in free for part in _without(span, begin, end)]
    return tuple(free)


def _merged(spans: Iterator[tuple[datetime, datetime]]) -> Iterator[tuple[datetime, datetime]]:
    """Spans that overlap or touch as one."""
    current: tuple[datetime, datetime] | None = None
    for opening, closing in sorted(spans):
        if current and opening <= current[1]:
            current = current[0], max(current[1], closing)
            continue
        if current:
            yield current
        current = opening, closing
    if current:
        yield current


def _without(
    span: tuple[datetime, datetime], begin: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """Yield what is left of a span outside begin to end."""
    if span[0] < min(span[1], begin):
        yield span[0], min(span[1], begin)
    if max(span[0], end) < span[1]:
        yield max(span[0], end), span[1]


def systemd_units(command: str, folder: str, user: str = "root") -> dict[str, str]:
    """Return the service and the timer that have a controller look for an open window, by file name.

    The timer does not name the windows: systemd skips a local time that the clock jumps over, and a time in
    UTC would be wrong for half of the year. It fires every quarter of an hour; the command knows the windows
    and ends at once outside them. It runs as the user whose SSH keys reach the nodes.
    """
    # Signs of systemd's own.
    command, folder = command.replace("%", "%%").replace("$", "$$"), folder.replace("%", "%%")
    service = f"""\
# Managed by Temper: rolling upgrades of the driver.
[Unit]
Description=Temper: go on with the roll-out inside its windows
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
User={user}
WorkingDirectory={folder}
ExecStart={command}
MemoryMax=80%
TasksMax=8192
# Nodes are on their way: what else this machine does is ended first.
OOMScoreAdjust=-100
UMask=0077
ProtectSystem=full
ReadWritePaths="{folder}"
ProtectControlGroups=yes
# Nothing by which systemd would forbid new rights to an account: drains and vaults' passwords may need sudo.
"""
    timer = f"""\
# Managed by Temper: rolling upgrades of the driver.
[Unit]
Description=Temper: look whether a window for upgrades is open

[Timer]
OnCalendar=*-*-* *:00/{TIMER_MINUTES}:00 UTC
Persistent=false

[Install]
WantedBy=timers.target
"""
    return {"temper-rollout.service": service, "temper-rollout.timer": timer}


def cron_line(command: str, folder: str, user: str = "root") -> str:
    """Return a line for /etc/cron.d that does the same as the timer."""
    line = f"*/{TIMER_MINUTES} * * * * {user} cd {folder} && {command}\n"
    return line.replace("%", "\\%")  # a new line, to cron
