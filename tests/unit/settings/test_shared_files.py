"""Files of the hardening beside a site's: what is stricter stays, what is weaker goes, what wins is named."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ansible.module_utils.temper.settings import observe, record
from ansible.module_utils.temper.settings.kinds import file
from ansible.module_utils.temper.settings.shared_files import ADDED, ALL, DAILY, TELLS_NOTHING
from ansible.module_utils.temper.settings.site_lines import CLEARED, GRAMMARS, grammar_of
from ansible.module_utils.temper.settings.strictness import ABSENT, NAMES, implicit, stricter

from temper.plan.convert import plain
from temper.plan.os_controls import STRICTEST, hardening, load_controls, settings_of
from temper.plan.strictness import ALONE, ASKED, LOADS_NOTHING, orders_of_files
from temper.plan.variables import OsHardening
from temper.plan.wanted import Kind
from tests.unit.each import each
from tests.unit.planning_roles.plans import trixie, whole_plan
from tests.unit.settings.role_plans import carried_out, item, role_plan

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")

CONTROLS = load_controls(Path(__file__).resolve().parents[3] / "data" / "os_controls")
WISH = OsHardening(
    state="present", profile="cis-level2", waivers=(), banner="", busy_ok=False, upgrade_kernels=False
)
WANTED: Mapping[str, Any]
WANTED, UBUNTU, ROCKY = (
    {
        setting.key: plain(setting.wanted)
        for setting in hardening(CONTROLS, WISH, {"system": system}).settings
        if setting.kind is Kind.FILE
    }
    for system in ("debian-13", "ubuntu-24.04", "rhel-9")
)
SUDO = "/etc/sudoers.d/temper-hardening"
LIMITS = "/etc/security/limits.d/10-temper-hardening.conf"
QUALITY = "/etc/security/pwquality.conf.d/50-temper-hardening.conf"
#: The same file on Enterprise Linux, whose stacks have `local_users_only` themselves.
LOCAL_QUALITY = "/etc/security/pwquality.conf.d/50-temper-local.conf"
CORE = "/etc/systemd/coredump.conf.d/90-temper-hardening.conf"
JOURNAL = "/etc/systemd/journald.conf.d/90-temper-hardening.conf"
AUDIT = "/etc/audit/rules.d/temper.rules"
AUTO = "/etc/apt/apt.conf.d/20auto-upgrades"
UPDATES = "/etc/apt/apt.conf.d/51temper-hardening"


class Case(NamedTuple):
    """How a site writes a value of a key, and values that are stricter, and weaker or foreign."""

    line: str
    stricter: tuple[str, ...] = ()
    weaker: tuple[str, ...] = ()


CASES = {
    (SUDO, "timestamp_timeout"): Case("Defaults timestamp_timeout={}", ("0", "5"), ("60", "-1", "x")),
    (SUDO, "use_pty"): Case("Defaults {}", (), ("!use_pty",)),
    (SUDO, "env_reset"): Case("Defaults {}", (), ("!env_reset",)),
    (SUDO, "ignore_dot"): Case("Defaults {}", (), ("!ignore_dot",)),
    (SUDO, "umask_override"): Case("Defaults {}", (), ("!umask_override",)),
    (SUDO, "umask"): Case("Defaults umask={}", ("0077", "027"), ("0002", "0777", "x")),
    (SUDO, "logfile"): Case("Defaults logfile={}", ("/var/log/site",), ()),
    (LIMITS, "hard core"): Case("* hard core {}", (), ("unlimited", "1000", "x")),
    (QUALITY, "minlen"): Case("minlen = {}", ("20",), ("8", "x")),
    (QUALITY, "minclass"): Case("minclass = {}", (), ("0", "3", "x")),
    (QUALITY, "dcredit"): Case("dcredit = {}", ("-2",), ("0", "1", "x")),
    (QUALITY, "lcredit"): Case("lcredit = {}", ("-2",), ("0", "1", "x")),
    (QUALITY, "ocredit"): Case("ocredit = {}", ("-2",), ("0", "1", "x")),
    (QUALITY, "ucredit"): Case("ucredit = {}", ("-2",), ("0", "1", "x")),
    (QUALITY, "difok"): Case("difok = {}", ("8",), ("1", "x")),
    (QUALITY, "maxrepeat"): Case("maxrepeat = {}", ("2",), ("0", "9")),
    (QUALITY, "maxclassrepeat"): Case("maxclassrepeat = {}", ("4",), ()),
    (QUALITY, "retry"): Case("retry = {}", ("1",), ("9", "x")),
    (QUALITY, "maxsequence"): Case("maxsequence={}", ("2",), ("0", "9")),
    (QUALITY, "dictcheck"): Case("dictcheck = {}", (), ("0",)),
    (QUALITY, "enforcing"): Case("enforcing = {}", (), ("0",)),
    (QUALITY, "enforce_for_root"): Case("{}"),
    (CORE, "Coredump.Storage"): Case("[Coredump]\nStorage={}", (), ("external", "journal", "x")),
    (CORE, "Coredump.ProcessSizeMax"): Case("[Coredump]\nProcessSizeMax={}", (), ("1G",)),
    (JOURNAL, "Journal.Storage"): Case("[Journal]\nStorage={}", (), ("none", "volatile", "auto")),
    (JOURNAL, "Journal.Compress"): Case("[Journal]\nCompress={}", (), ("no", "1M")),
    (JOURNAL, "Journal.SystemMaxUse"): Case("[Journal]\nSystemMaxUse={}", ("50G", "100M"), ("",)),
    (JOURNAL, "Journal.SystemKeepFree"): Case("[Journal]\nSystemKeepFree={}", ("9G",), ("",)),
    (AUDIT, "-b"): Case("-b {}", ("65536",), ("64", "x")),
    (AUDIT, "-f"): Case("-f {}", ("2",), ("0", "x")),
    (AUDIT, "--backlog_wait_time"): Case("--backlog_wait_time {}", (), ("60000",)),
    (AUTO, "APT::Periodic::Enable"): Case('APT::Periodic::Enable "{}";', (), ("0",)),
    (AUTO, "APT::Periodic::Update-Package-Lists"): Case(
        'APT::Periodic {{ Update-Package-Lists "{}"; }};', ("always", "12h"), ("0", "7", "2d", "x")
    ),
    (AUTO, "APT::Periodic::Unattended-Upgrade"): Case(
        'apt::periodic::unattended-upgrade "{}";', ("always", "30m", "0h"), ("0", "7")
    ),
    **{
        (UPDATES, f"Unattended-Upgrade::{name}"): Case(
            f'Unattended-Upgrade::{name} "{{}}";', (), (weaker, "x")
        )
        for name, weaker in {
            "OnlyOnACPower": "true",
            "Skip-Updates-On-Metered-Connections": "1",
            "InstallOnShutdown": "yes",
            "AutoFixInterruptedDpkg": "off",
        }.items()
    },
    (UPDATES, "Unattended-Upgrade::Automatic-Reboot"): Case(
        'Unattended-Upgrade::Automatic-Reboot "{}";', (), ("true",)
    ),
    (UPDATES, "Unattended-Upgrade::MinimalSteps"): Case(
        'Unattended-Upgrade::MinimalSteps "{}";', ("false",), ()
    ),
    (UPDATES, "Unattended-Upgrade::Remove-Unused-Kernel-Packages"): Case(
        'Unattended-Upgrade::Remove-Unused-Kernel-Packages "{}";', (), ("true",)
    ),
    (UPDATES, "Unattended-Upgrade::Remove-Unused-Dependencies"): Case(
        'Unattended-Upgrade::Remove-Unused-Dependencies "{}";', (), ("true",)
    ),
}
STRICTER = [(*key, value) for key, case in CASES.items() for value in case.stricter]
WEAKER = [(*key, value) for key, case in CASES.items() for value in case.weaker]
#: A file that is read before ours, and one behind it.
BESIDE = {
    SUDO: ("10-site", "zz-site"),
    AUDIT: ("10-site.rules", "zz.rules"),
    AUTO: ("10site", "99site"),
    UPDATES: ("10site", "99site"),
}


class Site:
    """The tree of a node whose site has files of its own."""

    def __init__(self, root: Path, wanted: Mapping[str, Any] = WANTED) -> None:
        self.root = root
        self.wanted = wanted
        self.write("/etc/sudoers", f"@includedir {root}/etc/sudoers.d\n")

    def write(self, path: str, text: str) -> Path:
        target = Path(f"{self.root}{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def beside(self, own: str, key: str, value: str, *, behind: bool = False) -> str:
        before, after = BESIDE.get(own, ("00-site.conf", "zz-site.conf"))
        path = str(Path(own).parent / (after if behind else before))
        self.write(path, CASES[own, key].line.format(value) + "\n")
        return path

    def setting(self, own: str, noted: Any = None) -> Any:
        wanted = {**self.wanted[own], "validate": []}
        (setting,) = file(f"{self.root}{own}", wanted, {})
        setting.original = noted
        return setting

    def made(self, own: str) -> Any:
        """The setting, made, and looked at anew: the second run has nothing to do."""
        setting = self.setting(own)
        noted = None
        if not setting.settled():
            noted = {"spec": setting.spec, "state": setting.read()}
            setting.apply()
        again = self.setting(own, noted)
        assert again.settled()
        return again

    def effective(self, own: str, key: str) -> str | None:
        """The value that is read last."""
        path = f"{self.root}{own}"
        grammar = grammar_of(path)
        found = None
        for line in grammar.read(Path(path)):
            lines = [line] if line else grammar.lines(Path(path).read_text(), path)
            for one in lines:
                if one.key.lower() == key.lower() and not one.scope:
                    found = one.value
        return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def files_of_controls() -> set[str]:
    kinds = ("files", "files_x86_64", "lines")
    every = [settings_of(control, STRICTEST) for control in CONTROLS.values()]
    every += [system for settings in every for system in settings.get("systems", {}).values()]
    return {path for settings in every for kind in kinds for path in settings.get(kind) or {}} | {*WANTED}


def files_of_roles() -> set[str]:
    """Those that lie beside a site's."""
    settings = [one for role in whole_plan(trixie).roles for one in role.settings]
    paths = {one.key for one in settings if one.kind is Kind.FILE}
    return {path for path in paths if any(fnmatch.fnmatchcase(path, pattern) for pattern in GRAMMARS)}


def test_no_file_is_without_a_decision() -> None:
    assert (files_of_controls() | files_of_roles()) - orders_of_files().keys() == set()


@each(*orders_of_files().items())
def test_each_key_of_a_file_has_an_order_and_a_case(path: str, orders: str | Mapping[str, str]) -> None:
    assert path in files_of_controls() | files_of_roles()
    if isinstance(orders, str):
        assert orders in (ALONE, ASKED, TELLS_NOTHING, LOADS_NOTHING, *NAMES)
        return
    texts = [wanted[path]["content"] for wanted in (WANTED, UBUNTU, ROCKY) if path in wanted]
    lines = [line for text in texts for line in grammar_of(path).lines(text, path)]
    said = {line.key for line in lines if line.value != CLEARED}
    # Entries of lists add up.
    single = {key for key in said if not key.endswith("::")}
    of_the_site = {key for key, order in orders.items() if order in (ABSENT, ALL, DAILY)}
    if path == LOCAL_QUALITY:
        path, of_the_site = QUALITY, {"local_users_only"}
    assert single <= orders.keys() - of_the_site <= said
    assert single == {key for own, key in CASES if own == path}


def test_no_default_of_a_program_is_stricter_than_the_line_that_we_write() -> None:
    """A file of ours has a line for each key: a site without one has had what its program takes."""
    violations = []
    for path, orders in orders_of_files().items():
        if isinstance(orders, str):
            continue
        for line in grammar_of(path).lines({**ROCKY, **WANTED}[path]["content"], path):
            order = orders.get(line.key, ADDED)
            violations += [(path, line) for value in implicit(order) if stricter(order, value, line.value)]
    assert violations == []


@each(*STRICTER)
def test_what_is_stricter_stays_and_is_named(own: str, key: str, value: str, tmp_path: Path) -> None:
    site = Site(tmp_path)
    path = site.beside(own, key, value)
    setting = site.made(own)
    assert site.effective(own, key) in (value, f"{int(value, 8):03o}" if key == "umask" else value)
    assert [path in clause for clause in setting.kept()] == [True]
    assert not setting.fault()


@each(*WEAKER)
def test_what_is_weaker_or_foreign_is_changed(own: str, key: str, value: str, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.beside(own, key, value)
    setting = site.made(own)
    assert Path(f"{site.root}{own}").read_text() == WANTED[own]["content"]
    assert (setting.kept(), setting.fault()) == ([], None)


@each(*[case for case in WEAKER if case[2]])
def test_what_is_weaker_and_wins_is_a_fault(own: str, key: str, value: str, tmp_path: Path) -> None:
    site = Site(tmp_path)
    path = site.beside(own, key, value, behind=True)
    setting = site.made(own)
    assert path in setting.fault().reason
    assert path in setting.warnings()[0]


@each(*[path for path in WANTED if isinstance(orders_of_files()[path], Mapping)])
def test_what_says_the_same_changes_nothing(own: str, tmp_path: Path) -> None:
    site = Site(tmp_path)
    before, _ = BESIDE.get(own, ("00-site.conf", ""))
    site.write(str(Path(own).parent / before), WANTED[own]["content"].replace("Managed", "As managed"))
    setting = site.made(own)
    assert Path(f"{site.root}{own}").read_text() == WANTED[own]["content"]
    assert (setting.kept(), setting.fault()) == ([], None)


@each(STRICTER[0], STRICTER[-2])
def test_a_site_that_takes_its_value_back_gets_ours(own: str, key: str, value: str, tmp_path: Path) -> None:
    """What ours said beside it was never the site's."""
    site = Site(tmp_path)
    path = site.beside(own, key, value)
    noted = site.made(own).original
    Path(f"{site.root}{path}").unlink()
    setting = site.setting(own, noted)
    assert not setting.settled()
    setting.apply()
    assert Path(f"{site.root}{own}").read_text() == WANTED[own]["content"]


def test_a_stricter_value_for_some_accounts_is_said_again_behind_ours(site: Site) -> None:
    site.write(
        "/etc/sudoers.d/10-site",
        "Defaults:%ops, alice timestamp_timeout=0\nDefaults:bob timestamp_timeout=99\n",
    )
    setting = site.made(SUDO)
    lines = Path(f"{site.root}{SUDO}").read_text().splitlines()
    at = lines.index("Defaults timestamp_timeout=15")
    assert lines[at + 1] == "Defaults:%ops, alice timestamp_timeout=0"
    assert "bob" not in str(lines)
    assert "/etc/sudoers.d/10-site:1" in setting.kept()[0]
    assert not setting.fault()


def test_a_log_that_a_site_has_switched_off_is_no_choice_of_its_own(site: Site) -> None:
    site.write("/etc/sudoers.d/10-site", "Defaults !logfile\n")
    setting = site.made(SUDO)
    assert "Defaults logfile=" in Path(f"{site.root}{SUDO}").read_text()
    assert not setting.kept()
    assert not setting.fault()


@each(
    (SUDO, "/etc/sudoers.d/zz", "Defaults:bob timestamp_timeout=99\n"),
    (SUDO, "/etc/sudoers.d/zz", "Defaults !logfile\n"),
    (SUDO, "/etc/sudoers.d/10-site", "Defaults>root timestamp_timeout=99\n"),
    (LIMITS, "/etc/security/limits.conf", "@debug hard core unlimited\n"),
    (SUDO, "/etc/sudoers", "Defaults env_reset\n"),
)
def test_a_weaker_value_for_some_accounts_is_a_fault(own: str, path: str, text: str, tmp_path: Path) -> None:
    """The last sudoers include nothing."""
    site = Site(tmp_path)
    site.write(path, text)
    assert site.made(own).fault()


@each(
    (WANTED, "Origins-Pattern", "origin=Debian,codename=${distro_codename},label=Debian"),
    (UBUNTU, "Allowed-Origins", "${distro_id}:${distro_codename}"),
    # What the other distribution reads is no list of ours: it stays where it is.
    (WANTED, "Allowed-Origins", ""),
    (UBUNTU, "Origins-Pattern", ""),
)
def test_origins_of_a_site_are_added_without_those_of_the_distribution(
    wanted: Mapping[str, Any], name: str, of_distribution: str, tmp_path: Path
) -> None:
    site, list_of_ours = Site(tmp_path, wanted), bool(of_distribution)
    site.write(
        "/etc/apt/apt.conf.d/50unattended-upgrades",
        f'Unattended-Upgrade::{name} {{ "{of_distribution or "x"}"; "origin=Site"; }};\n',
    )
    assert len(site.made(UPDATES).kept()) == list_of_ours
    text = Path(f"{site.root}{UPDATES}").read_text()
    assert text.endswith(f'Unattended-Upgrade::{name}:: "origin=Site";\n') == list_of_ours
    assert text.startswith(wanted[UPDATES]["content"])


DAYS = '"Mon"; "Tuesday"; "3"; "Thu"; "Fri"; "Sat";'


@each(
    *(
        (f'Unattended-Upgrade::Package-Blacklist {{ "{pattern}"; }};', at_fault)
        for pattern, at_fault in (
            ("", True),
            (".*", True),
            ("[a-z]", True),
            ("postgresql-", False),
            ("(", False),
        )
    ),
    ('Unattended-Upgrade::Update-Days { "Mon"; "Fri"; };', True),
    (f"Unattended-Upgrade::Update-Days {{ {DAYS} }};", True),
    (f'Unattended-Upgrade::Update-Days {{ {DAYS} "0"; }};', False),
    ('Unattended-Upgrade::Package-Whitelist { "postgresql-"; };', True),
    ('Unattended-Upgrade::Package-Whitelist { "postgresql-"; ".*"; };', False),
    ('Unattended-Upgrade::Update-Days:: "Mon";\n#clear Unattended-Upgrade::Update-Days;', False),
)
@each(False, True)
def test_days_and_packages_that_a_site_leaves_out_of_security_updates_are_a_fault(
    behind: bool, text: str, at_fault: bool, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    path = site.write(f"/etc/apt/apt.conf.d/{'99' if behind else '10'}site", f"{text}\n")
    fault = site.made(UPDATES).fault()
    assert (f"{path}:1" in str(fault)) == at_fault


@each(
    (AUTO, "#clear APT::Periodic::Unattended-Upgrade;", True),
    (AUTO, "#clear APT::Periodic::Enable;", False),
    (AUTO, "#clear APT;", True),
    (AUTO, f"#clear APT::Periodic;\n{WANTED[AUTO]['content']}", False),
    (UPDATES, "#clear Unattended-Upgrade::Origins-Pattern;", True),
    (UPDATES, "#clear unattended-upgrade::package-blacklist;", True),
    (UPDATES, "#clear Unattended-Upgrade::OnlyOnACPower;", True),
    (UPDATES, "#clear Unattended-Upgrade::Update-Days;", False),
)
def test_what_a_later_file_clears_counts_as_what_the_program_takes_without_a_line(
    own: str, text: str, at_fault: bool, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    path = site.write("/etc/apt/apt.conf.d/99site", f"{text}\n")
    fault = site.made(own).fault()
    assert (f"{path}:1" in str(fault)) == at_fault


@each(
    (UPDATES, "/etc/apt/apt.conf.d/10site", '#include "/etc/site.conf";\n'),
    (SUDO, "/etc/sudoers.d/10-site", "\nDefaults timestamp_timeout 0\n"),
    (UPDATES, "/etc/apt/apt.conf.d/10site", "\nA\n"),
)
def test_a_file_that_cannot_be_read_is_an_obstacle_with_its_line(
    own: str, path: str, text: str, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    target = site.write(path, text)
    setting = site.setting(own)
    assert not setting.settled()
    assert f"{target}:" in setting.obstacle()
    assert setting.change() == []
    assert setting.reason() == setting.obstacle()


def test_a_pipe_in_the_place_of_a_file_is_an_obstacle(site: Site) -> None:
    site.write("/etc/sudoers.d/x", "")
    os.mkfifo(site.root / "etc/sudoers.d/10-site")
    assert "10-site: expected a file that can be read" in site.setting(SUDO).obstacle()


# ---------------------------------------------------------------- files with one author

BANNER, CRON = "/etc/issue", "/etc/cron.allow"
LEGAL = "Property of the site.\nAll is recorded.\n"


@each(
    (BANNER, LEGAL, 0o644, True),
    (BANNER, LEGAL, 0o666, False),
    (BANNER, "\n", 0o644, False),
    (BANNER, "Property of the site, \\n\n", 0o644, False),
    (BANNER, "Kali GNU/Linux 12\n", 0o644, False),
    (CRON, "", 0o640, True),
    (CRON, "root\n", 0o644, True),
    (CRON, "root\nalice\n", 0o644, False),
)
def test_a_file_of_the_site_stays_where_it_is_as_strict(
    own: str, text: str, mode: int, stays: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    release = site.write("/etc/os-release", 'ID=kali\nNAME="Kali GNU/Linux"\n')
    monkeypatch.setattr("ansible.module_utils.temper.settings.shared_files.RELEASE", release)
    path = site.write(own, text)
    path.chmod(mode)
    setting = site.setting(own)
    state = setting.read()
    assert setting.settled() == stays
    assert bool(setting.kept()) == (stays and text != WANTED[own]["content"])
    if not stays:
        setting.apply()
        assert path.read_text() == WANTED[own]["content"]
    noted = {"spec": {}, "state": state}
    # What Temper has written is not the site's; what it replaced comes back where that was as strict.
    path.write_text("Written by an earlier run.\n")
    again = site.setting(own, noted)
    assert not again.settled()
    again.apply()
    assert path.read_text() == (text if stays else WANTED[own]["content"])
    assert site.setting(own, noted).settled()


def test_a_text_of_the_operator_replaces_that_of_the_site() -> None:
    settings = hardening(CONTROLS, replace(WISH, banner="Keep out.")).settings
    (wanted,) = (one.wanted for one in settings if (one.kind, one.key) == (Kind.FILE, BANNER))
    assert "orders" not in plain(wanted)


# ---------------------------------------------------------------- carried out by the module

SOME = (SUDO, QUALITY, BANNER, CRON)


def role_of(site: Site, **changed: str) -> dict[str, Any]:
    """The plan of some files, whose text may be another profile's."""
    wanted = {
        path: {**WANTED[path], "validate": [], "content": changed.get(path, WANTED[path]["content"])}
        for path in SOME
    }
    items = [item("file", f"{site.root}{path}", one, "control") for path, one in wanted.items()]
    return role_plan("os_hardening", items, atomic=True)


@pytest.fixture
def module(
    run_module: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Carry a plan out, or say in check mode what would be done."""
    monkeypatch.setattr(record, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(record, "FORMER", {})
    return partial(carried_out, run_module)


def trees(site: Site) -> dict[str, str]:
    found = [path for path in (site.root / "etc").rglob("*") if path.is_file()]
    return {str(path.relative_to(site.root)): path.read_text() for path in found}


def test_a_stricter_site_is_kept_lowered_compared_and_given_back(
    site: Site, module: Callable[..., dict[str, Any]]
) -> None:
    for path, text in {
        "/etc/sudoers.d/10-site": "Defaults timestamp_timeout=5\n",
        str(Path(QUALITY).parent / "10-site.conf"): "minlen = 20\n",
        BANNER: LEGAL,
        CRON: "root\nalice\n",
    }.items():
        site.write(path, text)
    before = trees(site)
    assert module(role_of(site), check_mode=True)["changed"]
    assert trees(site) == before
    said = module(role_of(site))
    assert "timestamp_timeout 5" in str(said["warnings"])
    assert "msg" not in said
    assert not module(role_of(site))["changed"]
    assert {one["state"] for one in observe.observe(role_of(site))} == {"pass"}
    after = trees(site)
    assert (after["etc/issue"], after["etc/cron.allow"]) == (LEGAL, "root\n")
    # What an earlier profile asked for is not the site's.
    lower = role_of(site, **{QUALITY: "# Managed by Temper.\nminlen = 8\ndifok = 1\n"})
    module(lower)
    assert trees(site)[QUALITY[1:]] == "# Managed by Temper.\nminlen = 20\ndifok = 1\n"
    site.write("/etc/sudoers.d/10-site", "Defaults timestamp_timeout=60\n")
    failed = [one["key"] for one in observe.observe(lower) if one["state"] == "fail"]
    assert failed == [f"file:{site.root}{SUDO}"]
    site.write("/etc/sudoers.d/10-site", "Defaults timestamp_timeout=5\n")
    module(role_plan("os_hardening", [], atomic=True, absent=True))
    assert trees(site) == before


def test_a_text_that_the_site_writes_after_ours_is_its_own(
    site: Site, module: Callable[..., dict[str, Any]]
) -> None:
    """Kept where it is as strict, else replaced and given back: also where none was there before."""
    none = role_plan("os_hardening", [], atomic=True, absent=True)
    for before in (None, "Debian GNU/Linux 12\n"):
        for after, stays in ((LEGAL, True), ("This is \\n\n", False)):
            banner, cron = site.root / BANNER[1:], site.write(CRON, "root\nalice\n")
            banner.unlink(missing_ok=True)
            if before:
                site.write(BANNER, before)
            module(role_of(site))
            assert banner.read_text() == WANTED[BANNER]["content"]
            # An empty list is stricter than ours.
            cron.write_text("")
            banner.write_text(after)
            said = module(role_of(site))
            assert said["changed"] is not stays
            assert not module(role_of(site))["changed"]
            assert {one["state"] for one in observe.observe(role_of(site))} == {"pass"}
            assert (banner.read_text(), cron.read_text()) == (
                after if stays else WANTED[BANNER]["content"],
                "",
            )
            assert (f"{banner} as the site has it" in str(said["warnings"])) is stays
            left_alone = module(none)["warnings"]
            assert (str(banner) in str(left_alone)) is stays
            assert (banner.read_text(), cron.read_text()) == (after, "")
            # Ours is not taken for the site's where another version has another text.
            module(role_of(site))
            module(role_of(site, **{BANNER: "Keep out.\n"}))
            module(none)
            assert banner.read_text() == after


def test_what_cannot_be_read_is_refused_and_fails_compliance(
    site: Site, module: Callable[..., dict[str, Any]]
) -> None:
    path = site.write("/etc/sudoers.d/10-site", "Defaults timestamp_timeout 0\n")
    before = trees(site)
    said = module(role_of(site))
    assert said["refused"]
    assert f"{path}:1: expected Defaults" in said["msg"]
    assert "or waive the control control" in said["msg"]
    assert trees(site) == before
    (found,) = [one for one in observe.observe(role_of(site)) if one["key"].endswith(SUDO)]
    assert (found["state"], str(path) in found["reason"]) == ("fail", True)
