"""The center over HTTP: every way it can go wrong is one error with one line."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeGuard

import httpx
import orjson

from laneway_center.cli.endings import UsageError
from laneway_shared.errors import LanewayError

TIMEOUTS = httpx.Timeout(30.0, connect=5.0)
IMPORT_TIMEOUT_S = 120.0
PAGE = 500
PROBLEM = "application/problem+json"
UNKNOWN_PATH_STATUSES = frozenset({httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED})
UNKNOWN_PATH_CODES = frozenset({"NOT_FOUND", "METHOD_NOT_ALLOWED"})
"""What Laneway's other services say of paths that only the center has; the center says what it is that it lacks."""
AWAY_STATUSES = frozenset({httpx.codes.BAD_GATEWAY, httpx.codes.GATEWAY_TIMEOUT})


def transport() -> httpx.BaseTransport | None:
    """How requests travel; tests put a center of their own here."""
    return None


class CenterAwayError(LanewayError):
    """The center can't be reached."""

    code = "CENTER_AWAY"


class DatabaseAwayError(CenterAwayError):
    """The center is there, its PostgreSQL isn't."""

    code = "DATABASE_AWAY"


class RefusedError(LanewayError):
    """The center refuses. `problem` is what it said (RFC 9457)."""

    code = "REFUSED"

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.problem_code = str(problem.get("code") or "REFUSED")
        super().__init__(str(problem.get("detail") or problem.get("title") or "the center refuses"))


class Center:
    """Speaks for one tenant and, where something is changed, one operator. Use as `with Center(...) as center`."""

    def __init__(self, url: str, tenant: int, operator: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {b"X-Tenant-Id": str(tenant).encode()}
        if operator is not None:
            headers[b"X-Operator"] = checked_operator(operator).encode()
        with self._trouble():
            self._client = httpx.Client(
                base_url=self.url, headers=headers, timeout=TIMEOUTS, trust_env=False, transport=transport()
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, **params: Any) -> Any:
        """What stands there. Parameters that are None are left out.

        Raises:
            CenterAwayError: nobody answers, or it is no center.
            RefusedError: with the center's code and reason.
        """
        return _read(self._request("GET", path, params=_given(params)), self.url)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Ask for a change; fields that are None are left out. Raises as `get`."""
        content = orjson.dumps(_given(body))
        return _read(self._request("POST", path, content=content, media_type="application/json"), self.url)

    def post_document(self, path: str, document: bytes, media_type: str) -> Any:
        """Send a document as it is, and take the time it needs. Raises as `get`."""
        answer = self._request("POST", path, content=document, media_type=media_type, timeout=IMPORT_TIMEOUT_S)
        return _read(answer, self.url)

    def get_document(self, path: str, **params: Any) -> bytes:
        """A document as it is, whatever its size. Raises as `get`."""
        answer = self._request("GET", path, params=_given(params), timeout=IMPORT_TIMEOUT_S)
        if not answer.is_success or "html" in answer.headers.get("content-type", ""):
            _read(answer, self.url)
        return answer.content

    def pages(self, path: str, name: str, most: int | None = None, **params: Any) -> Iterator[dict[str, Any]]:
        """The entries of a list, page by page, `most` of them at most."""
        cursor, left = None, most
        while left is None or left > 0:
            limit = PAGE if left is None else min(PAGE, left)
            page = self.get(path, **params, limit=limit, cursor=cursor)
            yield from page[name]
            cursor = page.get("nextCursor")
            left = None if left is None else left - len(page[name])
            if cursor is None:
                return

    @contextlib.contextmanager
    def stream(self, path: str, *, quiet_s: float, **headers: str) -> Iterator[httpx.Response]:
        """An answer that comes bit by bit; `quiet_s` without a byte is a loss. Raises as `get`."""
        timeout = httpx.Timeout(quiet_s, connect=TIMEOUTS.connect)
        with (
            self._trouble(),
            self._client.stream("GET", path, headers=headers, timeout=timeout) as answer,
        ):
            if not answer.is_success:
                answer.read()
                _read(answer, self.url)
            yield answer

    def _request(
        self, method: str, path: str, *, media_type: str | None = None, timeout: float | None = None, **how: Any
    ) -> httpx.Response:
        headers = {} if media_type is None else {"content-type": media_type}
        with self._trouble():
            return self._client.request(
                method, path, headers=headers, timeout=TIMEOUTS if timeout is None else timeout, **how
            )

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except httpx.InvalidURL as error:
            raise UsageError(f"{self.url} is no URL: {error}") from None
        except httpx.TimeoutException:
            raise CenterAwayError(f"the center at {self.url} doesn't answer in time") from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise CenterAwayError(f"the center at {self.url} can't be reached: {reason}") from None


def checked_operator(name: str) -> str:
    """The name of who acts.

    Raises:
        UsageError: the center wouldn't take it.
    """
    if not (1 <= len(name) <= 64 and name.isprintable() and name.strip()):  # noqa: PLR2004 - the column's width
        raise UsageError("--operator needs 1 to 64 printable characters")
    return name


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _read(answer: httpx.Response, url: str) -> Any:
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    try:
        said = answer.json() if media_type.endswith("json") else None
    except ValueError:
        said = None
    if answer.is_success and said is not None:
        return said
    if _is_of_laneway(said, media_type) and answer.status_code not in AWAY_STATUSES:
        if said["code"] == "DATABASE_AWAY":
            raise DatabaseAwayError(f"the center at {url} doesn't reach its PostgreSQL in time")
        raise RefusedError(said)
    if answer.status_code in AWAY_STATUSES or answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise CenterAwayError(f"no center answers behind {url} (HTTP {answer.status_code})")
    what = f"HTTP {answer.status_code}, {media_type or 'no content type'}"
    if answer.status_code in UNKNOWN_PATH_STATUSES:
        what += f" for {answer.request.url.path}"
    raise CenterAwayError(f"what answers at {url} is no center of Laneway ({what})")


def _is_of_laneway(said: Any, media_type: str) -> TypeGuard[dict[str, Any]]:
    """Whether it is a problem that the center would have."""
    return (
        isinstance(said, dict) and media_type == PROBLEM and "code" in said and said["code"] not in UNKNOWN_PATH_CODES
    )
