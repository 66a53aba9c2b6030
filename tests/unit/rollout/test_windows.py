"""Windows: right on every night, also when clocks change; exclusions beat them."""

import shutil
import subprocess
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.rollout.windows import DAYS, Calendar, Exclusion, Window, cron_line, instant, systemd_units
from tests.unit.each import each

BERLIN = "Europe/Berlin"
EVERY_DAY = frozenset(range(7))
#: The clocks of Berlin: 02:00 becomes 03:00, and half a year later 03:00 becomes 02:00, both at 01:00 UTC.
SPRING, AUTUMN = date(2027, 3, 28), date(2027, 10, 31)


def window(start: str, end: str, days: str = "", zone: str = BERLIN, *groups: str) -> Window:
    chosen = frozenset(DAYS.index(day) for day in days.split()) if days else EVERY_DAY
    return Window(chosen, time.fromisoformat(start), time.fromisoformat(end), zone, frozenset(groups))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@each(
    (date(2027, 3, 21), "01:00", "05:00", "2027-03-21T00:00", 4),
    (SPRING, "01:00", "05:00", "2027-03-28T00:00", 3),
    (AUTUMN, "01:00", "05:00", "2027-10-30T23:00", 5),
    # systemd never fires for it
    (SPRING, "02:30", "05:00", "2027-03-28T01:00", 2),
    (SPRING, "01:00", "02:30", "2027-03-28T00:00", 1),
    # the first of two times 02:30
    (AUTUMN, "02:30", "05:00", "2027-10-31T00:30", 3.5),
    (date(2027, 3, 27), "22:00", "04:00", "2027-03-27T21:00", 5),
    (date(2027, 10, 30), "22:00", "04:00", "2027-10-30T20:00", 7),
)
def test_a_window_when_clocks_change(day: date, start: str, end: str, opens: str, hours: float) -> None:
    span = window(start, end).span(day)
    assert span == (utc(opens), utc(opens) + timedelta(hours=hours))


def test_a_window_within_the_hour_that_is_skipped_is_not_open_that_day() -> None:
    assert window("02:10", "02:50").span(SPRING) is None


def test_a_window_past_midnight_belongs_to_the_day_on_which_it_opens() -> None:
    monday = Calendar((window("22:00", "04:00", "mon", "UTC"),))
    assert monday.remaining(utc("2027-03-02T03:00")) == timedelta(hours=1)  # Tuesday
    assert monday.remaining(utc("2027-03-01T03:00")) == timedelta(0)  # Monday


def test_windows_that_touch_are_one() -> None:
    calendar = Calendar((window("20:00", "00:00", zone="UTC"), window("00:00", "06:00", zone="UTC")))
    assert calendar.remaining(utc("2027-03-01T21:00")) == timedelta(hours=9)


def test_exclusions_beat_windows() -> None:
    holidays = Exclusion(date(2026, 12, 24), date(2026, 12, 26), BERLIN, "holidays")
    calendar = Calendar((window("22:00", "04:00"),), (holidays,))
    assert calendar.remaining(utc("2026-12-23T22:00")) == timedelta(hours=1)  # to midnight in Berlin
    assert calendar.remaining(utc("2026-12-25T22:00")) == timedelta(0)
    need = timedelta(hours=5)
    assert calendar.next_start(utc("2026-12-23T22:00"), need) == utc("2026-12-27T21:00")


def test_a_window_that_is_too_short_is_not_waited_for() -> None:
    calendar = Calendar((window("01:00", "02:00", zone="UTC"),))
    now = utc("2027-03-01T12:00")
    assert calendar.next_start(now, timedelta(hours=1)) == utc("2027-03-02T01:00")
    assert calendar.next_start(now, timedelta(minutes=61)) is None


def test_a_window_of_a_group_replaces_those_for_all() -> None:
    calendar = Calendar((window("01:00", "02:00", zone="UTC"), window("05:00", "06:00", "", "UTC", "batch")))
    now = utc("2027-03-01T01:30")
    assert calendar.remaining(now, ["h100"]) == timedelta(minutes=30)
    assert calendar.remaining(now, ["batch"]) == timedelta(0)


def test_without_windows_every_time_is_right_that_is_not_excluded() -> None:
    assert Calendar().remaining(utc("2027-03-01T01:30")) > timedelta(days=7)
    closed = Calendar((), (Exclusion(date(2027, 3, 1), date(2027, 3, 1), "UTC"),))
    assert closed.next_start(utc("2027-03-01T01:30"), timedelta(hours=1)) == utc("2027-03-02T00:00")


@settings(deadline=None)
@given(
    st.dates(date(2026, 1, 1), date(2028, 1, 1)),
    st.times(),
    st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Cairo"]),
)
def test_an_instant_is_the_first_at_which_the_clock_shows_the_time(day: date, clock: time, zone: str) -> None:
    clock = clock.replace(second=0, microsecond=0)
    found = instant(day, clock, zone)
    shown = found.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    before = (found - timedelta(seconds=1)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    assert before < datetime.combine(day, clock) <= shown


@settings(deadline=None)
@given(st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC)), st.integers(1, 600))
def test_what_next_start_promises_remains(now: datetime, minutes: int) -> None:
    calendar = Calendar((window("22:00", "04:00", "mon wed sat sun"), window("01:00", "13:00", "sun")))
    need = timedelta(minutes=minutes)
    start = calendar.next_start(now, need)
    assert start is not None
    assert start >= now
    assert calendar.remaining(start) >= need


@pytest.mark.component
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd reads its own units")
def test_systemd_takes_the_timer_and_fires_through_the_change_of_clocks(tmp_path: Path) -> None:
    units = systemd_units("/usr/bin/true", "/")
    for name, text in units.items():
        (tmp_path / name).write_text(text)
    expression = next(
        line.partition("=")[2] for line in units["temper-rollout.timer"].splitlines() if "OnCalendar" in line
    )
    base = "--base-time=2027-03-28 00:55:00 UTC"
    asked = ["systemd-analyze", "calendar", expression, "--iterations=4", base]
    zone = {"TZ": BERLIN, "PATH": "/usr/bin:/bin"}
    said = subprocess.run(asked, capture_output=True, text=True, check=True, env=zone)
    # In Berlin's time: 02:00 and 02:15 do not exist.
    assert [clock in said.stdout for clock in ("03:00:00", "03:15:00", "03:30:00")] == [True] * 3
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "temper-rollout.timer")], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


def test_cron_gets_one_line() -> None:
    line = cron_line("/usr/bin/true", "/srv/temper")
    assert line == "*/15 * * * * root cd /srv/temper && /usr/bin/true\n"


def test_signs_of_systemd_and_cron_in_a_path_stay_part_of_it() -> None:
    service = systemd_units("/srv/9%/run '$HOME'", "/srv/9%")["temper-rollout.service"]
    assert "\nExecStart=/srv/9%%/run '$$HOME'\n" in service
    assert "\nWorkingDirectory=/srv/9%%\n" in service
    assert r"cd /srv/9\% && /srv/9\%/run" in cron_line("/srv/9%/run", "/srv/9%")
