"""Settings of notifications: each wrong value is named, and no secret is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from temper.base.options import OptionsError
from temper.notify.settings import Tls, read
from tests.unit.each import each

if TYPE_CHECKING:
    from pathlib import Path

MAIL = "server: mail.example.com, from: temper@example.com, to: [ops@example.com]"
LOCAL = MAIL.replace("mail.example.com", "localhost")
HOOK = "https://hooks.example.com/T/s3cret"


def written(tmp_path: Path, text: str) -> Path:
    for name, content in (("word", "s3cret"), ("hook", HOOK), ("wrong", "http://hooks.example.com/s3cret")):
        (tmp_path / name).write_text(f"{content}\n")
        (tmp_path / name).chmod(0o640)
    (tmp_path / "open").write_text("s3cret\n")
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "two").write_text("s3cret\nX-Other: s3cret\n")
    (tmp_path / "two").chmod(0o600)
    path = tmp_path / "notify.yml"
    path.write_text(text.replace("HERE", str(tmp_path)))
    return path


def test_settings_are_read_with_their_secrets(tmp_path: Path) -> None:
    text = f"""
fleet: hall 3
webhook: {{url_file: HERE/hook, header: X-Token, secret_file: HERE/word, timeout_s: 5}}
mail: {{{MAIL}, user: temper, password_file: HERE/word}}
"""
    found = read(written(tmp_path, text))
    assert found.webhook is not None
    assert (found.webhook.url, found.webhook.header, found.webhook.secret) == (HOOK, "X-Token", "s3cret")
    assert found.mail is not None
    assert (found.mail.port, found.mail.tls, found.mail.password) == (587, Tls.STARTTLS, "s3cret")
    assert list(found.channels) == ["webhook", "mail"]
    assert "s3cret" not in repr(found)


@each(
    ("{}", ["neither"]),
    ("[]", ["mapping"]),
    ("webhok: {url: https://a.example}", ["webhok", "did you mean webhook?"]),
    (f"webhook: {HOOK}", ["webhook", "mapping with url"]),
    (f"webhook: {{url: '{HOOK}'", ["notify.yml", "line 1"]),
    (f"webhook: {{ulr: '{HOOK}'}}", ["webhook.ulr", "did you mean url"]),
    ("webhook: {}", ["neither"]),
    (f"webhook: {{url: '{HOOK}', url_file: HERE/hook}}", ["both"]),
    ("webhook: {url: http://hooks.example.com/s3cret}", ["webhook.url", "https"]),
    ("webhook: {url: 'https://me:s3cret@hooks.example.com/'}", ["webhook.url", "password"]),
    ("webhook: {url: 'file:///s3cret'}", ["webhook.url", "https"]),
    ("webhook: {url: 'https://a.example:99999/s3cret'}", ["webhook.url"]),
    ("webhook: {url_file: HERE/wrong}", ["webhook.url_file", "https"]),
    ("webhook: {url_file: HERE/none}", ["webhook.url_file", "No such file"]),
    ("webhook: {url: https://a.example, secret_file: HERE/open}", ["HERE/open", "chmod o-rwx"]),
    ("webhook: {url: https://a.example, secret_file: HERE/two}", ["webhook.secret_file", "one line"]),
    ("webhook: {url: https://a.example, header: X-Token}", ["webhook.header", "secret_file"]),
    ("webhook: {url: https://a.example, header: 'X: y', secret_file: HERE/word}", ["webhook.header"]),
    ("webhook: {url: https://a.example, header: Host, secret_file: HERE/word}", ["webhook.header"]),
    ("webhook: {url: https://a.example, timeout_s: 0}", ["webhook.timeout_s", "1 to 300"]),
    ("webhook: {url: https://a.example, timeout_s: 301}", ["webhook.timeout_s", "1 to 300"]),
    ("webhook: {url: https://a.example, ca_file: HERE/word}", ["webhook.ca_file", "PEM"]),
    ("webhook: {url: https://a.example}\nwebhook: {url: https://b.example}", ["found a key twice", "line 2"]),
    (HOOK, ["mapping with fleet, webhook, mail", "found a text"]),
    (f"webhook: [{HOOK}]", ["webhook", "found a list"]),
    (f"webhook: {{{HOOK}}}", ["webhook: no such key", "expected one of url"]),
    (f"? {HOOK}", ["settings: no such key"]),
    (f"? {HOOK}\n: x\n? {HOOK}\n: y", ["found a key twice", "line 3"]),
    ("webhook: {url: !s3cret x}", ["line 1", "tag"]),
    ("webhook: {url: *s3cret }", ["line 1", "alias"]),
    ("webhook: {url: https://a.example, url_file: s3cret}", ["webhook.url_file", "No such file"]),
    ('mail: "smtps://ops:s3cret@mail.example.com"', ["mail", "found a text"]),
    (f"mail: {{{MAIL}, port: s3cret, tls: s3cret, user: [s3cret]}}", ["mail.port", "mail.tls", "mail.user"]),
    (f"mail: {{{LOCAL}, s3cret: }}".replace("from", "form"), ["mail.form", "expected the keys from"]),
    ("mail: {server: mail.example.com}", ["mail", "from, to"]),
    (f"mail: {{{MAIL}, port: 70000}}", ["mail.port", "65535"]),
    (f"mail: {{{MAIL}, tls: ssl}}", ["mail.tls", "smtps"]),
    (f"mail: {{{MAIL}, tls: none}}", ["mail.tls", "another machine"]),
    (f"mail: {{{MAIL}, user: temper}}", ["password_file"]),
    (f"mail: {{{LOCAL}, tls: none, user: a, password_file: HERE/word}}", ["mail.user", "starttls"]),
    (f"mail: {{{MAIL.replace('ops@', 'ops@x@')}}}", ["mail.to", "address"]),
    ("mail: {server: a.example, from: a@b.example, to: ops@example.com}", ["mail.to", "list"]),
    ('mail: {server: a.example, from: "a@b.example\\nBcc: x@y.example", to: [a@b.example]}', ["mail.from"]),
    ("mail: {server: 'a.example/x', from: a@b.example, to: [a@b.example]}", ["mail.server", "port"]),
)  # fmt: skip
def test_a_wrong_value_is_named_without_a_secret(text: str, said: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(OptionsError) as told:
        read(path)
    sentence = str(told.value)
    assert [word for word in said if word.replace("HERE", str(tmp_path)) not in sentence] == []
    assert "s3cret" not in sentence


def test_the_mail_server_of_this_machine_needs_no_tls(tmp_path: Path) -> None:
    for host in ("localhost", "127.0.0.1", "::1"):
        text = f"mail: {{server: '{host}', from: root, to: [ops@example.com], tls: none}}"
        found = read(written(tmp_path, text)).mail
        assert found is not None
        assert (found.port, found.sender) == (25, "root")
