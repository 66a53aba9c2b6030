"""`temper explain NUMBER --gpu`: whether somebody's number is right, by the table that also judges nodes."""

from __future__ import annotations

import pytest

from temper.cli.judging import main
from temper.judge.numbers import KINDS, explained, model_named, models, references
from validation.model.contract import UsageError

CASES = [
    ("bf16_tflops=640", "H200 SXM", ["105% of 612", "65% of 989", "Right for a healthy GPU"]),
    ("fp16_tflops=500", "h100_sxm_80gb", ["84% of 592", "Too low"]),
    ("bf16_tflops=2000", "NVIDIA H200 SXM", ["More than the chip can do"]),
    ("busbw_gb_s", "H200 SXM", ["431 GB/s, asked for at least (8 GPUs", "363 GB/s, measured (4 GPUs"]),
    ("busbw_gb_s=363", "H200 SXM", ["100% of 363 GB/s, measured (4 GPUs", "No floor for any conditions"]),
    (
        "memory_copy_gb_s=4100",
        "h200-sxm",
        ["102% of 4010", "85% of 4800", "about as much as the lowest"],
    ),
    ("memory_copy_gb_s=3900", "h200-sxm", ["253 GPUs", "up to 38 %", "more than 5% below the lowest of 4"]),
    ("bf16_tflops", "h200-sxm", ["lowest of 4 GPUs, the highest 685"]),
    ("bf16_peak_tflops=900", "h200-sxm", ["91% of 989"]),
    # Of the slot, for a model of which nobody published its own.
    ("h2d_pinned_gb_s=50", "A100 PCIe 80 GB", ["PCIe 4 x16", "More than the chip can do"]),
    ("d2h_pinned_gb_s=20", "L40S", ["95% of 21", "Too low"]),
    # A superchip has no slot.
    ("d2h_pinned_gb_s=300", "gh200_96gb", ["No floor, no measurement and no peak of it is known"]),
    ("fp64_tflops=18", "A100 SXM 80 GB", ["95% of 18.9", "92% of 19.5"]),
    ("fp4_tflops=5000", "B200 SXM", ["56% of 9000"]),
    ("fp4_tflops=5000", "H100 SXM", ["No floor, no measurement and no peak of it is known"]),
    ("all_gather_busbw_gb_s=300", "H100 SXM", ["32 GPUs, 4 nodes", "46.0 to 48.0 GB/s for each NIC of 400"]),
    ("all_to_all_busbw_gb_s", "H200 SXM", ["no more than one NIC's", "No floor, no measurement"]),
    ("bf16_alone_tflops=100", "H100 SXM", ["bf16 alone of", "Too low"]),
    ("bf16_tflops=0", "H100 SXM", ["Too low"]),
    # What nobody has checked judges nothing.
    ("bf16_tflops=900", "H100 NVL", ["not verified", "No floor for any conditions"]),
]


def test_a_number_is_held_against_all_that_is_known_of_it() -> None:
    wrong = []
    for number, gpu, words in CASES:
        said = explained(number, gpu)
        wrong += [(number, gpu, word, said) for word in words if word not in said]
        # Who says so is named in full.
        if "No floor, no measurement" not in said:
            assert said.partition("Sources:\n")[2].count("\n") >= 1
    assert not wrong


def test_every_number_of_every_model_can_be_asked_for() -> None:
    for key, row in models().items():
        assert model_named(key)[0] == key
        for one in references(row):
            assert KINDS[one.kind] in explained(one.name, key), (key, one)


@pytest.mark.parametrize(
    ("number", "gpu", "word"),
    [
        ("bf16_tflops=fast", "H200 SXM", "did you mean bf16_tflops=VALUE"),
        ("blah", "T4", "expected one of all_gather_busbw_gb_s"),
        ("memory_local_gb_s=100", "H200 SXM", "expected one of"),
        ("bf16_tflops", "H100", "means 3 models; name one of: H100 PCIe"),
        ("bf16_tflops", "Voodoo", "no model is called Voodoo"),
    ],
)
def test_what_cannot_be_answered_says_what_can(number: str, gpu: str, word: str) -> None:
    with pytest.raises(UsageError) as refused:
        explained(number, gpu)
    assert word in str(refused.value)


def test_the_command_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "bf16_tflops=640", "--gpu", "H200 SXM"]) == 0
    assert "Right for a healthy GPU" in capsys.readouterr().out
    assert main(["explain", "--gpu", "H200 SXM"]) == 0
    listed = capsys.readouterr().out
    assert "\nfp8 best\n" in listed
    assert "temper_h200: " in listed.partition("Sources:")[2]
    assert main(["explain", "--gpu", "M60"]) == 0
    assert capsys.readouterr().out == "No number is known of Tesla M60.\n"
    assert main(["explain", "--gpu", "H200 SXM", "--json"]) == 2
