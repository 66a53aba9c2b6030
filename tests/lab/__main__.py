"""The lab's command line: python3 -m tests.lab COMMAND."""

import argparse
import json
import os
import sys

from tests.lab import lab as labs
from tests.lab import node as machine
from tests.lab import requirements
from tests.lab.gpu_simulator.faults import FAULTS
from tests.lab.process import LabError, say
from tests.lab.settings import Lab, Node, wanted_nodes


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    # `su` without a login leaves root without the directories of its own tools.
    os.environ["PATH"] = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin"
    options = _parser().parse_args(arguments)
    try:
        _run(options, Lab.from_environment())
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted. Run it again to go on; `make lab-down` removes everything.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.lab",
        description="Real Debian nodes with simulated GPUs on this machine. LAB_NODES (2) says how many, "
        "LAB_NAME (temper) names the lab, TEMPER_LAB_CACHE moves its cache.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="make the nodes run; what runs already is left alone")
    up.add_argument(
        "--converged",
        action="store_true",
        help="start new nodes from what `keep` has in the cache, if anything",
    )
    commands.add_parser(
        "keep", help="switch the nodes off and keep what site.yml has made of them in the cache"
    )
    commands.add_parser("down", help="end the lab and leave nothing of it but the cache")
    commands.add_parser("check", help="say what this machine lacks, and do nothing")
    commands.add_parser("reset", help="throw away what the nodes have stored and boot them bare again")
    status = commands.add_parser("status", help="say which nodes run")
    status.add_argument("--json", action="store_true", help="for programs")
    shell = commands.add_parser(
        "shell", help="enter a node by the side door, without SSH, or run one command there"
    )
    shell.add_argument("node")
    shell.add_argument("shell_command", nargs=argparse.REMAINDER, metavar="COMMAND")
    reboot = commands.add_parser("reboot", help="reboot a node and wait until it is back")
    reboot.add_argument("node")
    fault = commands.add_parser("fault", help="switch a simulated fault on a node on or off")
    fault.add_argument("node")
    fault.add_argument("name", choices=sorted(FAULTS))
    fault.add_argument("state", choices=["on", "off"])
    return parser


def _run(options: argparse.Namespace, lab: Lab) -> None:
    if options.command != "check" and os.geteuid() != 0:
        raise LabError("The lab needs root; run it as root (sudo make ...).")
    match options.command:
        case "up":
            labs.up(lab, wanted_nodes(), as_converged=options.converged)
        case "keep":
            labs.keep(lab)
        case "down":
            labs.down(lab)
        case "check":
            requirements.check(lab, wanted_nodes())
            say("This machine has everything that the lab needs.")
        case "reset":
            labs.reset(lab, wanted_nodes())
        case "status":
            _print_status(lab, as_json=options.json)
        case "shell":
            _shell(_node(lab, options.node), options.shell_command)
        case "reboot":
            labs.reboot(_node(lab, options.node))
        case "fault":
            labs.set_fault(_node(lab, options.node), options.name, on=options.state == "on")


def _node(lab: Lab, name: str) -> Node:
    nodes = {node.name: node for node in labs.existing_nodes(lab)}
    if name not in nodes:
        known = ", ".join(nodes) or "none; start it with: make lab-up"
        raise LabError(f"Lab {lab.name} has no node {name!r}. Its nodes: {known}.")
    return nodes[name]


def _shell(node: Node, command: list[str]) -> None:
    """Become a shell, or one command, inside the node."""
    init = machine.leader(node)
    if init is None:
        raise LabError(f"{node.name} is off. Start it with: make lab-up")
    arguments = machine.side_door(init, command or ["bash", "--login"])
    os.execvp(arguments[0], arguments)  # noqa: S606 - no shell on purpose: arguments stay as they are


def _print_status(lab: Lab, *, as_json: bool) -> None:
    status = labs.status(lab)
    if as_json:
        print(json.dumps(status, indent=2))
        return
    if not status["nodes"]:
        print(f"Lab {lab.name} is down. Start it with: make lab-up")
        return
    print(f"Lab {lab.name} of {status['checkout']}, repositories at {status['repository_url']}")
    print(f"{'NODE':<7}{'STATE':<10}{'ADDRESS':<15}{'RELEASE':<10}{'PROFILE':<12}{'MEMORY':>9}{'DISK':>9}")
    for node in status["nodes"]:
        memory = "-" if node["memory_bytes"] is None else f"{node['memory_bytes'] / 2**20:.0f} MiB"
        disk = f"{node['disk_bytes'] / 2**20:.0f} MiB"
        print(
            f"{node['name']:<7}{node['state']:<10}{node['address']:<15}{node['release']:<10}{node['profile']:<12}"
            f"{memory:>9}{disk:>9}"
        )


if __name__ == "__main__":
    sys.exit(main())
