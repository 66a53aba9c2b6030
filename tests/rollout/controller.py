"""A controller to be killed: the real engine, on nodes that are files in a folder.

    python3 -m tests.rollout.controller FOLDER

What a step does to a node is in its file before the step has ended, so that it outlives the controller. A
line is printed as each step begins, is half done, and ends.
"""

import asyncio
import json
import os
import random
import sys
from collections.abc import Collection
from pathlib import Path

from temper.rollout.engine import Engine, Ticket
from temper.rollout.model import Course, Observation, Outcome, Step, StepResult
from temper.rollout.store import RolloutStore

STORE = "rollout.sqlite"
BARE = {"drained": False, "installed": "old", "loaded": "old", "proven": "", "fence": 0}


def read(folder: Path, name: str) -> dict[str, object]:
    """What is true of a node."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else dict(BARE)


def tell(what: str, name: str, step: Step, fence: int) -> None:
    """Print a whole line in one write, which a kill cannot cut."""
    os.write(sys.stdout.fileno(), f"{what} {name} {step} {fence}\n".encode())


class Files:
    """An executor whose nodes are files. One of them is always slower with the new driver."""

    def __init__(self, folder: Path, slow: str) -> None:
        self.folder, self.slow = folder, slow

    def _write(self, name: str, fence: int, **changes: object) -> None:
        node = read(self.folder, name)
        assert int(str(node["fence"])) <= fence, f"{name} is told what to do by a stale controller"
        new = self.folder / f"{name}.new"
        new.write_text(json.dumps({**node, **changes, "fence": fence}))
        os.replace(new, self.folder / f"{name}.json")  # noqa: PTH105 - it is the rename that counts

    async def perform(self, ticket: Ticket) -> StepResult:
        name, step, fence = ticket.node.name, ticket.step, ticket.fence
        target = "old" if ticket.record.course is Course.BACK else "new"
        tell("begin", name, step, fence)
        self._write(name, fence)
        await asyncio.sleep(random.uniform(0, 0.005))
        node = read(self.folder, name)
        if step is Step.DRAIN:
            self._write(name, fence, drained=True)
        elif step in (Step.INSTALL, Step.UNDO):
            self._write(name, fence, installed="partial", proven="")
            tell("half", name, step, fence)
            await asyncio.sleep(random.uniform(0, 0.005))
            self._write(name, fence, installed=target)
        elif step is Step.REBOOT:
            self._write(name, fence, loaded=node["installed"])
        elif step is Step.PROVE:
            if name == self.slow and target == "new":
                return StepResult(Outcome.FAILED, "6 % slower")
            self._write(name, fence, proven=node["loaded"])
        elif step in (Step.RETURN, Step.RELEASE):
            self._write(name, fence, drained=False)
        tell("end", name, step, fence)
        return StepResult(Outcome.DONE)

    async def observe(self, nodes: Collection[str]) -> Observation:
        """Nobody else does anything."""
        return Observation()


def main(folder: Path, slow: str) -> int:
    """Go on with roll-out 1 of the folder."""
    ending = asyncio.run(Engine(RolloutStore(folder / STORE), Files(folder, slow)).run(1))
    return ending.exit_status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
