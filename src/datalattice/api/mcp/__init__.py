"""MCP: the service as tools of a language model."""

from __future__ import annotations

from datalattice.api.mcp.server import (
    INSTRUCTIONS as INSTRUCTIONS,
    MCP_REQUEST_BYTES_MAX as MCP_REQUEST_BYTES_MAX,
    CallerOf as CallerOf,
    McpDoor as McpDoor,
    mcp_server as mcp_server,
    serve_stdio as serve_stdio,
)
from datalattice.api.mcp.tools import (
    PATH_URI as PATH_URI,
    RESOURCE_CHARACTERS_MAX as RESOURCE_CHARACTERS_MAX,
    RESULT_CHARACTERS_MAX as RESULT_CHARACTERS_MAX,
    RESULT_DEPTH_MAX as RESULT_DEPTH_MAX,
    VALUE_URI as VALUE_URI,
    McpTool as McpTool,
    McpTools as McpTools,
    ToolAnswer as ToolAnswer,
    ToolResource as ToolResource,
    ToolSet as ToolSet,
)
