"""nvidia_stack_graphics: the driver's libraries for graphics, and who is refused."""

from typing import Any

from ansible.module_utils.temper.packaging.packages import FAMILY

from temper.plan.role_variables import role_variables
from tests.unit.each import each
from tests.unit.planning_nodes import assert_says, node, plan, system
from tests.unit.tables import specs

GRAPHICS = ("nvidia-driver-libs", "libgles-nvidia2", "nvidia-vulkan-icd")
SOURCE = {
    "uri": "http://mirror.example/debian/",
    "suite": "bookworm",
    "components": ["main"],
    "signed_by": "",
}
DEBIAN: dict[str, Any] = node(apt_sources=[SOURCE])
KERNEL = {"release": "6.8.0-134-generic", "headers_present": True, "headers_installable": True}
NOBLE = system(
    "ubuntu", "24.04", kernel={**KERNEL, "image_packages": {"linux-image-6.8.0-134-generic": "6.8.0-134.1"}}
)


def test_debians_driver_brings_them_at_its_own_version() -> None:
    exact = "535.309.01-0+deb12u1"
    found = plan(
        DEBIAN, nvidia_stack_source="distro", nvidia_stack_graphics=True, nvidia_stack_distro_driver=exact
    )
    assert found["problems"] == []
    assert {found["packages"][name] for name in (*GRAPHICS, "nvidia-kernel-dkms")} == {exact}


@each("nvidia", "distro")
def test_without_it_there_are_none(source: str) -> None:
    found = plan(DEBIAN, nvidia_stack_source=source)
    assert found["problems"] == []
    assert not {name for name in found["packages"] if "vulkan" in name or "egl" in name or "-libs" in name}


def test_they_belong_to_the_driver_for_what_holds_and_upgrades_it() -> None:
    own = (*GRAPHICS, "nvidia-egl-icd", "libegl-nvidia0", "libglx-nvidia0", "libgl1-nvidia-glvnd-glx")
    shared = ("libgl1", "libglx0", "libegl-mesa0", "libvulkan1")
    assert [name for name in (*own, *shared) if FAMILY.match(name)] == list(own)


def test_where_no_table_has_their_names_the_node_is_refused() -> None:
    (problem,) = plan(NOBLE, nvidia_stack_source="distro", nvidia_stack_graphics=True)["problems"]
    assert_says(
        problem,
        "nvidia_stack_source: distro are in no table",
        "set nvidia_stack_source: nvidia, or nvidia_stack_graphics: false",
    )


@each(
    (DEBIAN, "r580-cuda13.0", {*GRAPHICS, "nvidia-egl-icd"}),
    (NOBLE, "r580-cuda13.0", {"libnvidia-gl-580"}),
    (NOBLE, "r595-cuda13.2", {"libnvidia-gl"}),
    (system("rhel", "9.6"), "r580-cuda13.0", {"nvidia-driver-libs"}),
)
def test_nvidias_repository_has_them_at_the_drivers_version(
    facts: dict[str, Any], stack: str, names: set[str]
) -> None:
    found = plan(facts, nvidia_stack_name=stack, nvidia_stack_graphics=True)
    assert found["problems"] == []
    assert {found["packages"][name] for name in names} == {found["driver"]["package_version"]}
    assert all(FAMILY.match(name) for name in names)


@each(
    ({"all": ["3g.40gb", "3g.40gb"]}, True),
    ({"all": ["1g.24gb+gfx", "1g.24gb"]}, False),
    ({"0": ["3g.40gb"]}, False),
    ({"all": "disabled"}, False),
    ({"all": ["3g.40gb"], "0": "disabled"}, False),  # GPU 0 is whole
    ({"all": ["3g.40gb"], "0": ["7g.80gb"]}, True),
    ({"all": ["3g.40gb"], "0": ["7g.80gb+gfx"]}, False),
)
def test_instances_that_cannot_draw_contradict_graphics(layout: dict[str, Any], refused: bool) -> None:
    given = {"gpu_settings_mig": layout, "nvidia_stack_graphics": True}
    problems = role_variables(given, specs())["problems"]
    assert bool(problems) == refused
    if refused:
        assert_says(problems[0], "3g.40gb", "nvidia_stack_graphics")
    assert role_variables({**given, "nvidia_stack_graphics": False}, specs())["problems"] == []
