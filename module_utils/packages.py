"""Read and change Debian packages: what node_facts reports and package_set changes.

Only dpkg-query, apt-get and apt-mark are used: their command lines are stable over releases, python3-apt's
API is not.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

# The names that belong to a GPU stack, whoever packaged them.
FAMILY = re.compile(
    r"^(nvidia-|libnvidia-|libnvsdm|libcuda1$|libcudnn|cudnn|libnccl|cuda-|datacenter-gpu-manager|nvlsm$"
    r"|firmware-nvidia)"
)


@dataclass(frozen=True)
class Package:
    """One package known to dpkg.

    `want` and `status` are dpkg's own words: install or hold; installed, half-configured, config-files ...
    """

    name: str
    version: str
    want: str
    status: str

    @property
    def installed(self) -> bool:
        """Unpacked and configured."""
        return self.status == "installed"

    @property
    def held(self) -> bool:
        """Whether apt leaves its version alone."""
        return self.want == "hold"

    @property
    def broken(self) -> bool:
        """Whether an installation or a removal stopped half-way."""
        return self.status not in ("installed", "config-files", "not-installed")


def parse_dpkg(text: str) -> dict[str, Package]:
    """Parse `dpkg-query -W -f QUERY_FORMAT`; of a multi-arch package the installed architecture wins."""
    packages: dict[str, Package] = {}
    for line in text.splitlines():
        name, version, want, status = line.split("\t")
        package = Package(name, version, want, status)
        if name not in packages or package.installed:
            packages[name] = package
    return packages


QUERY_FORMAT = "${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n"


def query() -> dict[str, Package]:
    """All packages dpkg knows of. Raises OSError where there is no dpkg, CalledProcessError when it fails."""
    command = ["dpkg-query", "-W", "-f", QUERY_FORMAT]
    return parse_dpkg(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
