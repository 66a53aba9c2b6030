"""Sentences about nodes and tags that a command line selects and that do not exist."""

from ansible.inventory.manager import split_host_pattern

from temper.base.selection import limit_to, no_nodes, unknown_names
from tests.unit.each import each

GROUPS = {"all": ["n1"], "gpunodes": ["n1"], "login": ["n2"]}


def test_only_a_name_has_a_hint_at_a_like_one() -> None:
    table = (
        ("gpu_nodes", "", "did you mean gpu_nodes where it has gpunodes?"),
        ("other-nodes", "", "Put the nodes into the group other-nodes."),
        ("gpunodes:!login", "", "matches the pattern gpunodes:!login,"),
        ("gpu_nodes:&login", "", "matches the pattern gpu_nodes:&login,"),
        ("gpunode*", "n1", "matches the pattern gpunode* and --limit n1,"),
        ("gpunodes[3:4]", "", "matches the pattern gpunodes[3:4],"),
        ("~gpunodes.", "", "matches the pattern ~gpunodes.,"),
    )
    wrong = []
    for pattern, limit, expected in table:
        said = no_nodes([pattern], limit, GROUPS, ["hosts.yml"])
        if expected not in said or ("did you mean" in said) != ("did you mean" in expected):
            wrong.append((pattern, said))
    assert wrong == []


def test_a_name_in_a_limit_that_nobody_has_is_named_with_a_like_one() -> None:
    known = {"gpu_nodes", "node01", "node02", "fd00::2", "fe80::1%eth0"}
    table = (
        ("", ""),
        ("node01,all,localhost", ""),
        ("node0*,~nod.*,~node[1:2],&gpu_nodes,@nodes.txt", ""),
        ("gpu_nodes[7],gpu_nodes[0:1],gpu*[0]", ""),
        ("fd00::2", ""),
        ("fe80::1%eth0,", ""),
        ("all,!fe80::1%eth0", ""),
        ("node01,nod02", "has the name nod02; did you mean node02?"),
        ("all:!nod02", "has the name nod02; did you mean node02?"),
        ("&gpu-nodes", "did you mean gpu_nodes?"),
        ("login,xyz", "has the name login, xyz; correct the name"),
        ("fd00::9", "has the name fd00::9; "),
        ("fe80::9%eth0,node01", "has the name fe80::9%eth0; did you mean fe80::1%eth0?"),
        ("fe80::1%eth0", "Ansible cuts fe80::1%eth0 at its colons"),
        ("all:!fd00::2", "Ansible cuts all:!fd00::2 at its colons"),
        ("gpu-nodes[0]", "has the name gpu-nodes[0]; [] are positions in a group"),
        ("node01,node[02:03]", "has the name node[02:03]; [] are positions in a group"),
    )
    found = [(limit, unknown_names(limit, split_host_pattern, known)) for limit, _ in table]
    wrong = [
        (one, expected)
        for one, (_, expected) in zip(found, table, strict=True)
        if bool(one[1]) != bool(expected) or expected not in one[1]
    ]
    assert wrong == []


@each(["node01"], ["node01", "node02"], ["fd00::2"], ["fe80::1%eth0"], ["fe80::1%eth0", "fe80::2%eth0"])
def test_ansible_reads_a_limit_to_nodes_as_those(nodes: list[str]) -> None:
    assert split_host_pattern(limit_to(nodes)) == nodes
