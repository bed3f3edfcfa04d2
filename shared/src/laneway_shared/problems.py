"""Errors over HTTP as problem+json (RFC 9457) with a stable `code`. For services that serve HTTP (FastAPI)."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """What went wrong. `code` is stable; `detail` is for people and says what to do next."""

    type: str = "about:blank"
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    code: str = Field(examples=["DEVICE_UNKNOWN"])
    detail: str = Field(examples=["device 1024 is not in the registry"])
    errors: list[dict[str, str]] | None = Field(None, description="With VALIDATION: each field and its fault.")


class ProblemError(Exception):
    """Ends a request with a problem."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers

    @property
    def problem(self) -> Problem:
        """The body that says it."""
        return Problem(title=self.status.phrase, status=self.status.value, code=self.code, detail=self.detail)


_CODES = {
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.METHOD_NOT_ALLOWED: "METHOD_NOT_ALLOWED",
    HTTPStatus.BAD_REQUEST: "BAD_REQUEST",
}


def install(app: FastAPI) -> None:
    """Answer every error of this application as a problem."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)


def responses(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """These statuses for the OpenAPI document."""
    return {
        status.value: {"description": status.phrase, "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
        for status in statuses
    }


async def _on_problem(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, ProblemError):
        raise error
    return _answer(error.problem, headers=error.headers)


async def _on_http(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    code = _CODES.get(status, status.name)
    return _answer(
        Problem(title=status.phrase, status=status.value, code=code, detail=str(error.detail)), headers=error.headers
    )


async def _on_invalid(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    faults = error.errors()
    if any(fault["type"] == "json_invalid" for fault in faults):
        return _answer(ProblemError(HTTPStatus.BAD_REQUEST, "MALFORMED_JSON", "The body is not JSON.").problem)
    errors = [{"field": ".".join(map(str, fault["loc"])), "message": str(fault["msg"])} for fault in faults]
    detail = "; ".join(f"{each['field']}: {each['message']}" for each in errors[:20])
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return _answer(
        Problem(title=status.phrase, status=status.value, code="VALIDATION", detail=detail, errors=errors[:100])
    )


def _answer(problem: Problem, *, headers: Mapping[str, str] | None = None) -> JSONResponse:
    content = json.loads(problem.model_dump_json(exclude_none=True))
    return JSONResponse(content, problem.status, headers=dict(headers or {}), media_type=MEDIA_TYPE)
