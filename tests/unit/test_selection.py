"""Sentences about nodes and tags that a command line selects and that do not exist."""

from temper.base.selection import no_nodes

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
