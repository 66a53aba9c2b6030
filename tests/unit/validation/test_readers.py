"""What programs print may be cut off, damaged or of something else: every reader has one error for that."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ansible.module_utils.temper.driver import gpu_settings as settings_of_module
from ansible.module_utils.temper.driver.smi import SettingsError

from temper.rollout import gpu_settings
from tests.unit.each import each
from tests.unit.validation.samples import gpu_xml, smi_xml
from tests.unit.validation.test_counters import BLACKWELL, HOPPER
from tests.unit.validation.test_drives import LOG
from validation.probes import counters, drives, gpu_samples, kernel_log, machine, nvidia_smi, nvlink
from validation.probes.reading import MOST_CHARACTERS, ReadingError
from validation.processes.command import Done

MUTATIONS = 150
MOST_OF_A_SENTENCE = MOST_CHARACTERS + 200
#: What stands in the place of something: more digits than Python takes, brackets without end, no number.
FOREIGN = ("", "9" * 5000, "-1", "1e999", "NaN", "[" * 100_000, "\x00", "\ufffd\r\u2028", "<", "\n", ",", "²")
REPORT = smi_xml(gpu_xml(), gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2"), attached=2)
LINKS = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
SAMPLES = "0, 1980, 512.30, 61, 5, 16, 0x0, P0, 0\n1, [N/A], 512.30, 61, 5, 16, 0x0, P0, 0\n"
KERNEL = (
    "[   12.3] NVRM: Xid (PCI:0000:1b:00): 145, pid=7, name=a, RLW_RXPIPE Fatal XC0 i0 Link 13 (0x0 0x8)\n"
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
)
CSV = ", ".join(("0", "GPU-1", "NVIDIA H100", "Enabled", *["1980"] * 11, "0x0", "Default", *["Enabled"] * 4))


def of_drive(text: str) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drives, "run", lambda *_: Done(0, text, ""))
        return drives._drive("nvme0", "model", drives._ask(["nvme"]))


READERS: dict[str, tuple[str, Callable[[str], Any], type[ValueError]]] = {
    "nvidia-smi -q -x": (REPORT, nvidia_smi.parse, ReadingError),
    "nvidia-smi -q -x, settings": (REPORT, gpu_settings.parse, ReadingError),
    "nvidia-smi nvlink --status": (LINKS, nvlink.parse, ReadingError),
    "nvidia-smi nvlink --errorcounters": (HOPPER + BLACKWELL, counters.parse, ReadingError),
    "nvidia-smi --query-gpu": (SAMPLES, gpu_samples.parse_samples, ReadingError),
    "nvidia-smi --query-gpu, settings": (
        CSV,
        settings_of_module.parse_gpus,
        SettingsError,
    ),
    "the kernel log": (KERNEL, lambda text: kernel_log.events(text.split("\n")), ReadingError),
    "nvme smart-log": (json.dumps(LOG), of_drive, ReadingError),
    "a list of CPUs": ("0-3,8,10-11", machine.cpu_list, ReadingError),
}


def mutations(text: str) -> Iterator[str]:
    """The text cut off, without a piece, with a piece twice, with something foreign in a piece's place."""
    chance = random.Random(7)
    yield from FOREIGN
    for number in range(MUTATIONS):
        start = chance.randrange(len(text))
        stop = min(len(text), start + chance.randrange(1, 40))
        yield (
            text[:start],
            text[:start] + text[stop:],
            text[:stop] + text[start:],
            text[:start] + chance.choice(FOREIGN) + text[stop:],
        )[number % 4]


@each(*READERS)
def test_a_reader_has_one_error_for_what_it_cannot_read(name: str) -> None:
    text, read, failure = READERS[name]
    assert read(text)
    for mutated in mutations(text):
        try:
            read(mutated)
        except failure as error:
            said = str(error)
            assert len(said) < MOST_OF_A_SENTENCE
            assert said.isprintable()
