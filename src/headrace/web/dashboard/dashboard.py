"""All routes of the dashboard."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.admin.admin import Admin
from headrace.core.config import HttpSettings
from headrace.web.answers import guarded
from headrace.web.dashboard.doing import Doing
from headrace.web.dashboard.jobs import Jobs
from headrace.web.dashboard.live import Live
from headrace.web.dashboard.pages import HERE, Pages
from headrace.web.dashboard.queues import Queues
from headrace.web.dashboard.schedules import SchedulePages
from headrace.web.dashboard.upkeep import UpkeepPages
from headrace.web.dashboard.vault import VaultPage
from headrace.web.guard import problem
from headrace.web.tokens import Role, Tokens

_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}


def dashboard_routes(admin: Admin, live: Live, tokens: Tokens, settings: HttpSettings) -> list[Route]:
    """Pages, what they do, and their files."""
    pages = Pages(admin, live, tokens, settings)
    return [
        *Queues(pages).routes(),
        *Jobs(pages).routes(),
        *UpkeepPages(pages).routes(),
        *SchedulePages(pages).routes(),
        *VaultPage(pages).routes(),
        *Doing(pages).routes(),
        Route("/static/{file}", guarded(Role.PROBE, static)),
    ]


async def static(request: Request) -> Response:
    """A file of ours; its address changes with it, so browsers may keep it."""
    path = HERE / "static" / request.path_params["file"]
    if path.parent != HERE / "static" or path.suffix not in _KINDS or not path.is_file():
        return problem(404, "there is no such file")
    headers = {"Cache-Control": "private, max-age=31536000, immutable"}
    return Response(path.read_bytes(), media_type=_KINDS[path.suffix], headers=headers)
