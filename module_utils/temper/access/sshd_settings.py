"""sshd's settings in a drop-in that wins, proven against the effective configuration before it is written."""

from __future__ import annotations

import contextlib
import json
import pwd
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.access import selinux_ports
from ansible.module_utils.temper.access.commit_confirm import DEFAULT_ROLLBACK_AFTER_S, ConfirmedSetting
from ansible.module_utils.temper.access.listeners import listeners
from ansible.module_utils.temper.access.ssh_access import gets_in_by_password, login_refusal, read_account
from ansible.module_utils.temper.access.ssh_channels import Channel, channels
from ansible.module_utils.temper.access.ssh_keys import parse_public_key, public_keys
from ansible.module_utils.temper.access.ssh_login import Login, ssh_login
from ansible.module_utils.temper.access.sshd import (
    DROP_IN,
    LISTEN_ANEW_IN_SHELL,
    RELOAD_IN_SHELL,
    SOCKET,
    Effective,
    Sshd,
    active_service,
    active_socket,
    configured_addresses,
    keyword_of,
    listen_anew,
    listening_ports,
    ports_of_everybody,
    ports_of_others,
    refuse_what_sshd_cannot_listen_on,
    reload_sshd,
    socket_obstacle,
    started_with,
    unread_changes,
)
from ansible.module_utils.temper.access.sshd_matches import (
    ALIASES,
    MOST_LOGINS,
    NO_LOGIN,
    Block,
    Line,
    faults,
    meets_account,
    meets_connection,
    probes,
    site_lines,
)
from ansible.module_utils.temper.access.sshd_strictness import (
    ALGORITHM_LISTS,
    as_strict,
    demands_several,
    further_factors,
    strict_as_both,
    stricter,
    ways_in,
)
from ansible.module_utils.temper.files import File, put_back, saved
from ansible.module_utils.temper.process import complete, printable, run, which
from ansible.module_utils.temper.settings.base import (
    Difference,
    Fault,
    RefusedError,
    State,
    WayIn,
    word_on_kept,
)

FOLDER = Path("/etc/ssh")
MODULI = FOLDER / "moduli"
# Files that settings of the drop-in refer to. Nothing that the distribution installed is changed.
BANNER = FOLDER / "temper_banner"
USER_CA_KEYS = FOLDER / "temper_user_ca_keys"
REVOKED_KEYS = FOLDER / "temper_revoked_keys"
STRONG_MODULI = FOLDER / "temper_moduli"
# The drop-in is the first to go and the last to come: whatever it names is there while it is read.
FILES = (DROP_IN, BANNER, USER_CA_KEYS, REVOKED_KEYS, STRONG_MODULI)
MINIMUM_RSA_HOST_KEY_BITS = 3072
MOST_SENTENCES = 8  # of a refusal
OTHERWISE = "ssh_hardening_extra_options"
NO_LOGIN_SHELLS = ("nologin", "false", "sync")
FIRST_PERSON_UID = 1000  # UID_MIN of login.defs(5)
# For sshd -C: documentation's network.
FROM_ANYWHERE = "host=192.0.2.1,addr=192.0.2.1,laddr=192.0.2.2,lport=22"
MODULUS_SIZE_COLUMN = 4  # moduli(5): its number of bits, less one

# What a list for a whole fleet may name and a node may lack: its OpenSSH is older, or keeps to FIPS 140.
# Source: `ssh -Q kex|cipher|mac` of OpenSSH 10.0 (Debian 13), without what nobody should ask for.
ALGORITHMS = frozenset(
    {
        "mlkem768x25519-sha256",
        "sntrup761x25519-sha512",
        "sntrup761x25519-sha512@openssh.com",
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        "diffie-hellman-group14-sha256",
        "diffie-hellman-group16-sha512",
        "diffie-hellman-group18-sha512",
        "diffie-hellman-group-exchange-sha256",
        "ecdh-sha2-nistp256",
        "ecdh-sha2-nistp384",
        "ecdh-sha2-nistp521",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "chacha20-poly1305@openssh.com",
        "hmac-sha2-256",
        "hmac-sha2-512",
        "hmac-sha2-256-etm@openssh.com",
        "hmac-sha2-512-etm@openssh.com",
        "umac-128@openssh.com",
        "umac-128-etm@openssh.com",
    }
)

HEADER = "# Managed by Temper. sshd takes the first value it reads, so this file's name sorts first.\n"

Settings = Mapping[str, list[str]]


def values(keyword: str, value: Any) -> list[str]:
    """Return a setting's value as sshd writes it, one string for each line."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", keyword) or keyword.lower() in ("match", "include"):
        raise RefusedError(
            f"{keyword!r} cannot be set here: expected a keyword of sshd_config(5). Blocks (Match) and more "
            f"files (Include) belong in a file of their own in {DROP_IN.parent}."
        )
    items = value if isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, (bool, int, str)):
            raise RefusedError(f"{keyword}: expected text, a whole number, yes or no, found {item!r}.")
    texts = [
        {True: "yes", False: "no"}[item] if isinstance(item, bool) else str(item).strip() for item in items
    ]
    for text in texts:
        if not text or "\n" in text:
            raise RefusedError(f"{keyword}: expected a value in one line, found {text!r}.")
    return texts


def merge(*layers: Mapping[str, Any]) -> dict[str, list[str]]:
    """Unite layers of settings; a later layer wins, whatever the case of its keyword."""
    merged: dict[str, tuple[str, list[str]]] = {}
    for layer in layers:
        for keyword, value in layer.items():
            merged[keyword.lower()] = (keyword, values(keyword, value))
    return {keyword: lines for keyword, lines in merged.values() if lines}


def check_criteria(blocks: Iterable[str]) -> None:
    """Raise RefusedError for criteria of a Match block that would begin another line."""
    for criteria in blocks:
        if len(criteria.splitlines()) != 1:
            raise RefusedError(f"Match: expected criteria in one line, found {criteria!r}.")


def known_algorithms(keyword: str, wanted: list[str], known: Iterable[str]) -> str:
    """Return the wanted algorithms that this OpenSSH knows, as the value of `keyword`."""
    known = set(known)
    usable = [name for name in wanted if name in known]
    if not usable:
        raise RefusedError(
            f"{keyword}: this node's OpenSSH knows none of {', '.join(wanted) or 'an empty list'}; "
            f"choose from the output of `ssh -Q {keyword}`."
        )
    # A typo must not leave the node, without a word, with less than was asked for.
    if strange := sorted(set(wanted) - known - ALGORITHMS):
        raise RefusedError(
            f"{keyword}: neither this node's OpenSSH nor any other that we know of has {', '.join(strange)}; "
            f"choose from the output of `ssh -Q {keyword}`."
        )
    return ",".join(usable)


def render(settings: Settings, blocks: Mapping[str, Settings] | None = None) -> str:
    """Return the drop-in's text. A block ends with the file that it stands in (sshd_config(5), Include)."""
    lines = [f"{keyword} {line}" for keyword, lines in settings.items() for line in lines]
    for criteria, inner in (blocks or {}).items():
        lines.append(f"Match {criteria}")
        lines += [f"    {keyword} {line}" for keyword, lines_ in inner.items() for line in lines_]
    return HEADER + "".join(f"{line}\n" for line in lines)


def disagreements(settings: Settings, wanted: Effective, effective: Effective) -> dict[str, str]:
    """Return the settings whose effective value is not as strict as the wanted one, each with a sentence."""
    wrong = {}
    for keyword in settings:
        found, expected = effective.get(keyword.lower()), wanted.get(keyword.lower())
        if not as_strict(keyword, found, expected):
            wrong[keyword] = (
                f"{keyword} is {', '.join(found or ['unset'])}, expected {', '.join(expected or ['unset'])}"
            )
    return wrong


def where(keyword: str, lines: Iterable[Line], options: Iterable[str] = ()) -> str:
    """Name the lines that set a keyword, or that sshd's command line does."""
    if keyword.lower() in map(keyword_of, options):
        return "sshd's command line: OPTIONS in /etc/sysconfig/sshd, SSHD_OPTS in /etc/default/ssh"
    return ", ".join(line.place for line in lines if line.keyword == keyword.lower()) or "no line of a file"


#: Keywords that say where and as whom one gets in: somebody may come that way. A person takes such lines out.
WAYS_IN = frozenset(
    {
        *("port", "listenaddress", "addressfamily", "hostkey", "allowusers", "allowgroups", "denyusers"),
        *("denygroups", "authenticationmethods", "authorizedkeysfile", "authorizedkeyscommand"),
        *("trustedusercakeys", "pubkeyauthentication", "acceptenv", "subsystem", "usepam"),
    }
)


def in_the_way(keyword: str, lines: Iterable[Line]) -> list[Line]:
    """Return the lines of a keyword that come before ours: of most keywords sshd takes the first line."""
    return [
        line
        for line in lines
        if line.keyword == keyword
        and keyword not in WAYS_IN
        and not line.blocks
        and line.path.parent == DROP_IN.parent
        and line.path.name < DROP_IN.name
    ]


def names_of(keyword: str) -> str:
    """Return what a keyword is called in a file, as alternatives of a pattern."""
    return "|".join([keyword, *(other for other, name in ALIASES.items() if name == keyword)])


def commented_out(lines: Iterable[Line]) -> list[list[str]]:
    """Return the repairs that make comments of these lines (temper/compliance/repairs.py).

    Where our file is in place, nothing is left for the role to change, so that sshd has to be told.
    """
    found = [["comment-out-sshd", str(line.number), names_of(line.keyword), str(line.path)] for line in lines]
    return [*found, *reload_by_hand()] if found and DROP_IN.exists() else found


def reload_by_hand() -> list[list[str]]:
    """Return the repair that has sshd read its configuration."""
    verb = "restart" if active_socket() else "reload"
    return [[verb, service]] if (service := active_service()) else []


def understood(
    sshd: Sshd,
    settings: Settings,
    blocks: Mapping[str, Settings],
    optional: Set[str],
    host_keys: list[str],
) -> tuple[Settings, Effective]:
    """Leave out the optional settings that this sshd does not know, or was built without.

    Returns the rest, and how sshd spells their values.
    """
    unknown = sshd.unknown(render(settings, blocks), host_keys) & optional
    rest = {keyword: lines for keyword, lines in settings.items() if keyword not in unknown}
    return rest, sshd.alone(render(rest, blocks), host_keys)


def known_to(sshd: Sshd, keyword: str, wanted: list[str], host_keys: list[str]) -> list[str]:
    """Return the algorithms that this OpenSSH knows.

    Where it has no client, which Debian's server of 10.6 does not need: the wanted ones that sshd takes.
    """
    if which("ssh"):
        return run(["ssh", "-Q", keyword]).split()

    def takes(names: list[str]) -> bool:
        try:
            sshd.alone(f"{keyword} {','.join(names)}\n", host_keys)
        except RefusedError:
            return False
        return True

    return wanted if takes(wanted) else [name for name in wanted if takes([name])]


@dataclass(frozen=True)
class Parameters:
    """What is wanted of sshd. Settings are values by keyword; a list becomes a line per item.

    An OpenSSH that lacks a keyword of `settings_if_known`, or one of the `algorithms` (best first), goes
    without it. `blocks` are settings by the criteria of their Match block. Host keys of other kinds than
    `host_key_types` are not offered; without any kind, sshd's other settings decide. `overrides` are stronger
    than all others, and than what the site has. The site's Match blocks with `accepted_matches` for their
    criteria may leave weaker ways in. `forwarding_decided` says that the operator has decided on forwarding,
    also of those who are on their way through this node.
    """

    state: str = "present"
    settings: dict[str, Any] = field(default_factory=dict)
    settings_if_known: dict[str, Any] = field(default_factory=dict)
    algorithms: dict[str, list[str]] = field(default_factory=dict)
    blocks: dict[str, dict[str, Any]] = field(default_factory=dict)
    host_key_types: list[str] = field(default_factory=list)
    minimum_modulus_bits: int = 0
    banner: str = ""
    user_ca_keys: list[str] = field(default_factory=list)
    revoked_keys: list[str] = field(default_factory=list)
    overrides: dict[str, Any] = field(default_factory=dict)
    accepted_matches: list[str] = field(default_factory=list)
    forwarding_decided: bool = False


@dataclass(frozen=True)
class SshdPlan:
    """The files as they should be (None: absent), and what sshd would make of them.

    `kept` says which settings of the site stay because they are stricter. `unasked` is how many kinds of
    logins sshd was not asked for. `unknown` is what this OpenSSH lacks, and goes without.
    """

    files: dict[Path, str | None]
    effective: Effective
    revoked: frozenset[str] = frozenset()
    weak_host_keys: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unasked: int = 0
    unknown: list[str] = field(default_factory=list)


def offered_host_keys(kinds: list[str], configured: list[str]) -> tuple[list[str], list[str]]:
    """Return those of the configured host keys that are of the kinds and strong, and a word on weak ones."""
    offered, weak = [], []
    for name in configured:
        try:
            key = parse_public_key(Path(f"{name}.pub").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            continue  # a DSA key, or one that nobody can name the kind of
        if key.bits and key.bits < MINIMUM_RSA_HOST_KEY_BITS:
            weak.append(f"{name} has {key.bits} bits")
        elif key.family in kinds:
            offered.append(name)
    if not offered:
        raise RefusedError(
            f"None of the host keys ({', '.join(configured)}) is of the kinds {', '.join(kinds)} and strong; "
            "nothing was changed. `ssh-keygen -A` makes missing ones; put them into known_hosts."
        )
    return offered, weak


def strong_moduli(minimum_bits: int, moduli: Path = MODULI) -> str:
    """Return the lines of moduli(5) whose groups have at least so many bits."""
    try:
        lines = moduli.read_text(encoding="ascii").splitlines(keepends=True)
    except FileNotFoundError:
        return ""
    fields = ((line, line.split()) for line in lines if not line.startswith("#"))
    return "".join(
        line
        for line, columns in fields
        if len(columns) > MODULUS_SIZE_COLUMN
        and re.fullmatch("[0-9]{1,6}", columns[MODULUS_SIZE_COLUMN])
        and int(columns[MODULUS_SIZE_COLUMN]) + 1 >= minimum_bits
    )


@dataclass(frozen=True)
class Site:
    """What the site's own files say to sshd: their lines, and what is in effect where no block decides.

    The crypto policy of Enterprise Linux is among them: of its lists nothing is added to.
    """

    lines: list[Line]
    common: Effective

    @property
    def decided(self) -> set[str]:
        """The keywords that the site sets for everybody; the others have sshd's default values."""
        return {line.keyword for line in self.lines if not line.blocks}


def never_weaker(
    settings: Settings, wanted: Effective, overridden: Set[str], site: Site
) -> tuple[Settings, Effective, list[str]]:
    """Put the site's values in the place of those that are weaker, and keep what its further factors need.

    Stricter values are written, so that a site that takes its lines out stays as strict until the next run.
    Further factors are left to the site's files, which may exempt our own login from them. Returns the
    settings, the least strict values that may be in effect, and a sentence for each that stays. Raises
    RefusedError.
    """
    kept: dict[str, list[str]] = {}
    sentences: list[str] = []
    least = {**wanted}
    for keyword in settings:
        name = keyword.lower()
        if name in overridden or not {name} <= site.decided & site.common.keys() & wanted.keys():
            continue
        found, asked = site.common[name], wanted[name]
        if stricter(name, found, asked):
            kept[keyword] = [] if name == "authenticationmethods" else found
            than = "what the role offers" if name in ALGORITHM_LISTS else " ".join(asked)
            sentences.append(f"{keyword} {' '.join(found)}, which is stricter than {than}")
        elif (both := strict_as_both(name, found, asked)) != asked:
            kept[keyword] = least[name] = both
            what = "what the site offers of it" if name in ALGORITHM_LISTS else "as strict as the site"
            sentences.append(f"{keyword} {both[0]}, which is {what}")
        else:
            refuse_less(keyword, found, asked, site)
    needed = needed_methods(site, "AuthenticationMethods" in kept)
    for keyword in settings:
        name = keyword.lower()
        if name in needed and name not in overridden and site.common[name] != wanted[name]:
            kept[keyword] = []
            sentences.append(f"{keyword} {' '.join(site.common[name])}, which {needed[name]} needs")
    rest = {keyword: lines for keyword, lines in {**settings, **kept}.items() if lines}
    return rest, least, sentences


def refuse_less(keyword: str, found: list[str], asked: list[str], site: Site) -> None:
    """Raise RefusedError for a value of the site that protects in another way than the one to replace it."""
    name = keyword.lower()
    if name == "authenticationmethods" and demands_several(found) and not as_strict(name, found, asked):
        less, remedy = "Logins would need fewer methods", "Put publickey into each of its lists there"
    elif name == "revokedkeys" and found != asked:
        less = "Keys that are revoked would be let in again"
        remedy = "Move its keys to ssh_hardening_revoked_keys and take the line out"
    else:
        return
    raise RefusedError(
        f"{less}; nothing was changed: {keyword} is {' '.join(found)} ({where(name, site.lines)}), and "
        f"{' '.join(asked)} was to replace it. {remedy}, or decide by "
        f"ssh_hardening_extra_options: {{{keyword}: ...}}."
    )


def needed_methods(site: Site, global_stays: bool) -> dict[str, str]:
    """Return the keywords, in lower case, that the site's further factors need, and what demands them."""
    demands = [
        (f" ({line.place})", " ".join(line.words))
        for line in site.lines
        if line.keyword == "authenticationmethods" and line.blocks
    ]
    if global_stays:
        demands.insert(0, ("", site.common["authenticationmethods"][0]))
    return {
        name: f"AuthenticationMethods {methods}{place}"
        for place, methods in reversed(demands)
        for name in further_factors(methods)
        if name in site.common
    }


def refuse_weaker_ways(
    text: str, wanted: Parameters, sshd: Sshd, site: Site, own: Mapping[str, Settings], expected: Effective
) -> int:
    """Ask sshd for a login of each kind; raise RefusedError where one has a weaker way in, or none any more.

    Returns how many kinds there are beyond those that were asked for.
    """
    ours = {Block(str(DROP_IN), criteria): inner for criteria, inner in own.items()}
    asked = probes(site.lines, ours, sshd.login)
    accepted = {" ".join(criteria.split()) for criteria in wanted.accepted_matches}
    found: dict[Line, str] = {}
    for probe in asked[:MOST_LOGINS]:
        effective = sshd.whole(f"{text}{probe.added()}", probe.text)
        if not ways_in(effective) and ways_in(sshd.whole(probe.added(), probe.text)):
            places = ", ".join(block.place for block in probe.blocks)
            raise RefusedError(
                f"This would lock {probe.subject} out ({places}); nothing was changed: AuthenticationMethods "
                f"{' '.join(effective['authenticationmethods'])} would demand a method that is off. Switch "
                "it on in that block or in ssh_hardening_extra_options, or demand publickey alone."
            )
        allowed = dict(expected)
        for block, inner in ours.items():
            if meets_account(block, probe.who) and meets_connection(block, probe.connection):
                allowed.update({keyword.lower(): lines for keyword, lines in inner.items()})
        for line, sentence in faults(probe, effective, allowed, site.lines).items():
            if line.blocks[-1].criteria not in accepted:
                found.setdefault(line, sentence)
    if found:
        criteria = list(dict.fromkeys(line.blocks[-1].criteria for line in found))
        more = f"; and {len(found) - MOST_SENTENCES} more lines" if len(found) > MOST_SENTENCES else ""
        raise RefusedError(
            "Match blocks of the site leave weaker ways in than the role allows; nothing was changed: "
            f"{'; '.join([*found.values()][:MOST_SENTENCES])}{more}. Change these lines, or accept the "
            f"blocks by ssh_hardening_accepted_matches: {json.dumps(criteria)}."
        )
    return max(0, len(asked) - MOST_LOGINS)


def plan(wanted: Parameters, sshd: Sshd, base: Effective) -> SshdPlan:
    """Return the files, and the settings that they make effective; raise RefusedError where they do not."""
    # Before `ssh -Q`, which takes no keywords in OpenSSH 8.0.
    sshd.refuse_without_include()
    has = {
        keyword: known_to(sshd, keyword, names, base["hostkey"])
        for keyword, names in wanted.algorithms.items()
    }
    algorithms = {
        keyword: known_algorithms(keyword, names, has[keyword])
        for keyword, names in wanted.algorithms.items()
    }
    revoked = public_keys("revoked keys", wanted.revoked_keys)
    authorities = public_keys("user CA keys", wanted.user_ca_keys)
    banner = wanted.banner.rstrip()
    contents = {
        BANNER: f"{banner}\n" if banner else None,
        USER_CA_KEYS: "".join(f"{key.line}\n" for key in authorities) or None,
        REVOKED_KEYS: "".join(f"{key.line}\n" for key in revoked) or None,
        STRONG_MODULI: strong_moduli(wanted.minimum_modulus_bits) or None,
    }
    uses = {BANNER: "Banner", USER_CA_KEYS: "TrustedUserCAKeys", REVOKED_KEYS: "RevokedKeys"}
    generated: dict[str, Any] = {keyword: str(path) for path, keyword in uses.items() if contents[path]}
    optional = {**wanted.settings_if_known}
    if contents[STRONG_MODULI]:
        optional["ModuliFile"] = str(STRONG_MODULI)
    weak: list[str] = []
    if wanted.host_key_types:
        generated["HostKey"], weak = offered_host_keys(wanted.host_key_types, base["hostkey"])
    asked = merge(wanted.settings, generated, optional, algorithms, wanted.overrides)
    blocks = {criteria: merge(inner) for criteria, inner in wanted.blocks.items()}
    check_criteria(blocks)
    host_keys = [] if "HostKey" in asked else base["hostkey"]
    overridden = {keyword.lower() for keyword in wanted.overrides}
    may_be_unknown = {keyword for keyword in optional if keyword.lower() not in overridden}
    settings, understood_as = understood(sshd, asked, blocks, may_be_unknown, host_keys)
    unknown = [keyword for keyword in asked if keyword not in settings]
    unknown += [
        name for keyword, names in wanted.algorithms.items() for name in names if name not in has[keyword]
    ]
    lines = site_lines()
    has_blocks = any(line.blocks for line in lines)
    site = Site(lines, sshd.whole(None, NO_LOGIN) if has_blocks else base)
    settings, least, kept = never_weaker(settings, understood_as, overridden, site)
    text = render(settings, blocks)
    try:
        effective = sshd.whole(text)
    except RefusedError as error:  # of AuthenticationMethods, sshd says itself that they cannot be met
        raise RefusedError(" ".join([str(error), *word_on_kept(kept, OTHERWISE)])) from error
    if wrong := disagreements(settings, least, effective):
        places = {keyword: where(keyword, lines, sshd.started_with) for keyword in wrong}
        raise RefusedError(
            "; ".join(f"{sentence} ({places[keyword]})" for keyword, sentence in wrong.items())
            + ". These lines stand against Temper's; nothing was changed. Take them out, or ask for the same "
            "values in the inventory.",
            commented_out(line for keyword in wrong for line in in_the_way(keyword.lower(), lines)),
        )
    unasked = refuse_weaker_ways(text, wanted, sshd, site, blocks, understood_as)
    keys = frozenset(key.blob for key in revoked)
    return SshdPlan({**contents, DROP_IN: text}, effective, keys, weak, kept, unasked, unknown)


def word_on_unknown(planned: SshdPlan) -> str:
    """Say what this OpenSSH lacks, with its version; nothing where it lacks nothing."""
    # OpenSSH_9.2p1 Debian-2+deb12u7, OpenSSL 3.0.17 1 Jul 2025
    if not planned.unknown:
        return ""
    said = complete(["ssh" if which("ssh") else "sshd", "-V"]).stderr.partition(",")[0]
    return f"{printable(said)} does not know {', '.join(planned.unknown)}"


def cut_ways(sshd: Sshd, text: str | None, found: Iterable[Channel]) -> list[Channel]:
    """Return the open channels of accounts that sshd forwards for now, and no longer would."""
    in_place = DROP_IN.read_text(encoding="utf-8") if DROP_IN.exists() else None

    def forwards(configuration: str | None, account: str) -> bool:
        said = sshd.whole(configuration, f"user={account},{FROM_ANYWHERE}")
        return said.get("allowtcpforwarding") in (["yes"], ["all"], ["local"])

    found = list(found)
    accounts = {one.account for one in found}
    cut = {one for one in accounts if forwards(in_place, one) and not forwards(text, one)}
    return [one for one in found if one.account in cut]


def locked_out(sshd: Sshd, planned: SshdPlan, login: Login | None) -> list[str]:
    """Return why other accounts that get in now no longer would, a sentence for each.

    Ansible's own account is refused elsewhere. Looks at MOST_LOGINS accounts, people first.
    """
    in_place = DROP_IN.read_text(encoding="utf-8") if DROP_IN.exists() else None
    already = REVOKED_KEYS.read_text(encoding="utf-8").split() if REVOKED_KEYS.exists() else ()
    own, client = (login.account, login.client) if login else ("", "192.0.2.1")
    people = [
        user.pw_name
        for user in sorted(pwd.getpwall(), key=lambda user: (user.pw_uid < FIRST_PERSON_UID, user.pw_uid))
        if user.pw_name != own
        and Path(user.pw_shell).name not in NO_LOGIN_SHELLS
        # sshd -C takes these for the end of a name.
        and not {",", "="} & {*user.pw_name}
    ]

    def refusal(name: str, text: str | None, revoked: frozenset[str]) -> str | None:
        asked = f"user={name},host={client},addr={client},laddr=192.0.2.2,lport=22"
        effective = sshd.whole(text, asked)
        account = read_account(name, effective, revoked)
        by_password = gets_in_by_password(account, client, effective)
        return None if by_password else login_refusal(account, client, effective)

    found = {}
    # A configuration that sshd refuses lets nobody in; an account may go meanwhile.
    with contextlib.suppress(RefusedError, KeyError):
        for name in people[:MOST_LOGINS]:
            if refusal(name, in_place, frozenset(already)) is None:
                found[name] = refusal(name, planned.files[DROP_IN], planned.revoked)
    return [why for why in found.values() if why]


def word_on_cut_ways(cut: list[Channel]) -> str:
    """Say who is on the way through this node."""
    more = f" and {len(cut) - MOST_SENTENCES} more" if len(cut) > MOST_SENTENCES else ""
    return f"sshd forwards connections of {', '.join(map(str, cut[:MOST_SENTENCES]))}{more} (port 22)"


@dataclass(frozen=True)
class Outlook:
    """What sshd would be after the change, from one look at the node.

    `socket_moves` says that systemd, which listens in sshd's place, is to listen elsewhere. `unlabelled` are
    ports that need SELinux's label, `labelled` those that lose it with all of ours.
    """

    plan: SshdPlan
    differing: list[File]
    ports: list[str]
    new_port: int | None = None
    socket_moves: bool = False
    cut: list[Channel] = field(default_factory=list)
    locked_out: list[str] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)
    labelled: list[str] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        """Whether anything is to change."""
        return bool(self.differing or self.unlabelled or self.labelled)


class SshdSettings(ConfirmedSetting[Outlook]):
    """The drop-in and the files that it names, made together."""

    key = "sshd"
    change_name = "ssh"
    subject = f"sshd's settings ({DROP_IN})"
    otherwise = OTHERWISE

    def __init__(self, wanted: Parameters, rollback_after_s: int, login: Login | None) -> None:
        super().__init__(rollback_after_s, login)
        self.wanted = wanted
        self.moved_to: int | None = None

    @classmethod
    def from_items(cls, items: Mapping[str, Any], options: Mapping[str, Any]) -> SshdSettings:
        """From a plan's items: sshd:KEYWORD, sshd_algorithm:KEYWORD, sshd_parameter:NAME.

        The key of a keyword within a block may have anything and a slash before the keyword.
        """
        wanted: dict[str, Any] = {
            name: {} for name in ("settings", "settings_if_known", "algorithms", "blocks")
        }
        for item, value in items.items():
            kind, _, key = item.partition(":")
            if kind == "sshd_algorithm":
                wanted["algorithms"][key] = value
            elif kind == "sshd_parameter":
                wanted[key] = value
            elif block := value.get("block"):
                wanted["blocks"].setdefault(block, {})[key.rpartition("/")[2]] = value["value"]
            else:
                layer = "settings_if_known" if value.get("if_known") else "settings"
                wanted[layer][key] = value["value"]
        state = "absent" if options.get("absent") else "present"
        return cls(
            Parameters(state=state, **wanted),
            options.get("rollback_after_s", DEFAULT_ROLLBACK_AFTER_S),
            ssh_login(),
        )

    def look(self, *, ahead: bool = False) -> Outlook:
        """Everything that is written, shown and refused comes from here.

        `ahead` of a run, asking makes no folder, and nothing is said of logins: the roles before this one may
        change who gets in.
        """
        if not (program := which("sshd")):
            raise RefusedError("There is no sshd on this node: install the package openssh-server.")
        with tempfile.TemporaryDirectory() as scratch:
            # Nothing is in the way of taking a role back that never was there.
            matters = self.live and (self.wanted.state == "present" or any(map(Path.exists, FILES)))
            sshd = Sshd(program, self.login, Path(scratch), changes=not ahead)
            sshd.started_with = started_with(sshd.whole(None)) if matters else []
            base = sshd.whole(None)
            gone = SshdPlan(dict.fromkeys(FILES), base)
            planned = plan(self.wanted, sshd, base) if self.wanted.state == "present" else gone
        files = [
            File(str(path), text, "0600" if path == DROP_IN else "0644", public=True)
            for path, text in planned.files.items()
        ]
        differing = [file for file in files if file.differs()]
        ports = listening_ports(planned.effective)
        outlook = Outlook(planned, differing, ports)
        if self.live and planned is gone:
            outlook = replace(outlook, labelled=selinux_ports.noted())
        elif self.live:  # SELinux may have been off when the files were written
            outlook = replace(outlook, unlabelled=selinux_ports.unlabelled(ports))
        if not self.live or not (differing or outlook.unlabelled):
            return outlook
        with tempfile.TemporaryDirectory() as scratch:
            sshd.scratch = Path(scratch)
            if not ahead:
                outlook = replace(outlook, locked_out=locked_out(sshd, planned, self.login))
            if planned is not gone and (found := channels(ports)):
                outlook = replace(outlook, cut=cut_ways(sshd, planned.files[DROP_IN], found))
        socket, addresses = active_socket(), planned.effective["listenaddress"]
        moves = bool(socket) and addresses != configured_addresses()
        if socket and moves and (obstacle := socket_obstacle(socket)):
            if ports != listening_ports(base):
                raise RefusedError(obstacle)
            moves = False
        if moves or not socket:
            refuse_what_sshd_cannot_listen_on(addresses, ports_of_others(listeners()))
        # Where systemd listens in sshd's place and goes on to, our way in stays where it is.
        stays = bool(socket) and not moves
        new_port = None if ahead else self._new_port(planned, ports, stays=stays)
        return replace(outlook, new_port=new_port, socket_moves=moves)

    def _new_port(self, planned: SshdPlan, ports: list[str], *, stays: bool) -> int | None:
        """Return the port to connect to from now on; raises RefusedError where Ansible would be kept out."""
        if not self.login:
            return None
        account = read_account(self.login.account, planned.effective, planned.revoked)
        if refusal := login_refusal(account, self.login.client, planned.effective):
            raise RefusedError(f"This would lock Ansible out; nothing was changed: {refusal}.")
        if stays or str(self.login.server_port) in ports:
            return None
        listed = [*map(str, self.wanted.settings.get("Port") or []), *ports]
        return int(next(port for port in listed if port in ports))

    def obstacle(self) -> str | None:
        """Return why `look` refuses, or that others are on their way through this node."""
        return super().obstacle() or self.cuts(self.outlook)

    def cuts(self, outlook: Outlook) -> str | None:
        """Return that others are on their way through this node, unless the operator has decided on that."""
        if self.wanted.forwarding_decided or not (cut := outlook.cut):
            return None
        return (
            f"This node is a jump host: {word_on_cut_ways(cut)}, and would not any more. "
            "Set ssh_hardening_tcp_forwarding: local to keep that, or no to end it."
        )

    def read(self) -> State:
        """Our files as they are, and the note of ports that have SELinux's label by us."""
        noted = [selinux_ports.NOTE] if selinux_ports.NOTE.exists() else []
        return {str(path): saved(path) for path in (*FILES, *noted)}

    def settled(self) -> bool:
        """Return whether files and labels are as wanted; sshd has read what a run has written."""
        return not self.outlook.changes

    def change(self) -> list[Difference]:
        """Return the files but for the long one of numbers, and the labels of ports."""
        files = [
            Difference(file.path, *file.before_and_after())
            for file in self.outlook.differing
            if file.path != str(STRONG_MODULI)
        ]
        name, label = "SELinux's label of port", selinux_ports.LABEL
        return [
            *files,
            *(Difference(f"{name} {port}", "", label) for port in self.outlook.unlabelled),
            *(Difference(f"{name} {port}", label, "") for port in self.outlook.labelled),
        ]

    def fault(self) -> Fault | None:
        """Return the fault of an sshd that has not read its configuration since that changed."""
        if not (unread := unread_changes(self.outlook.plan.effective)):
            return None
        path, changed = unread
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(changed))
        return Fault(
            f"the running sshd has not read its configuration since {path} changed at {moment}: what is in "
            "force now is what stood there before",
            reload_by_hand(),
        )

    def way_in(self) -> WayIn | None:
        """Any change is one."""
        if not self.outlook.changes:
            return None
        live = LISTEN_ANEW_IN_SHELL if self.outlook.socket_moves else RELOAD_IN_SHELL
        label = [selinux_ports.in_shell("-a", port) for port in self.outlook.labelled]
        unlabel = [selinux_ports.in_shell("-d", port) for port in self.outlook.unlabelled]
        files = [*self.outlook.plan.files, *([selinux_ports.NOTE] if label or unlabel else [])]
        return WayIn(self.change_name, self.subject, files, [*label, live, *unlabel])

    def apply(self) -> None:
        """Write the files and have sshd read them."""
        outlook = self.outlook
        self.moved_to = outlook.new_port
        try:
            selinux_ports.give(outlook.unlabelled)
            for file in outlook.differing:
                file.write()
            if self.live and (outlook.differing or outlook.unlabelled):
                (listen_anew if outlook.socket_moves else reload_sshd)(outlook.ports)
            if outlook.labelled:
                selinux_ports.take(outlook.labelled)
                selinux_ports.NOTE.unlink()
        finally:
            self.forget()

    def restore(self, state: State) -> None:
        """Write the files as they were and have sshd read them."""
        before, labelled = configured_addresses(), selinux_ports.noted() if self.live else []
        for path in reversed(FILES) if state.get(str(DROP_IN)) else FILES:
            put_back(path, state.get(str(path)))
        if not self.live:
            self.forget()
            return
        put_back(selinux_ports.NOTE, state.get(str(selinux_ports.NOTE)))
        again = {*selinux_ports.noted()} - {*labelled}
        for port in selinux_ports.unlabelled(sorted(again)):
            run(selinux_ports.command("-a", port))
        socket = active_socket()
        moves = socket and configured_addresses() != before and not socket_obstacle(socket)
        live = LISTEN_ANEW_IN_SHELL if moves else RELOAD_IN_SHELL
        run(["sh", "-c", f"failed=0; {live}; exit $failed"])
        selinux_ports.take({*labelled} - {*selinux_ports.noted()})
        self.forget()

    def kept(self) -> list[str]:
        """Return what the site has that is stricter."""
        return self.outlook.plan.kept

    def unknown(self) -> str:
        """Return what this OpenSSH goes without."""
        return word_on_unknown(self.outlook.plan)

    def foreseen(self) -> SshdPlan:
        """Return what would be written, for any login. Raises RefusedError, also in sshd's own words."""
        outlook = self.look(ahead=True)
        if refused := self.cuts(outlook):
            raise RefusedError(refused)
        return outlook.plan

    def warnings(self) -> list[str]:
        """Host keys that go, the port that changes, and a login that proves nothing."""
        lines = []
        if not self.login:
            lines.append("Ansible does not come over SSH here, so nothing proves that it could.")
        elif not self.login.by_sshd:
            lines.append(
                "Ansible comes through another SSH server than sshd (Tailscale's, Teleport's, dropbear), so "
                "the new connection proves nothing about sshd: log in through sshd before you leave the node."
            )
        if self.outlook.socket_moves:
            lines.append(
                f"{SOCKET} takes its ports at a `systemctl daemon-reload`, which can cost running containers "
                "their GPUs."
            )
        if cut := self.outlook.cut:
            lines.append(f"{word_on_cut_ways(cut)}: no new ones from now on.")
        if others := self.outlook.locked_out:
            more = f"; and {len(others) - MOST_SENTENCES} more" if len(others) > MOST_SENTENCES else ""
            lines.append(
                "The new connection proves nothing for others. Who can log in now and no longer will: "
                f"{'; '.join(others[:MOST_SENTENCES])}{more}."
            )
        if unasked := self.outlook.plan.unasked:
            lines.append(
                f"The site's Match lines tell {MOST_LOGINS + unasked} kinds of logins apart; sshd was asked "
                f"for {MOST_LOGINS}."
            )
        if weak := self.outlook.plan.weak_host_keys:
            lines.append(f"A weak host key is no longer offered: {', '.join(weak)}.")
        if self.wanted.state == "present" and (ports := ports_of_everybody(self.outlook.ports)):
            lines.append(
                f"Any account of this node can take port {', '.join(ports)} while sshd reloads or is away, "
                "and so keep everybody out: choose one below 1024."
            )
        if self.login and (port := self.outlook.new_port):
            lines.append(
                f"sshd leaves port {self.login.server_port}: set ansible_port to {port} from now on."
            )
        return lines

    def result(self) -> dict[str, Any]:
        """Return the port to connect to from now on, where it is another one."""
        return {"port": self.moved_to or self.outlook.new_port}
