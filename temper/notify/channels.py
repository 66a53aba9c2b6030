"""Send one message. TLS is verified, and nobody waits longer than the channel's time limit."""

from __future__ import annotations

import html
import json
import re
import smtplib
import threading
import urllib.error
import urllib.parse
import urllib.request
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import IO, TYPE_CHECKING

from temper.base.options import told
from temper.notify.outcome import Message
from temper.notify.settings import Mail, Tls, Webhook, is_local
from validation.model.printable import one_line

if TYPE_CHECKING:
    from http.client import HTTPMessage


MOST_COMPLAINT = 300
LONGEST_COMMON_WORD = 5
#: Of a mail server, for one message.
MOST_SAID = 1 << 20


class ChannelError(Exception):
    """A message that was not taken; the message of the error has no secret."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows nothing: the secret is for the server that the operator has named."""

    def redirect_request(
        self,
        _request: urllib.request.Request,
        _answer: IO[bytes],
        _code: int,
        _reason: str,
        _headers: HTTPMessage,
        _url: str,
    ) -> None:
        """Have the answer treated as an error."""


class _Answers:
    """What a mail server says, up to a bound: smtplib collects the lines of an answer until it ends."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = file, MOST_SAID

    def readline(self, most: int) -> bytes:
        """Return a line. Raises OSError."""
        line = self._file.readline(most)
        self._left -= len(line)
        if self._left < 0:
            raise OSError(f"expected at most {MOST_SAID >> 10} KiB of answers, found more")
        return line

    def close(self) -> None:
        """Read no more."""
        self._file.close()


class _Bounded(smtplib.SMTP):
    """An SMTP client that a server cannot fill."""

    def getreply(self) -> tuple[int, bytes]:
        """Return the next answer."""
        self.file: IO[bytes] | _Answers | None
        if self.file is None and self.sock:
            self.file = _Answers(self.sock.makefile("rb"))
        return super().getreply()


class _BoundedSmtps(_Bounded, smtplib.SMTP_SSL):
    """The same with TLS from the beginning."""


def send(channel: Webhook | Mail, message: Message) -> str:
    """Send a message; returns who did not get it, empty where all did. Raises ChannelError where nobody did.

    Time limits of sockets begin anew with each byte, so the whole runs in a thread that is left behind when
    its time is over.
    """
    failed: list[Exception] = []
    refused: list[smtplib.SMTPRecipientsRefused] = []

    def work() -> None:
        try:
            if isinstance(channel, Webhook):
                _post(channel, message)
            elif some := _mail(channel, message):
                refused.append(smtplib.SMTPRecipientsRefused(some))
        except Exception as error:  # noqa: BLE001 - it is said by the other thread
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(channel.timeout_s)
    if thread.is_alive():
        raise ChannelError(f"{channel.place}: no answer within {channel.timeout_s} s")
    if failed:
        raise ChannelError(f"{channel.place}: {_complaint(failed[0], channel)}") from None
    return f"{channel.place}: {_complaint(refused[0], channel)}" if refused else ""


def _complaint(error: Exception, channel: Webhook | Mail) -> str:
    """Return why a message was not taken, in one line; what a server says may repeat a secret."""
    if isinstance(error, urllib.error.HTTPError):
        said = f"expected a status from 200 to 299, found {error.code}"
    elif isinstance(error, smtplib.SMTPAuthenticationError):
        said = f"refused the user and the password with status {error.smtp_code}"
    elif isinstance(error, smtplib.SMTPRecipientsRefused):
        said = f"refused the recipients {', '.join(error.recipients)}: {error}"
    else:
        reason = getattr(error, "reason", "") or error
        # An answer of a mail server is an OSError, too, and its number says more than its words.
        said = str(reason) if isinstance(reason, smtplib.SMTPException) else told(reason)
        said = said or type(error).__name__
    for secret in _secrets(channel):
        # A short one is part of other words, too.
        before, after = ("", "") if len(secret) > LONGEST_COMMON_WORD else (r"(?<!\w)", r"(?!\w)")
        said = re.sub(f"{before}{re.escape(secret)}{after}", "(secret)", said)
    return one_line(said)[:MOST_COMPLAINT]


def _secrets(channel: Webhook | Mail) -> list[str]:
    """Return what of a channel is never said, the longest first: a part of it may be in another."""
    if isinstance(channel, Mail):
        return sorted(filter(None, {channel.password, *channel.password.split()}), key=len, reverse=True)
    address = urllib.parse.urlsplit(channel.url)
    target = channel.url.partition(address.netloc)[2]
    found = {channel.url, target, address.path, address.query, *re.split(r"[/?&=]", target), channel.secret}
    return sorted(filter(None, {*found, *channel.secret.split()} - {"/"}), key=len, reverse=True)


def _post(channel: Webhook, message: Message) -> None:
    # Slack and those like it take `text`, in which these three characters begin links and mentions.
    document = {"text": html.escape(message.text, quote=False), **message.document}
    headers = {"Content-Type": "application/json", "User-Agent": "temper"}
    if channel.secret:
        headers[channel.header] = channel.secret
    handlers = [urllib.request.HTTPSHandler(context=channel.context), _NoRedirect()]
    if is_local(urllib.parse.urlsplit(channel.url).hostname or ""):
        # No proxy of the environment: it would get the URL and the secret without TLS.
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(channel.url, json.dumps(document).encode(), headers, method="POST")  # noqa: S310 - the settings allow https, and http to this machine
    try:
        opener.open(request, timeout=channel.timeout_s).close()
    except urllib.error.HTTPError as error:
        error.close()
        raise


def _mail(channel: Mail, message: Message) -> dict[str, tuple[int, bytes]]:
    """Send a mail; returns the recipients that the server refused, with its answers, where it took others."""
    mail = EmailMessage()
    mail["Subject"] = message.subject
    mail["From"] = channel.sender
    mail["To"] = ", ".join(channel.to)
    mail["Date"] = formatdate()
    mail["Message-ID"] = make_msgid(domain="temper.invalid")
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text)
    if channel.tls is Tls.SMTPS:
        server: _Bounded = _BoundedSmtps(
            channel.server, channel.port, timeout=channel.timeout_s, context=channel.context
        )
    else:
        server = _Bounded(channel.server, channel.port, timeout=channel.timeout_s)
    with server:
        if channel.tls is Tls.STARTTLS:
            server.starttls(context=channel.context)
        if channel.user:
            server.login(channel.user, channel.password)
        return server.send_message(mail)
