"""A hook for alerts that sends them to a URL, as JSON."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from headrace.admin.firing import AlertChange
from headrace.text import url_without_secrets

log = logging.getLogger("headrace.alerts")

_TIMEOUT, _TRIES, _PAUSE = 5.0, 3, 1.0


class _Stay(HTTPRedirectHandler):
    """Follows no redirect: where to send alerts is for the settings to say."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Webhook:
    """Posts each change of an alert; tries three times."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = build_opener(_Stay())

    async def __call__(self, change: AlertChange) -> None:
        body = msgspec.json.encode({**change.alert.to_dict(), "on": change.on})
        for attempt in range(_TRIES):
            try:
                await asyncio.to_thread(self._post, body)
                return
            except (HTTPError, URLError, OSError, TimeoutError) as error:
                where, left = url_without_secrets(self._url), _TRIES - attempt - 1
                log.warning("the webhook %s did not take an alert, %d tries left: %s", where, left, error)
            if left:
                await asyncio.sleep(_PAUSE)

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "headrace"}
        with self._opener.open(Request(self._url, body, headers, method="POST"), timeout=_TIMEOUT):
            return
