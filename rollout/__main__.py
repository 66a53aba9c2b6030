"""Rolling upgrades of the driver.

python3 -m rollout plan -i inventory/mine --stack NEW     waves, order, times, and why nodes are left out;
                                                          changes nothing

The exit status is 0, 1 where no node would be upgraded, and 2 where the command cannot be carried out.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from console.nodes import printable
from rollout.fleet import FleetError, candidates, groups_of, preflight, proposal
from rollout.forecast import plan_text
from rollout.policy import Policy, PolicyError, load

USAGE_ERROR = 2


def plan(inventory: str, stack: str, policy: Policy, limit: str) -> int:
    """Print what a roll-out would do. Raises FleetError."""
    groups = groups_of(inventory)
    now = datetime.now(UTC)
    found = candidates(preflight(inventory, stack, limit), groups)
    print(printable(plan_text(proposal(found, policy, stack, now), found, now)))
    return int(all(node.problems for node in found))


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m rollout", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    planned = commands.add_parser("plan", help="say what a roll-out would do; changes nothing")
    planned.add_argument("-i", "--inventory", required=True, help="inventory of Ansible")
    planned.add_argument("--stack", required=True, help="stack of data/stacks.yml to upgrade to")
    planned.add_argument("--policy", type=Path, help="policy in YAML; without one, the defaults hold")
    planned.add_argument("--limit", default="", help="only these nodes, as Ansible takes it")
    given = parser.parse_args(arguments)
    try:
        policy = load(given.policy) if given.policy else Policy()
        return plan(str(Path(given.inventory).resolve()), given.stack, policy, given.limit)
    except (FleetError, PolicyError) as error:
        print(printable(str(error)), file=sys.stderr)
        return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
