"""What `site.yml --check` leaves on a bare node: nothing."""

from testinfra.host import Host

# What a running system writes by itself, and what any login and any Ansible task leaves.
NOT_OURS = (
    "/home/ops/.ansible/",
    "/run/",
    "/tmp/",
    "/var/lib/systemd/",
    "/var/log/",
    "/var/tmp/",
)


def test_no_file_was_written_or_removed(host: Host) -> None:
    changed = host.check_output("find / -xdev -newercm /var/tmp/before-check-mode ! -type d").splitlines()
    assert [path for path in changed if not path.startswith(NOT_OURS)] == []
