"""The simulated `nvidia-ctk runtime configure` writes what the real one of version 1.20.0 has written."""

import runpy
from pathlib import Path

from tests.unit.each import each
from tests.unit.engines.stand_ins import SIMULATOR

CONFIG = """\
imports = ["/etc/site/*.toml"]
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
"""
# Recorded from the real program, with --cdi.enabled --set-as-default.
REWRITTEN = """\
imports = ["/etc/site/*.toml", "@/conf.d/*.toml"]
version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]

    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"

  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
"""
CONTAINERD = """\
version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]
    enable_cdi = true

    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "nvidia"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
          privileged_without_host_devices = false
          runtime_engine = ""
          runtime_root = ""
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
            BinaryName = "/usr/bin/nvidia-container-runtime"
"""
CRIO_CONFIG = """\
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
allowed_annotations = ["a", "b"]
"""
CRIO = """\

[crio]

  [crio.runtime]
    default_runtime = "nvidia"

    [crio.runtime.runtimes]

      [crio.runtime.runtimes.nvidia]
        allowed_annotations = ["a", "b"]
        runtime_path = "/usr/bin/nvidia-container-runtime"
        runtime_type = "oci"
"""


@each(("containerd", CONFIG, REWRITTEN, CONTAINERD), ("crio", CRIO_CONFIG, CRIO_CONFIG, CRIO))
def test_it_writes_what_the_real_one_has_written(
    engine: str, config: str, rewritten: str, drop_in: str, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(config)
    target = tmp_path / "conf.d/99-nvidia.toml"
    arguments = [f"--runtime={engine}", f"--config={tmp_path}/config.toml", f"--drop-in-config={target}"]
    main = runpy.run_path(str(SIMULATOR / "nvidia_ctk_configure.py"))["main"]
    main([*arguments, "--set-as-default", *(["--cdi.enabled"] if engine == "containerd" else [])])
    assert target.read_text() == drop_in
    assert (tmp_path / "config.toml").read_text() == rewritten.replace("@", str(tmp_path))
