"""MCP: the service as tools of a language model."""

from __future__ import annotations

from datalattice.api.mcp.server import (
    INSTRUCTIONS,
    REQUEST_BYTES_MAX,
    CallerOf,
    McpDoor,
    mcp_server,
    serve_stdio,
)
from datalattice.api.mcp.tools import (
    PATH_URI,
    RESOURCE_CHARACTERS_MAX,
    RESULT_CHARACTERS_MAX,
    RESULT_DEPTH_MAX,
    VALUE_URI,
    McpTool,
    McpTools,
    ToolAnswer,
    ToolResource,
    ToolSet,
)

__all__ = [
    "INSTRUCTIONS",
    "PATH_URI",
    "REQUEST_BYTES_MAX",
    "RESOURCE_CHARACTERS_MAX",
    "RESULT_CHARACTERS_MAX",
    "RESULT_DEPTH_MAX",
    "VALUE_URI",
    "CallerOf",
    "McpDoor",
    "McpTool",
    "McpTools",
    "ToolAnswer",
    "ToolResource",
    "ToolSet",
    "mcp_server",
    "serve_stdio",
]
