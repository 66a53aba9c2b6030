"""A repository as an operator keeps it: real git, real keys."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pull.configuration import Configuration


def key(folder: Path, name: str) -> Path:
    """A new SSH key."""
    path = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def line(name: str, path: Path, options: str = "") -> str:
    """The line of a keyring, as the role writes it."""
    words = path.with_suffix(".pub").read_text().split()[:2]
    return f'{name} namespaces="git"{options} {" ".join(words)}\n'


@dataclass(frozen=True)
class Origin:
    """The operator's work tree, from which nodes fetch."""

    folder: Path
    home: Path

    def git(self, *arguments: str, **settings: str) -> str:
        """A git command of the operator's."""
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "ada",
            "GIT_AUTHOR_EMAIL": "ada@example.org",
            "GIT_COMMITTER_NAME": "ada",
            "GIT_COMMITTER_EMAIL": "ada@example.org",
        }
        command = ["git", "-C", str(self.folder), *options, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def signing(self, signer: Path | None) -> list[str]:
        """The options that sign with a key."""
        return ["-c", "gpg.format=ssh", "-c", f"user.signingKey={signer}"] if signer else []

    def commit(self, signer: Path | None, name: str = "file", text: str = "") -> str:
        """A new commit with one changed file, signed or not; returns its name."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or f"{len(list(self.folder.rglob('*')))} {os.urandom(8).hex()}\n")
        self.git("add", "--all")
        sign = ["--gpg-sign"] if signer else ["--no-gpg-sign"]
        self.git(*self.signing(signer), "commit", "--quiet", *sign, "--message", name)
        return self.git("rev-parse", "HEAD")

    def tag(self, name: str, signer: Path | None, *options: str) -> None:
        """A new annotated tag on HEAD, signed or not."""
        sign = ["--sign"] if signer else ["--annotate", "--no-sign"]
        self.git(*self.signing(signer), "tag", *sign, "--message", name, *options, name)


def origin(folder: Path) -> Origin:
    """A new repository without commits."""
    made = Origin(folder / "origin", folder)
    made.folder.mkdir()
    made.git("init", "--quiet", "--initial-branch=main")
    return made


def configuration(folder: Path, repository: Origin, **values: object) -> Configuration:
    """What a node that pulls from it is configured with."""
    given: dict[str, object] = {
        "node": "gpu01",
        "url": f"file://{repository.folder}",
        "branch": "main",
        "tags": "",
        "inventory": "inventory/mine",
        "repair": (),
        "python": "",
        "interval_s": 1800,
        "keyring": str(folder / "keyring"),
        "known_hosts": "/dev/null",
        "ca_file": "",
        "ssh_key": "",
        "report_to": "",
        "report_ca_file": "",
        "report_ssh_key": "",
        "report_token_file": "",
    }
    return Configuration(**{**given, **values})  # type: ignore[arg-type]  # tests give what the fields are
