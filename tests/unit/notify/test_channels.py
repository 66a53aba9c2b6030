"""Webhooks and mail, sent to real servers of this machine."""

from __future__ import annotations

import email
import email.policy
import socketserver
from typing import TYPE_CHECKING, Any

import pytest

from temper.notify import settings
from temper.notify.channels import ChannelError, send
from temper.notify.outcome import CheckOutcome, CheckState, message
from tests.unit.notify.servers import (
    PASSWORD,
    USER,
    Hook,
    Mailbox,
    certificate,
    server_side,
    serving,
    talking,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.component

SECRET = "Bearer s3cret"
BAD = CheckOutcome(
    CheckState.BAD, "1 of 2 nodes is <compliant> & so on.", {"gpu01": "failed"}, "/r/report.html"
)
NEWS = message("compliance", "hall 3", "ctl1", "2026-11-26T10:00:00Z", BAD, None)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for another name."""
    return certificate(tmp_path_factory.mktemp("strange"), "DNS:elsewhere.example")


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def channel(tmp_path: Path, kind: str, **chosen: Any) -> settings.Webhook | settings.Mail:
    """A channel as it is read from the settings."""
    lines = [f"{kind}:"]
    for name, value in chosen.items():
        if name.endswith("_file"):
            file = tmp_path / name
            file.write_text(f"{value}\n")
            file.chmod(0o600)
        lines.append(f"  {name}: {tmp_path / name if name.endswith('_file') else value}")
    path = tmp_path / "notify.yml"
    path.write_text("\n".join(lines))
    return settings.read(path).channels[kind]


def hook_of(
    tmp_path: Path, port: int, scheme: str = "https", **more: Any
) -> settings.Webhook | settings.Mail:
    return channel(tmp_path, "webhook", url=f"{scheme}://127.0.0.1:{port}/T/x?y", **more)


def mail_of(tmp_path: Path, port: int, **more: Any) -> settings.Webhook | settings.Mail:
    given = {"server": "127.0.0.1", "port": port, "from": "temper@example.com", "to": "[ops@example.com]"}
    return channel(tmp_path, "mail", **{**given, **more})


def test_a_webhook_is_posted_over_tls_with_its_secret(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    hook = Hook()
    with hook.serving(server_side(pair)) as port:
        send(hook_of(tmp_path, port, ca_file=pair[0].read_text(), header="X-Token", secret_file=SECRET), NEWS)
    ((headers, body),) = hook.got
    assert (headers["X-Token"], headers["Content-Type"]) == (SECRET, "application/json")
    assert hook.paths == ["/T/x?y"]
    assert (body["state"], body["nodes"], body["fleet"]) == ("bad", {"gpu01": "failed"}, "hall 3")
    assert "&lt;compliant&gt; &amp; so on" in body["text"], "characters of links and mentions"
    assert body["sentence"] == BAD.sentence


def test_a_server_whose_certificate_is_wrong_gets_nothing(
    tmp_path: Path, pair: tuple[Path, Path], strange: tuple[Path, Path]
) -> None:
    for served, trusted in ((pair, ""), (strange, strange[0].read_text())):
        hook, box = Hook(), Mailbox(served)
        authority = {"ca_file": trusted} if trusted else {}
        with hook.serving(server_side(served)) as port, pytest.raises(ChannelError, match="CERTIFICATE"):
            send(hook_of(tmp_path, port, secret_file=SECRET, **authority), NEWS)
        for smtps in (False, True):
            with box.serving(smtps=smtps) as port, pytest.raises(ChannelError, match="CERTIFICATE"):
                tls = "smtps" if smtps else "starttls"
                send(mail_of(tmp_path, port, tls=tls, user=USER, password_file=PASSWORD, **authority), NEWS)
        assert not hook.got
        assert not box.got


def test_a_redirection_is_not_followed(tmp_path: Path) -> None:
    """Its target would get the secret."""
    hook, elsewhere = Hook(), Hook()
    with hook.serving() as port, elsewhere.serving() as other:
        for status in (301, 302, 303, 307, 308):
            hook.status, hook.headers = status, {"Location": f"http://127.0.0.1:{other}/"}
            with pytest.raises(ChannelError, match=str(status)):
                send(hook_of(tmp_path, port, "http", secret_file=SECRET), NEWS)
    assert len(hook.got) == 5
    assert not elsewhere.paths


def test_a_message_to_this_machine_takes_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is without TLS, so a proxy would read the secret."""
    hook, proxy = Hook(), Hook()
    with hook.serving() as port, proxy.serving() as other:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{other}")
        send(hook_of(tmp_path, port, "http", secret_file=SECRET), NEWS)
        send(channel(tmp_path, "webhook", url=f"http://localhost:{port}/T"), NEWS)
    assert hook.paths == ["/T/x?y", "/T"]
    assert not proxy.paths


def test_what_a_server_repeats_of_a_secret_is_not_said(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    hook = Hook()
    with hook.serving() as port:
        hook.status, hook.reason = (
            403,
            f"not {SECRET} for http://127.0.0.1:{port}/T/x?y, so no s3cret at /T/x",
        )
        with pytest.raises(ChannelError) as told:
            send(hook_of(tmp_path, port, "http", secret_file=SECRET), NEWS)
    assert str(told.value) == f"127.0.0.1:{port}: expected a status from 200 to 299, found 403"
    with Mailbox(pair).serving() as port, pytest.raises(ChannelError) as told:
        send(mail_of(tmp_path, port, ca_file=pair[0].read_text(), user=USER, password_file="other"), NEWS)
    assert "535" in str(told.value)
    assert "other" not in str(told.value)
    # What is no HTTP is repeated by the library.
    with talking(b"s3cret has no business at /hooks/t0ken?k=v4lue (t0ken, v4lue)\r\n") as port:
        url = f"http://127.0.0.1:{port}/hooks/t0ken?k=v4lue"
        with pytest.raises(ChannelError) as told:
            send(channel(tmp_path, "webhook", url=url, secret_file=SECRET), NEWS)
    assert "(secret) has no business" in str(told.value)
    assert [word for word in ("s3cret", "t0ken", "v4lue", "hooks") if word in str(told.value)] == []


def test_nobody_waits_longer_than_the_time_limit(tmp_path: Path) -> None:
    """A server that sends a byte now and then begins each limit of a socket anew."""
    hook = Hook()
    hook.awake.clear()
    with hook.serving() as port:
        with pytest.raises(ChannelError, match="no answer within 1 s"):
            send(hook_of(tmp_path, port, "http", timeout_s=1), NEWS)
        hook.awake.set()


def test_a_mail_server_whose_answer_does_not_end_fills_no_memory(tmp_path: Path) -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while True:
                self.request.sendall(b"220-more\r\n" * 1000)

    with serving(Handler, None) as port, pytest.raises(ChannelError, match="at most 1024 KiB of answers"):
        send(mail_of(tmp_path, port, tls="none", timeout_s=60), NEWS)


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with Hook().serving() as port:
        pass
    for one in (hook_of(tmp_path, port, "http"), mail_of(tmp_path, port, tls="none")):
        with pytest.raises(ChannelError, match=f"127.0.0.1:{port}: Connection refused"):
            send(one, NEWS)


@pytest.mark.parametrize("tls", ["starttls", "smtps"])
def test_mail_goes_over_tls_with_a_password(tmp_path: Path, pair: tuple[Path, Path], tls: str) -> None:
    box = Mailbox(pair)
    with box.serving(smtps=tls == "smtps") as port:
        authority = pair[0].read_text()
        send(
            mail_of(
                tmp_path, port, tls=tls, user=USER, password_file=PASSWORD, ca_file=authority,
                to="[ops@example.com, ada@example.com]",
            ),
            NEWS,
        )  # fmt: skip
    ((recipients, text),) = box.got
    mail = email.message_from_string(text, policy=email.policy.default)
    assert recipients == ["ops@example.com", "ada@example.com"]
    assert mail["Subject"] == NEWS.subject
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail.get_content().split() == NEWS.text.split()


def test_a_server_without_starttls_gets_no_password(tmp_path: Path) -> None:
    box = Mailbox(None)
    box.plain = True
    with box.serving() as port, pytest.raises(ChannelError, match="STARTTLS"):
        send(mail_of(tmp_path, port, user=USER, password_file=PASSWORD), NEWS)
    assert not box.got


def test_a_mail_that_one_recipient_got_is_sent(tmp_path: Path) -> None:
    """It would come again and again, else. Of the others it is said that they are refused."""
    box = Mailbox(password=False)
    box.plain, box.refused = True, {"gone@example.com"}
    with box.serving() as port:
        with pytest.raises(ChannelError, match=r"gone@example\.com"):
            send(mail_of(tmp_path, port, tls="none", to="[gone@example.com]"), NEWS)
        said = send(mail_of(tmp_path, port, tls="none", to="[ops@example.com, gone@example.com]"), NEWS)
        assert "gone@example.com" in said
        assert "ops@example.com" not in said
        assert send(mail_of(tmp_path, port, tls="none"), NEWS) == ""
    assert [recipients for recipients, _ in box.got] == [["ops@example.com"]] * 2
