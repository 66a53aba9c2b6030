"""What a node says of its own ways in, by a real sshd; and the controller takes what it says."""

import socket
from contextlib import closing
from pathlib import Path

import pytest
from ansible.module_utils.temper.access.self_report import self_report

from temper.compliance.outside.claims import read_claims
from tests.unit.executables import executable
from tests.unit.harden.real_sshd import SiteFiles

pytestmark = pytest.mark.component


def test_node_says_what_its_sshd_and_its_kernel_say(
    site: SiteFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = executable(tmp_path / "bin/sshd", f'exec {site.program} -f {site.main} "$@"')
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    site.says(
        "AuthenticationMethods publickey\n"
        "Match User alice\n  AuthenticationMethods password\n"
        'Match User "CORP\\\\svc $"\n  AuthenticationMethods password\n'
        "Match User [x\n  AuthenticationMethods password\n"
    )
    with closing(socket.create_server(("", 0))) as listener:
        said = self_report()
        assert listener.getsockname()[1] in said["listening"]
    claims = read_claims(said)
    key = (tmp_path / "host_key.pub").read_text().rpartition(" ")[0]
    assert (claims.methods, claims.host_keys) == ("publickey", (key,))
    # A name of another form costs only itself.
    assert set(claims.accounts) == {"alice", "CORP\\svc $"}
