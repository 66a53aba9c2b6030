"""Why a kernel module did not build, from the compiler's own log."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

TREE = Path("/var/lib/dkms")
# Removing the package removes the build directory, so the log is kept here.
KEPT_LOGS = Path("/var/log/temper")
LOG_NAMED = re.compile(r"/var/lib/dkms/(?P<name>[^/\s]+)/(?P<version>[^/\s]+)/\S*make\.log")
COMPILER_ERROR = re.compile(r"(?:^|[\s:])(?:fatal )?error:|undefined!|undefined reference|^ERROR: ")
MAKE_ERROR = re.compile(r"\*\*\*|^Error! |: not found$")
BUILD_FAILED = re.compile(
    r"Bad return status for module build|bad exit status: 10|dkms autoinstall on .* failed"
)
ERROR_LINES = 3


def failures(output: str, tree: Path | None = None) -> list[str]:
    """Return a sentence for each module whose build failed, given what dpkg and dkms printed.

    The logs are copied to KEPT_LOGS: what failed to build is usually removed next.
    """
    tree = tree or TREE
    if not BUILD_FAILED.search(output) and not LOG_NAMED.search(output):
        return []
    named = {(match["name"], match["version"]) for match in LOG_NAMED.finditer(output)}
    logs = sorted(
        log
        for pattern in ("*/*/build/make.log", "*/*/*/*/log/make.log")
        for log in tree.glob(pattern)
        if not named or log.relative_to(tree).parts[:2] in named
    )
    sentences: dict[tuple[str, ...], str] = {}
    for log in logs:
        module = log.relative_to(tree).parts[:2]
        reason = compiler_errors(log.read_text(encoding="utf-8", errors="replace"))
        # The log of a build that went well lies there too, for another kernel.
        if not reason or module in sentences:
            continue
        kept = KEPT_LOGS / f"dkms-{'-'.join(module)}.log"
        KEPT_LOGS.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, kept)
        sentences[module] = (
            f"DKMS module {'/'.join(module)} does not build{kernel_of(output)}: {' | '.join(reason)} "
            f"(the whole log is kept as {kept})"
        )
    return list(sentences.values())


def kernel_of(output: str) -> str:
    """` for kernel 6.12...` where dkms named it."""
    match = re.search(r"module build on kernel: (\S+)", output) or re.search(
        r"dkms autoinstall on (\S+?)/\S+ failed", output
    )
    return f" for kernel {match[1]}" if match else ""


def compiler_errors(log: str) -> list[str]:
    """Return the lines of a make.log that say why it failed: the compiler's, else make's."""
    lines = [" ".join(line.split()) for line in log.splitlines()]
    for telling in (COMPILER_ERROR, MAKE_ERROR):
        found = [line for line in lines if telling.search(line)]
        if found:
            return list(dict.fromkeys(found))[:ERROR_LINES]
    return []
