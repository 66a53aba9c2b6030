"""What `ss` says of the ports that wait for packets."""

from ansible.module_utils.access.listeners import Listener, parse

OUTPUT = """\
udp UNCONN 0 0 0.0.0.0:111 0.0.0.0:* users:(("rpcbind",pid=1,fd=5),("systemd",pid=1,fd=9))
udp UNCONN 0 0 0.0.0.0:68 0.0.0.0:* users:(("dhclient",pid=7,fd=7))
udp UNCONN 0 0 127.0.0.53%lo:53 0.0.0.0:* users:(("resolved",pid=7,fd=7))
udp UNCONN 0 0 [::]:40000 [::]:* users:(("chronyd",pid=7,fd=7))
tcp LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=46,fd=3))
tcp LISTEN 0 128 [::]:22 [::]:* users:(("sshd",pid=46,fd=4))
tcp LISTEN 0 128 *:9400 *:*
tcp LISTEN 0 128 [::1]:631 [::]:* users:(("cupsd",pid=1,fd=5))
tcp LISTEN 0 128 [::ffff:127.0.0.1]:632 *:* users:(("cupsd",pid=1,fd=5))
"""


def test_services_are_found_once_and_clients_and_loopback_are_not() -> None:
    assert parse(OUTPUT, first_ephemeral=32768) == [
        Listener("tcp", 22, "sshd"),
        Listener("tcp", 9400, "unknown process"),
        Listener("udp", 111, "rpcbind"),
    ]
