"""Sentences about nodes and tags that a command line selects and that do not exist."""

from temper.base.selection import no_nodes, unknown_names

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
    known = {"gpu_nodes", "node01", "node02"}
    table = (
        (["node01", "all", "localhost"], ""),
        (["node0*", "~nod.*", "gpu_nodes[7]", "&gpu_nodes", "@nodes.txt", "fd00::1"], ""),
        (["node01", "nod02"], "has the name nod02; did you mean node02?"),
        (["all", "!nod02"], "has the name nod02; did you mean node02?"),
        (["&gpu-nodes"], "did you mean gpu_nodes?"),
        (["login", "xyz"], "has the name login, xyz; correct the name"),
    )
    found = [(patterns, unknown_names(patterns, known)) for patterns, _ in table]
    wrong = [
        (one, expected)
        for one, (_, expected) in zip(found, table, strict=True)
        if bool(one[1]) != bool(expected) or expected not in one[1]
    ]
    assert wrong == []
