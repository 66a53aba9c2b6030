"""Public keys are read and judged; private ones are never repeated."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from ansible.module_utils.temper.access.ssh_keys import parse_public_key, read_regular

from tests.unit.each import each


def generate(folder: Path, *arguments: str) -> Path:
    path = folder / "key"
    command = ["ssh-keygen", "-q", "-N", "", "-C", "ops@office", "-t", *arguments, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


@pytest.mark.component
@pytest.mark.parametrize(
    ("arguments", "family", "bits"),
    [(("ed25519",), "ed25519", None), (("ecdsa",), "ecdsa", None), (("rsa", "-b", "2048"), "rsa", 2048)],
)
def test_key_of_ssh_keygen_is_read(
    tmp_path: Path, arguments: tuple[str, ...], family: str, bits: int | None
) -> None:
    text = generate(tmp_path, *arguments).with_suffix(".pub").read_text()
    key = parse_public_key(text)
    assert (key.family, key.bits, key.comment, key.line) == (family, bits, "ops@office", text.strip())


@pytest.mark.component
def test_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    path = generate(tmp_path, "ed25519").with_suffix(".pub")
    listed = subprocess.run(["ssh-keygen", "-lf", path], check=True, capture_output=True, text=True).stdout
    assert parse_public_key(path.read_text()).summary == f"{listed.split()[1]} (ssh-ed25519, ops@office)"


@pytest.mark.component
def test_options_with_blanks_in_quotes_stay(tmp_path: Path) -> None:
    text = generate(tmp_path, "ed25519").with_suffix(".pub").read_text().strip()
    key = parse_public_key(f'command="echo \\"a b\\"",no-pty {text}')
    assert key.options == 'command="echo \\"a b\\"",no-pty'
    assert key.kind == "ssh-ed25519"


@each(
    ("", "expected a public key"),
    ("hunter2", "expected a public key"),
    ("ssh-dss AAAA", "DSA key"),
    ("ssh-ed25519-cert-v01@openssh.com AAAA", "certificate"),
    ("ssh-ed25519 AAAA", "cut off or damaged"),
    ("ssh-ed25519 !!!!", "cut off or damaged"),
    ("ssh-ed25519", "cut off or damaged"),
    ("ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIMP/JIfnXzGl0FmT5rCEOw2Y8sIp9EyInaNs4E2UMwMO", "cut off or damaged"),
    ("one\ntwo", "found several lines"),
    ("~/.ssh/id_ed25519.pub", "says where a key is"),
    ("files/ada.pub", "says where a key is"),
    ("https://github.com/ada.keys", "says where a key is"),
)
def test_what_is_no_key_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_public_key(text)


@pytest.mark.component
def test_short_rsa_key_is_refused(tmp_path: Path) -> None:
    text = generate(tmp_path, "rsa", "-b", "1024").with_suffix(".pub").read_text()
    with pytest.raises(ValueError, match="RSA key of 1024 bits, expected at least 2048"):
        parse_public_key(text)


@pytest.mark.component
@pytest.mark.parametrize("arguments", [("ed25519",), ("rsa", "-m", "PEM")])
def test_private_key_is_refused_without_repeating_it(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    text = generate(tmp_path, *arguments).read_text()
    for pasted in (text, text.replace("\n", " "), "".join(text.splitlines()[1:-1])):
        with pytest.raises(ValueError, match=r"private key|several lines|expected a public key") as refusal:
            parse_public_key(pasted)
        assert pasted.split()[-1] not in str(refusal.value)


@each(
    'command="a ' + '\\"' * 4000 + "9",
    'command="' + '""' * 4000 + " ssh-x",
    '"' * 8001,
    "\\" * 8000,
    'a="b",' * 2000,
    "ssh-ed25519 " + "A" * 16000,
    "x" * (1 << 20),
    "\0" * (1 << 20),
)
def test_a_line_costs_time_in_proportion_to_its_length(line: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=r"expected|damaged"):
        parse_public_key(line)
    assert time.process_time() - started < 0.5


def test_a_pipe_in_the_place_of_keys_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys")
    assert read_regular(tmp_path / "keys") is None


@each("\x1b]0;owned\x07", "a\rb", "a\u202eb", "a\ud800")
def test_a_comment_that_a_terminal_would_act_on_is_refused(comment: str) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMP/JIfnXzGl0FmT5rCEOw2Y8sIp9EyInaNs4E2UMwMO"
    with pytest.raises(ValueError, match="control character"):
        parse_public_key(f"{key} {comment}b")
