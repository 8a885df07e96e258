"""The playground: a page of static files beside this module, which talks to the OpenAI endpoints like any client."""

from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    # Nothing from elsewhere and nothing inline: a completion that gets into the page as markup could do nothing.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # A newer gateway brings a newer page.
    "cache-control": "no-cache",
}


def page_routes() -> list[Route]:
    """`/playground/` and its files; `/` leads there."""
    page = _Page()
    return [
        # Relative, so that they hold behind a proxy that adds a path.
        Route("/", lambda _: RedirectResponse("playground/"), methods=["GET"]),
        Route("/playground", lambda _: RedirectResponse("playground/"), methods=["GET"]),
        Route("/playground/{name:path}", page.file, methods=["GET"]),
    ]


class _Page:
    """The files are read once, at the start."""

    def __init__(self) -> None:
        self._files = {
            entry.name: (entry.read_bytes(), _TYPES[kind])
            for entry in files(__name__).iterdir()
            if (kind := entry.name.rpartition(".")[2]) in _TYPES
        }

    async def file(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"] or "index.html")
        if found is None:
            raise HTTPException(404)
        content, media_type = found
        return Response(content, headers={**_HEADERS, "content-type": media_type})
