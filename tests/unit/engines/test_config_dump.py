"""What engines print is read alike, however they print it."""

from ansible.module_utils.temper.engines.config_dump import below, read, strings

from tests.unit.each import each

CONTAINERD_1 = """\
disabled_plugins = ["cri"]
imports = []
version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    snapshotter = ""

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
      NoPivotRoot = false

    [[plugins."io.containerd.transfer.v1.local".unpack_config]]
      platform = "linux/amd64"

    [[plugins."io.containerd.transfer.v1.local".unpack_config]]
      platform = "linux/arm64"
"""
CRIO = """\
# The CRI-O configuration file.
[crio.runtime]

# A list of ulimits: "nofile=1024:2048"
default_ulimits = [
\t"stack=1:1",
\t# "no]thing",
\t"me[mlock=2:2",
]
default_runtime = "crun"
"""


def test_keys_stand_under_their_tables_and_zeros_are_left_out() -> None:
    runc = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes", "runc")
    unpack = ("plugins", "io.containerd.transfer.v1.local", "unpack_config")
    assert read(CONTAINERD_1) == {
        ("disabled_plugins",): '["cri"]',
        ("version",): "2",
        (*runc, "runtime_type"): "io.containerd.runc.v2",
        (*runc, "options", "SystemdCgroup"): "true",
        (*unpack, "#1", "platform"): "linux/amd64",
        (*unpack, "#2", "platform"): "linux/arm64",
    }


@each("['io.containerd.cri'.cni]", '["io.containerd.cri".cni]')
@each("'/usr/lib/cni'", '"/usr/lib/cni"')
def test_both_kinds_of_quotes_mean_the_same(value: str, line: str) -> None:
    assert read(f"{line}\nbin_dir = {value}\n") == {("io.containerd.cri", "cni", "bin_dir"): "/usr/lib/cni"}


def test_lists_may_have_several_lines() -> None:
    shown = below(read(CRIO), ("crio", "runtime"))
    assert strings(shown[("default_ulimits",)]) == ["stack=1:1", "me[mlock=2:2"]
    assert shown[("default_runtime",)] == "crun"
