"""Which driver, CUDA, cuDNN and kernel modules work on which GPU: the rules of data/nvidia_compatibility.yml.

Each sentence names the rule and what was found; planning/choice.py adds the remedy, a stack that fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planning.versions import branch, parts, version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from planning.model import Facts, Request

MONTHS_OF_NOTICE = 2
# What a GPU that no table knows is taken for where its id is older than Turing's.
OLD_ARCHITECTURE = "volta"


def ruled_gpus(request: Request) -> list[dict[str, Any]]:
    """All GPUs that a rule is known for: those of the tables, and unknown ones too old for open modules."""
    first = request.tables["nvidia_kernel_modules"]["first_id_with_open_modules"]["pci_id"]
    old = [device_id for device_id in dict.fromkeys(request.unknown_gpus) if device_id < first]
    return request.gpus + [
        {"model": None, "name": f"GPU 10de:{device_id}", "architecture": OLD_ARCHITECTURE, "count": 1}
        for device_id in old
    ]


def has_new_unknown(request: Request) -> bool:
    """Whether there is a GPU that no table knows and that is no old one."""
    first = request.tables["nvidia_kernel_modules"]["first_id_with_open_modules"]["pci_id"]
    return any(device_id >= first for device_id in request.unknown_gpus)


def gpu_problems(name: str, stack: Facts, gpu: Mapping[str, Any], tables: Facts) -> Iterator[str]:
    """Why this stack cannot drive this GPU."""
    rule = tables["nvidia_architectures"][gpu["architecture"]]
    who = f"{gpu['name']} ({gpu['architecture']})"
    wanted, cuda = branch(stack["driver"]), stack["cuda"]
    if rule["last_branch"] and wanted > rule["last_branch"]:
        yield f"{who} needs driver branch {rule['last_branch']} or older; stack {name} has {wanted}"
    elif rule["first_branch"] and wanted < rule["first_branch"]:
        yield f"{who} needs driver branch {rule['first_branch']} or newer; stack {name} has {wanted}"
    elif rule["last_cuda"] and version(cuda) > version(rule["last_cuda"]):
        yield f"{who} works with CUDA {rule['last_cuda']} or older; stack {name} has {cuda}"
    elif rule["first_cuda"] and version(cuda) < version(rule["first_cuda"]):
        yield f"{who} needs CUDA {rule['first_cuda']} or newer; stack {name} has {cuda}"
    elif rule["last_cudnn"] and parts(stack["cudnn_package"], 3) > version(rule["last_cudnn"]):
        yield (
            f"{who} works with cuDNN {rule['last_cudnn']} or older; stack {name} has {stack['cudnn_package']}"
        )


def own_problems(name: str, stack: Facts, tables: Facts) -> Iterator[str]:
    """What in a stack does not fit together, whatever it is to run on."""
    cuda, driver = stack["cuda"], stack["driver"]
    major = cuda.split(".")[0]
    minimum = tables["nvidia_cuda_minimum_drivers"].get(major)
    if not minimum or str(branch(driver)) not in tables["nvidia_driver_branches"]:
        unknown = f"CUDA {cuda}" if not minimum else f"driver branch {branch(driver)}"
        yield f"stack {name}: {unknown} is in no table of data/nvidia_compatibility.yml"
        return
    if version(driver) < version(minimum["driver"]):
        yield f"CUDA {cuda} starts on driver {minimum['driver']} or newer; stack {name} has {driver}"
    cudnn = tables["nvidia_cudnn_cuda"].get(major)
    found = parts(stack["cudnn_package"], 3)
    if cudnn and not version(cudnn["first"]) <= found <= (version(cudnn["last"]) if cudnn["last"] else found):
        yield (
            f"there is no cuDNN {stack['cudnn_package']} for CUDA {major} "
            f"({cudnn['first']} to {cudnn['last'] or 'the newest'}); see stack {name}"
        )


def repository_problems(name: str, stack: Facts, request: Request) -> Iterator[str]:
    """What NVIDIA's own repository of this release does not hold. A mirror may hold more: apt is asked."""
    first = request.system.row["first_branch"]
    if first and branch(stack["driver"]) < first and from_nvidia(request):
        yield (
            f"NVIDIA's repository for {request.system.distribution} begins with driver branch {first}; "
            f"stack {name} has {branch(stack['driver'])}"
        )


def from_nvidia(request: Request) -> bool:
    """Whether the packages come from NVIDIA's own address."""
    url = str(request.values["nvidia_stack_cuda_repository_url"])
    return url.rstrip("/") == str(request.tables["nvidia_repository"]["url"])


def fabric_problems(name: str, stack: Facts, request: Request) -> Iterator[str]:
    """NVLink 5 switches need a driver that knows them."""
    minimum = request.tables["nvidia_fabric"]["nvlink5"]["minimum_driver"]
    if request.fabric == "nvlink5" and version(stack["driver"]) < version(minimum):
        yield f"NVLink 5 switches need driver {minimum} or newer; stack {name} has {stack['driver']}"


def stack_problems(name: str, stack: Facts, request: Request) -> list[str]:
    """Every rule that this stack breaks on this node, without what kernel modules need."""
    found = list(own_problems(name, stack, request.tables))
    for gpu in ruled_gpus(request):
        found += gpu_problems(name, stack, gpu, request.tables)
    return [*found, *repository_problems(name, stack, request), *fabric_problems(name, stack, request)]


def module_need(gpu: Mapping[str, Any], tables: Facts) -> str:
    """What kernel modules a GPU needs: `required`, `recommended`, `supported` or `impossible` open ones."""
    rule = tables["nvidia_kernel_modules"]["open_required_form_factor"]["form_factor"]
    if gpu["model"] and tables["models"][gpu["model"]].get("form_factor") == rule:
        return "required"
    return str(tables["nvidia_architectures"][gpu["architecture"]]["open_modules"])


def kernel_modules(request: Request, driver: str) -> tuple[str, list[str]]:
    """The flavour of the kernel modules, `open` or `proprietary`, and why the wish cannot be met."""
    tables, wish = request.tables, request.values["nvidia_stack_kernel_modules"]
    needs = {module_need(gpu, tables): gpu["name"] for gpu in ruled_gpus(request)}
    if "required" in needs and "impossible" in needs:
        return "open", [
            f"{needs['required']} works only with open kernel modules, {needs['impossible']} only with "
            "proprietary ones: one node cannot drive both; move one of them to another node"
        ]
    flavour = wish
    if wish == "auto":
        flavour = "proprietary" if "impossible" in needs else "open"
    problems = []
    if flavour == "open" and "impossible" in needs:
        problems.append(
            f"{needs['impossible']} does not work with open kernel modules; "
            "set nvidia_stack_kernel_modules: auto"
        )
    if flavour == "proprietary" and "required" in needs:
        problems.append(
            f"{needs['required']} works only with open kernel modules; set nvidia_stack_kernel_modules: auto"
        )
    rules = tables["nvidia_kernel_modules"]
    if flavour == "open" and version(driver) < version(rules["open_minimum_driver"]["driver"]):
        problems.append(
            f"open kernel modules of driver {driver} do not compile on current kernels; "
            f"use a stack with driver {rules['open_minimum_driver']['driver']} or newer"
        )
    if flavour == "proprietary" and branch(driver) > rules["proprietary_last_branch"]["branch"]:
        problems.append(
            f"driver branch {branch(driver)} has no proprietary kernel modules; "
            "set nvidia_stack_kernel_modules: auto"
        )
    return flavour, problems


def stack_warnings(name: str, stack: Facts, request: Request) -> list[str]:
    """What works and should be known."""
    tables, driver = request.tables, stack["driver"]
    found = list(
        end_of_life_warnings(tables["nvidia_driver_branches"].get(str(branch(driver))), driver, request)
    )
    toolkit = tables["nvidia_cuda_drivers"].get(stack["cuda"])
    minimum = tables["nvidia_cuda_minimum_drivers"].get(stack["cuda"].split(".")[0])
    starts = minimum and version(minimum["driver"]) <= version(driver)
    if toolkit and starts and version(driver) < version(toolkit["driver"]):
        found.append(
            f"CUDA {stack['cuda']} came with driver {toolkit['driver']}; on {driver} its programs run, but "
            "PTX that is compiled at run time and newer calls do not"
        )
    build = tables["nvidia_torch_builds"].get(stack["torch"])
    for gpu in request.gpus if build else ():
        capability = version(tables["models"][gpu["model"]]["compute_capability"])
        if not version(build["first_capability"]) <= capability <= version(build["last_capability"]):
            found.append(
                f"torch {stack['torch']} of stack {name} has no kernels for {gpu['name']}: the payload needs "
                "another build, see gpu_validation_torch_version"
            )
    return found


def end_of_life_warnings(row: Facts | None, driver: str, request: Request) -> Iterator[str]:
    """A branch that gets no security fixes any more, or soon will not."""
    end = row and row["end_of_life"]
    if not end or not request.today:
        return
    left = months(end) - months(request.today)
    if left < 0:
        yield f"driver branch {branch(driver)} has had no security fixes since {end}; plan a newer stack"
    elif left <= MONTHS_OF_NOTICE:
        yield f"driver branch {branch(driver)} ends in {end}, with its security fixes; plan a newer stack"


def months(date: str) -> int:
    """A date ("2026-11" or "2026-11-21") as a number of months that can be subtracted."""
    year, month = date.split("-")[:2]
    return int(year) * 12 + int(month)
