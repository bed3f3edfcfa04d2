"""Whether this process lives, can work, and what it has counted."""

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses={HTTPStatus.SERVICE_UNAVAILABLE: {"description": "It can't do its work now."}})
async def readyz(request: Request) -> JSONResponse:
    """What works and what is missing. With the broker away commands are still accepted: `degraded`, not 503."""
    ready, checks = await request.app.state.readiness()
    fine = all(word == "ok" for word in checks.values())
    body: dict[str, Any] = {"status": "ok" if fine else "degraded" if ready else "unavailable", "checks": checks}
    return JSONResponse(body, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
async def metrics() -> Response:
    """Counters and histograms for Prometheus."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
