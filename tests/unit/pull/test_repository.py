"""What an account that may push, or a server, can try: real git, real keys, whole runs."""

import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import process

from pull import repository
from pull.shared import PROGRAMS
from tests.unit.executables import executable
from tests.unit.pull.origin import key, line
from tests.unit.pull.world import World
from tests.unit.serving import serving_files

pytestmark = pytest.mark.component

TAGS = {"tags": "fleet-*", "branch": ""}
#: What the agent of the version before has left: two releases, and the folders that it worked in.
FORMER = Path(__file__).with_name("state_of_version_1.tar.xz")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def written(world: World, kind: str, content: str | bytes) -> str:
    """Write an object as it is; returns its name."""
    command = [
        "git",
        "-C",
        str(world.source.folder),
        "hash-object",
        "-t",
        kind,
        "-w",
        "--literally",
        "--stdin",
    ]
    data = content.encode() if isinstance(content, str) else content
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode().strip()


def offer(world: World, commit: str) -> None:
    world.source.git("update-ref", "refs/heads/main", commit)


def raw(world: World) -> tuple[str, str]:
    """Header and message of an unsigned commit on top."""
    world.source.commit(None)
    header, _, message = world.source.git("cat-file", "commit", "HEAD").partition("\n\n")
    return header, message + "\n"


def signed_tree(world: World, tree: str) -> None:
    """Have ada sign whatever a tree has."""
    options = world.source.signing(world.ada)
    offer(world, world.source.git(*options, "commit-tree", "-S", "-m", "tree", "-p", "HEAD", tree))


def unsigned(world: World) -> None:
    world.source.commit(world.ada)
    world.source.commit(None)


def signature_in_the_message(world: World) -> None:
    header, _, message = world.source.git("cat-file", "commit", "HEAD").partition("\n\n")
    bare, _, signature = header.partition("gpgsig ")
    offer(world, written(world, "commit", f"{bare.rstrip()}\n\n{message}\ngpgsig {signature}\n"))


def merge_of_a_signed_tag(world: World) -> None:
    world.source.git("checkout", "--quiet", "-b", "upstream")
    world.source.commit(world.ada, "other")
    world.source.tag("v1", world.ada)
    world.source.git("checkout", "--quiet", "main")
    world.source.git("merge", "--quiet", "--no-ff", "--no-gpg-sign", "--message", "m", "v1")
    assert "mergetag" in world.source.git("cat-file", "commit", "HEAD")


def another_key(world: World) -> None:
    world.source.commit(world.mallory)


def signature_of_another_commit(world: World) -> None:
    world.source.commit(world.ada)
    offer(world, written(world, "commit", world.source.git("cat-file", "commit", "HEAD") + " and more\n"))


def signature_of_a_file(world: World) -> None:
    """The same key, another namespace."""
    header, message = raw(world)
    command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", str(world.ada)]
    data = f"{header}\n\n{message}".encode()
    signed = subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode().rstrip()
    offer(
        world,
        written(world, "commit", f"{header}\ngpgsig {signed.replace(chr(10), chr(10) + ' ')}\n\n{message}"),
    )


def openpgp(world: World) -> None:
    header, message = raw(world)
    signature = "-----BEGIN PGP SIGNATURE-----\n \n AAAA\n -----END PGP SIGNATURE-----"
    offer(world, written(world, "commit", f"{header}\ngpgsig {signature}\n\n{message}"))


def expired(world: World) -> None:
    world.source.commit(world.ada)
    world.trust(line("ada", world.ada, ',valid-before="20261101Z"'))


def not_yet(world: World) -> None:
    world.source.commit(world.ada)
    world.trust(line("ada", world.ada, ',valid-after="29991201Z"'))


def expired_with_an_old_date(world: World) -> None:
    """Git judges a key's time at the time of the commit, which its author chooses."""
    header, message = raw(world)
    old = header.rpartition("committer ")[0] + "committer ada <ada@example.org> 1767225600 +0000"
    command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", str(world.ada)]
    data = f"{old}\n\n{message}".encode()
    signed = subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode().rstrip()
    offer(
        world,
        written(world, "commit", f"{old}\ngpgsig {signed.replace(chr(10), chr(10) + ' ')}\n\n{message}"),
    )
    world.trust(line("ada", world.ada, ',valid-before="20260201Z"'))


def removed_key(world: World) -> None:
    """It ends what is applied, too."""
    world.trust(line("grace", key(world.folder, "grace")))


def nobody_in_the_keyring(world: World) -> None:
    world.trust("# nobody\n")


def everybody_in_the_keyring(world: World) -> None:
    world.trust(line("ada", world.ada).replace("ada", "*", 1))


def older(world: World) -> None:
    world.source.git("reset", "--quiet", "--hard", "HEAD~1")


def rewritten(world: World) -> None:
    older(world)
    world.source.commit(world.ada, "other")


def rewritten_and_the_clone_lost(world: World) -> None:
    rewritten(world)
    shutil.rmtree(world.state / "repository.git")


def submodule(world: World) -> None:
    world.source.git("update-index", "--add", "--cacheinfo", f"160000,{world.commit},module")
    world.source.git(*world.source.signing(world.ada), "commit", "-q", "--gpg-sign", "--message", "module")


def files_without_end(world: World) -> None:
    """Folders that name one folder ten times each: a few objects, and more files than any disk has."""
    tree = world.source.git("rev-parse", "HEAD^{tree}")
    for _ in range(6):
        text = b"".join(b"40000 %d%s\0" % (number, b"x" * 60) + bytes.fromhex(tree) for number in range(10))
        tree = written(world, "tree", text)
    signed_tree(world, tree)


REFUSED: list[tuple[str, Callable[[World], None]]] = [
    ("unsigned", unsigned),
    ("unsigned", signature_in_the_message),
    ("unsigned", merge_of_a_signed_tag),
    ("bad-signature", another_key),
    ("bad-signature", signature_of_another_commit),
    ("bad-signature", signature_of_a_file),
    ("bad-signature", removed_key),
    ("wrong-signature", openpgp),
    ("signer-expired", expired),
    ("signer-expired", not_yet),
    ("signer-expired", expired_with_an_old_date),
    ("keyring", nobody_in_the_keyring),
    ("keyring", everybody_in_the_keyring),
    ("older", older),
    ("not-descendant", rewritten),
    ("not-descendant", rewritten_and_the_clone_lost),
    ("submodule", submodule),
    ("too-large", files_without_end),
]


def forged_tag(world: World, tag: str, text: str) -> None:
    world.source.git("update-ref", f"refs/tags/{tag}", written(world, "tag", text))


def annotated(world: World) -> None:
    world.source.tag("fleet-10", None)


def lightweight(world: World) -> None:
    world.source.git("tag", "fleet-10")


def tag_of_another_key(world: World) -> None:
    world.source.tag("fleet-10", world.mallory)


def moved(world: World) -> None:
    """Forward, and signed."""
    world.source.commit(world.ada)
    world.source.tag("fleet-9", world.ada, "--force")


def moved_as_the_newer_one_is_gone(world: World) -> None:
    world.source.commit(None)
    world.source.git("tag", "--delete", "fleet-9")
    world.source.tag("fleet-8", world.ada, "--force")


def renamed(world: World) -> None:
    world.source.git("update-ref", "refs/tags/fleet-10", world.source.git("rev-parse", "refs/tags/fleet-9"))


def taken_away(world: World) -> None:
    world.source.git("tag", "--delete", "fleet-9")


def new_tag_on_an_older_commit(world: World) -> None:
    world.source.git("reset", "--quiet", "--hard", world.commit)
    world.source.tag("fleet-10", world.ada)


def new_tag_on_another_history(world: World) -> None:
    world.source.git("reset", "--quiet", "--hard", world.commit)
    world.source.commit(None, "other")
    world.source.tag("fleet-10", world.ada)


def no_day(world: World) -> None:
    """Its tag is signed; the commit's time is what its author says."""
    header, message = raw(world)
    far = f"{header.rpartition('> ')[0]}> {10**12} +0000\n\n{message}"
    offer(world, written(world, "commit", far))
    world.source.tag("fleet-10", world.ada)


REFUSED_TAGS: list[tuple[str, Callable[[World], None]]] = [
    ("unsigned", annotated),
    ("unsigned", lightweight),
    ("bad-signature", tag_of_another_key),
    ("tag-moved", moved),
    ("tag-moved", moved_as_the_newer_one_is_gone),
    ("tag-renamed", renamed),
    ("older", taken_away),
    ("older", new_tag_on_an_older_commit),
    ("not-descendant", new_tag_on_another_history),
    ("wrong-time", no_day),
]


def names(cases: list[tuple[str, Callable[[World], None]]]) -> list[str]:
    return [attack.__name__ for _, attack in cases]


def require_refused(world: World, code: str, attack: Callable[[World], None], **values: Any) -> None:
    """The attack changes nothing of what the node takes for its configuration, and runs nothing."""
    before, calls = world.accepted, world.calls
    attack(world)
    result = world.run(**values)
    assert (result.state, result.code, result.commit) == ("refused", code, before["commit"])
    assert (world.accepted, world.calls) == (before, calls)


@pytest.mark.parametrize(("code", "attack"), REFUSED, ids=names(REFUSED))
def test_a_commit_is_refused(world: World, code: str, attack: Callable[[World], None]) -> None:
    world.source.commit(world.ada)
    assert world.run().signer == "ada"
    require_refused(world, code, attack)


@pytest.mark.parametrize(("code", "attack"), REFUSED_TAGS, ids=names(REFUSED_TAGS))
def test_a_tag_is_refused(world: World, code: str, attack: Callable[[World], None]) -> None:
    for name in ("fleet-8", "fleet-9"):
        commit = world.source.commit(None)
        world.source.tag(name, world.ada)
    result = world.run(**TAGS)
    assert (result.commit, result.ref, result.signer) == (commit, "fleet-9", "ada")
    require_refused(world, code, attack, **TAGS)


def dotgit(world: World) -> None:
    """A checkout would write into a repository's own folder."""
    blob = bytes.fromhex(world.source.git("rev-parse", "HEAD:inventory/mine/hosts.yml"))
    signed_tree(world, written(world, "tree", b"100644 .git\0" + blob))


def twins(world: World) -> None:
    blob = bytes.fromhex(world.source.git("rev-parse", "HEAD:inventory/mine/hosts.yml"))
    signed_tree(world, written(world, "tree", (b"100644 file\0" + blob) * 2))


def other_content(world: World) -> None:
    """A file of the signed tree, with what nobody has signed."""
    world.source.commit(world.ada)
    names = [world.source.git("rev-parse", "HEAD:file"), written(world, "blob", "forged")]
    target, forged = (world.source.folder / ".git/objects" / name[:2] / name[2:] for name in names)
    target.chmod(0o600)
    target.write_bytes(forged.read_bytes())


def shallow(world: World) -> None:
    """Git ends with success; a node would keep to its commit for ever, and call that the newest."""
    world.source.commit(world.ada)
    clone = world.folder / "shallow"
    world.source.git("clone", "-q", "--bare", "--depth", "1", f"file://{world.source.folder}", str(clone))
    world.away()
    clone.rename(world.source.folder / ".git")


@pytest.mark.parametrize("attack", [dotgit, twins, other_content, shallow, World.away])
def test_what_git_itself_does_not_take_leaves_the_node_with_its_commit(
    world: World, attack: Callable[[World], None]
) -> None:
    world.run()
    attack(world)
    result = world.run()
    assert (result.state, result.code, result.commit) == ("checked", "not-fetched", world.commit)
    assert (world.accepted["commit"], result.signer) == (world.commit, "ada")


@pytest.mark.parametrize("attack", [None, dotgit, other_content])
def test_a_server_of_files_alone_is_looked_at_as_closely(
    world: World, attack: Callable[[World], None] | None
) -> None:
    """The dumb protocol, over which objects come one by one."""
    if attack:
        attack(world)
    world.source.git("update-server-info")
    with serving_files(world.source.folder) as url:
        result = world.run(url=f"{url}/.git")
    expected = ("failed", "repository", "") if attack else ("checked", "", world.commit)
    assert (result.state, result.code, result.commit) == expected


def program(world: World, monkeypatch: pytest.MonkeyPatch, script: str) -> dict[str, str]:
    """Put a program in the place of ssh, as which a server answers; returns the node's address of it."""
    path = executable(world.folder / "programs/ssh", script)
    monkeypatch.setattr(repository, "PROGRAMS", f"{path.parent}:{PROGRAMS}")
    return {"url": "ssh://git@example.org/fleet.git"}


@pytest.mark.parametrize(
    ("script", "bound"),
    [
        ("exec sleep 600", (repository, "GIT_TIMEOUT_S", 1)),
        ("exec yes 'remote: a word' >&2", (process, "MOST_BYTES", 1 << 20)),
    ],
    ids=["hangs", "talks for ever"],
)
def test_a_server_that_does_not_end_is_ended(
    world: World, monkeypatch: pytest.MonkeyPatch, script: str, bound: tuple[Any, str, int]
) -> None:
    where = program(world, monkeypatch, script)
    monkeypatch.setattr(*bound)
    result = world.run(**where)
    assert (result.state, result.code, world.playbooks) == ("failed", "repository", [])


def test_a_server_that_sends_without_end_is_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it has sent does not stay once an honest one answers."""
    world.run()
    second = world.source.commit(world.ada)
    clones, asked = f"{world.state}/repository.git*", f"{world.folder}/asked"
    where = program(
        world,
        monkeypatch,
        f"test -e {asked} || {{ touch {asked}; exec git-upload-pack {world.source.folder}; }}\n"
        f"for clone in {clones}; do head -c 2000000 /dev/zero >$clone/filled; done; exec sleep 600",
    )
    monkeypatch.setattr(repository, "LARGEST_CLONE", 1_000_000)
    result = world.run(**where)
    assert (result.code, result.commit) == ("not-fetched", world.commit)
    assert list(world.state.glob("repository.git/filled"))
    assert world.run().commit == second
    assert not list(world.state.glob("repository.git*/filled"))


def test_only_the_addresss_own_protocol_is_used(world: World) -> None:
    proof = world.folder / "proof"
    for url in (f"ext::touch% {proof}", str(world.source.folder)):
        assert world.run(url=url).code == "repository"
    assert not proof.exists()


@pytest.mark.parametrize("place", ["file", "environment"])
def test_nothing_of_roots_own_configuration_is_obeyed(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    everybody = world.folder / "everybody"
    everybody.write_text(line("ada", world.mallory))
    monkeypatch.setenv("HOME", str(world.folder))
    settings = {"gpg.ssh.allowedSignersFile": str(everybody), "gpg.ssh.program": "/bin/false"}
    for number, (name, value) in enumerate(settings.items()):
        if place == "file":
            command = ["git", "config", "--file", str(world.folder / ".gitconfig"), name, value]
            subprocess.run(command, check=True)
        else:
            monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", name)
            monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
            monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(settings)))
    assert world.run().signer == "ada"
    (world.folder / ".gitconfig").unlink(missing_ok=True)
    world.source.commit(world.mallory)
    assert world.run().code == "bad-signature"


def test_files_are_those_of_the_tree_whatever_it_says_of_filters_and_hooks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof, folder = world.folder / "proof", world.source.folder
    attributes = "* text eol=crlf ident filter=lfs working-tree-encoding=UTF-16\nrun export-ignore\n"
    hook = f"#!/bin/sh\n# $Id$\ntouch {proof}\n"
    texts = {"run": hook, "hooks/post-checkout": hook, ".lfsconfig": "[lfs]\nurl = https://192.0.2.1/\n"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "link").symlink_to("run")
    world.source.git("add", "--all")
    blob = written(world, "blob", attributes)
    world.source.git("update-index", "--add", "--cacheinfo", f"100644,{blob},.gitattributes")
    signed_tree(world, world.source.git("write-tree"))
    config = f'[filter "lfs"]\nsmudge = touch {proof}\nrequired = true\n[core]\nhooksPath = hooks\n'
    (world.folder / ".gitconfig").write_text(config)
    monkeypatch.setenv("HOME", str(world.folder))
    result = world.run()
    assert (result.state, result.code) == ("checked", "")
    checkout = world.state / "checkout"
    assert {name: (checkout / name).read_text() for name in texts} == texts
    assert ((checkout / "run").stat().st_mode & 0o777, (checkout / "link").readlink()) == (0o755, Path("run"))
    assert not proof.exists()


def test_what_is_damaged_on_the_nodes_own_disk_is_made_anew(world: World) -> None:
    world.run()
    clone, file = world.state / "repository.git", world.state / "checkout/inventory/mine/hosts.yml"
    first = next(path for path in (clone / "objects").rglob("*") if path.is_file())
    first.chmod(0o600)
    first.write_bytes(first.read_bytes()[:-5])
    (clone / "refs/temper/heads/main.lock").write_text("of a fetch that was killed")
    file.write_text("of somebody else")
    second = world.source.commit(world.ada)
    result = world.run()
    assert (result.commit, result.code) == (second, "")
    assert file.read_text() == (world.source.folder / "inventory/mine/hosts.yml").read_text()


def test_other_content_under_a_signed_name_on_the_nodes_own_disk_is_never_used(world: World) -> None:
    world.run()
    name = world.source.git("rev-parse", "HEAD:inventory/mine/hosts.yml")
    other = written(world, "blob", "forged")
    objects = world.state / "repository.git/objects"
    (pack,) = objects.glob("pack/*.pack")
    moved_out = pack.rename(world.folder / "pack").read_bytes()
    pack.with_suffix(".idx").unlink()
    subprocess.run(
        ["git", f"--git-dir={objects.parent}", "unpack-objects", "-q"], input=moved_out, check=True
    )
    path = objects / name[:2] / name[2:]
    path.chmod(0o600)
    path.write_bytes((world.source.folder / ".git/objects" / other[:2] / other[2:]).read_bytes())
    assert world.run().code == ""
    used = (world.state / "checkout/inventory/mine/hosts.yml").read_text()
    assert used == (world.source.folder / "inventory/mine/hosts.yml").read_text()


@pytest.mark.parametrize(("bound", "most"), [("MOST_FILES", 1), ("LARGEST_CHECKOUT", 10)])
def test_a_commit_beyond_a_bound_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    world.run()
    monkeypatch.setattr(repository, bound, most)
    require_refused(world, "too-large", lambda _: offer(world, world.source.commit(world.ada)))


@pytest.mark.parametrize("fails", ["init", "fetch", "fsck"])
def test_a_disk_that_is_full_takes_no_clone_away(
    fails: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git fails for lack of room as it does for a damaged object."""
    world.run()
    second = world.source.commit(world.ada)
    complete = process.complete

    def without_room(command: list[str], *more: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        if {fails, "fsck"} & set(command):
            return subprocess.CompletedProcess(command, 128, "", "No space left on device")
        return complete(command, *more, **options)

    with monkeypatch.context() as full:
        full.setattr(process, "complete", without_room)
        result = world.run()
    assert (result.code, result.commit) == ("not-fetched", world.commit)
    assert "No space left" in result.reason
    assert world.run().commit == second


def test_a_clone_whose_check_does_not_end_is_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of one that a server has filled: the node takes what is signed later all the same."""
    world.run()
    second = world.source.commit(world.ada)
    complete = process.complete

    def without_end(command: list[str], *more: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        if "fsck" in command and f"GIT_DIR={world.state}/repository.git" in command:
            return subprocess.CompletedProcess(command, 124, "", "")
        return complete(command, *more, **options)

    monkeypatch.setattr(process, "complete", without_end)
    result = world.run()
    assert (result.commit, result.code) == (second, "")


def test_a_flood_of_tags_is_refused_and_does_not_outlast_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "MOST_TAGS", 3)
    world.source.tag("fleet-9", world.ada)
    for start in (1, 3):
        flood = [f"fleet-{number}" for number in range(start, start + 2)]
        for name in flood:
            world.source.git("tag", name)
        assert world.run(**TAGS).ref == "fleet-9"
        assert world.accepted["tags"].keys() == {*flood, "fleet-9"}
        world.source.git("tag", "--delete", *flood)
    for number in range(3):
        world.source.git("tag", f"fleet-{number}")
    assert world.run(**TAGS).code == "too-large"


def test_going_back_is_a_new_commit(world: World) -> None:
    world.source.commit(world.ada)
    world.run()
    world.source.git(*world.source.signing(world.ada), "revert", "--no-edit", "--gpg-sign", "HEAD")
    assert world.run().commit == world.source.git("rev-parse", "HEAD")


def test_a_signed_merge_of_a_tag_that_openpgp_signed_is_taken(world: World) -> None:
    """Of a merge, git keeps the whole merged tag, with its signature, in the header."""
    world.source.git("checkout", "--quiet", "-b", "upstream")
    commit = world.source.commit(None, "other")
    armour = "-----BEGIN PGP SIGNATURE-----\n\niQ==\n-----END PGP SIGNATURE-----\n"
    forged_tag(
        world, "v1", f"object {commit}\ntype commit\ntag v1\ntagger a <a@example.org> 1 +0000\n\nv1\n{armour}"
    )
    world.source.git("checkout", "--quiet", "main")
    options = world.source.signing(world.ada)
    world.source.git(*options, "merge", "--quiet", "--no-ff", "--gpg-sign", "--message", "m", "v1")
    assert world.run().signer == "ada"


def test_versions_count_in_the_order_of_pep_440_and_other_tags_are_named(world: World) -> None:
    for name in ("fleet-9", "fleet-10-rc1", "fleet-10", "fleet-10rc2", "fleet-10.dev3", "fleet-zz-hotfix"):
        commit = world.source.commit(None)
        world.source.tag(name, world.ada)
        if name == "fleet-10":
            release = commit
    result = world.run(**TAGS)
    assert (result.commit, result.ref) == (release, "fleet-10")
    assert "fleet-zz-hotfix" in result.reason
    assert world.accepted["tags"].keys() == {
        "fleet-9",
        "fleet-10-rc1",
        "fleet-10",
        "fleet-10rc2",
        "fleet-10.dev3",
    }
    # What counts for nothing may move.
    world.source.git("tag", "--force", "fleet-zz-hotfix", world.commit)
    assert world.run(**TAGS).ref == "fleet-10"
    # One that is named in full needs no version.
    world.source.tag("fleet-named", world.ada)
    assert world.run(tags="fleet-named", branch="").ref == "fleet-named"


def test_no_version_at_all_is_told(world: World) -> None:
    world.source.tag("fleet-old", world.ada)
    result = world.run(**TAGS)
    assert (result.state, result.code) == ("failed", "repository")
    assert "fleet-old" in result.reason


def test_a_newer_tag_is_taken_although_an_older_one_moved(world: World) -> None:
    """Else no tag would help: the one that moved keeps every node from all that come after it."""
    world.source.tag("fleet-1", world.ada)
    world.run(**TAGS)
    first = world.accepted["tags"]["fleet-1"]
    world.source.commit(None)
    world.source.tag("fleet-1", world.ada, "--force")
    world.source.tag("fleet-2", world.ada)
    result = world.run(**TAGS)
    assert (result.ref, result.code) == ("fleet-2", "")
    assert "fleet-1" in result.reason
    # It is still known as what it was.
    assert world.accepted["tags"]["fleet-1"] == first


def test_what_helps_against_a_tag_that_moved_is_said_and_helps(world: World) -> None:
    world.source.tag("fleet-1", world.ada)
    world.run(**TAGS)
    was = world.accepted["tags"]["fleet-1"]
    world.source.commit(None)
    world.source.tag("fleet-1", world.ada, "--force")
    assert was in world.run(**TAGS).reason
    world.source.git("update-ref", "refs/tags/fleet-1", was)
    assert world.run(**TAGS).reason == ""


def test_where_the_server_is_away_the_accepted_tag_is_judged_again(world: World) -> None:
    """An account that may push can have named the commit once more, without a signature."""
    world.source.tag("fleet-1", None)
    world.source.tag("fleet-2", world.ada)
    world.run(**TAGS)
    world.source.git("tag", "--delete", "fleet-1", "fleet-2")
    result = world.run(**TAGS)
    assert (result.state, result.code, result.ref, result.signer) == (
        "checked",
        "not-fetched",
        "fleet-2",
        "ada",
    )
    world.trust(line("grace", key(world.folder, "grace")))
    assert world.run(**TAGS).code == "bad-signature"


@pytest.fixture
def taken_over(world: World) -> World:
    """A node with the state of the former agent, whose server has what it knew."""
    with tarfile.open(FORMER) as tar:
        tar.extractall(world.folder, filter="data")
    world.trust((world.folder / "keyring").read_text(), line("grace", world.mallory))
    shutil.rmtree(world.source.folder / ".git")
    clone = str(world.state / "repository.git")
    world.source.git("init", "--quiet", "--initial-branch=main")
    world.source.git("fetch", "--quiet", clone, "refs/temper/tags/*:refs/tags/*")
    world.source.git("reset", "--quiet", "--hard", "fleet-2")
    return world


def test_the_state_of_the_former_agent_is_taken_over(taken_over: World) -> None:
    before = taken_over.accepted
    (taken_over.state / "deploy_key").write_text("of the operator")
    result = taken_over.run(**TAGS)
    assert (result.state, result.commit, result.ref) == ("checked", before["commit"], "fleet-2")
    assert result.delivery_problem == "the server is away"
    kept = {"accepted.json", "repository.git", "result.json", "checkout", "scratch", "deploy_key"}
    assert {path.name for path in taken_over.state.iterdir()} == kept
    assert taken_over.accepted == before
    commit = taken_over.source.commit(None)
    taken_over.source.tag("fleet-3", taken_over.mallory)
    assert taken_over.run(**TAGS).commit == commit


def test_the_former_agents_commit_is_judged_again_without_a_server(taken_over: World) -> None:
    taken_over.away()
    result = taken_over.run(**TAGS)
    assert (result.state, result.code, result.ref, result.signer) == (
        "checked",
        "not-fetched",
        "fleet-2",
        "ada",
    )


def former_tag_moved(world: World) -> None:
    world.source.commit(None)
    world.source.tag("fleet-2", world.mallory, "--force")


def former_tag_gone(world: World) -> None:
    world.source.git("tag", "--delete", "fleet-2")


@pytest.mark.parametrize(("code", "attack"), [("tag-moved", former_tag_moved), ("older", former_tag_gone)])
def test_what_the_former_agent_knew_still_refuses(
    taken_over: World, code: str, attack: Callable[[World], None]
) -> None:
    require_refused(taken_over, code, attack, **TAGS)
