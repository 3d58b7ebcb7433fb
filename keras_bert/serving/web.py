"""The page at `/`, which calls the REST interface from a browser: plain files that refer to no other site."""

import importlib.resources
import os

from fastapi import Response
from starlette.routing import Route

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_NAMES = ("index.html", "page.css", "page.js", "answers.js", "attention.js", "elements.js", "server.js")
FILES = {f"/{name}".removesuffix("index.html"): name for name in _NAMES}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                               "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                               "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app):
    """Adds the files to a FastAPI application. They contain no secret and need no token; the page asks for the
    token."""
    folder = importlib.resources.files("keras_bert.serving") / "page"
    for path, name in FILES.items():
        response = Response((folder / name).read_bytes(), headers=_HEADERS,
                            media_type=_TYPES[os.path.splitext(name)[1]])
        app.routes.append(Route(path, response, methods=["GET"], include_in_schema=False))  # a Response is an ASGI app
