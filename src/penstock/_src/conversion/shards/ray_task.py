"""What a Ray worker does: one group, within the memory that the task asked for. The answer is a few hundred bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from penstock import __version__
from penstock._src.conversion.shards.choose_storage import shard_storage_of
from penstock._src.conversion.shards.write import (
    GroupRequest,
    Reporter,
    SharedStop,
    error_to_json,
    is_of_output,
    write_group,
)
from penstock._src.system.files import as_path
from penstock._src.system.memory import give_back_large_blocks, rss_bytes
from penstock.errors import BudgetExceeded, Interrupted, PenstockError

_LEAST_SLACK_BYTES = 64 * 2**20


@cache
def _base_bytes() -> int:
    """What this worker held before its first group: Ray's own part."""
    return rss_bytes()


def run_group(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Convert and publish a group. The answer has `result`, or `error` (and whether more memory may help)."""
    if tree["penstock"] != __version__:
        message = f"{os.uname().nodename} has penstock {__version__}, this command {tree['penstock']}"
        return {"error": {"kind": "UsageError", "message": message, "hint": "install the same version on all nodes"}}
    request = replace(GroupRequest.from_json(tree["request"]), node=_node())
    give_back_large_blocks()
    limit_bytes = request.budget_bytes + max(_LEAST_SLACK_BYTES, request.budget_bytes // 4)
    storage, base_bytes = shard_storage_of(as_path(request.out)), _base_bytes()
    stop = SharedStop(storage, request.work)
    with Reporter(storage, request, base_bytes=base_bytes, limit_bytes=limit_bytes) as reporter:
        try:
            result = write_group(request, stop, reporter.moved, base_bytes=base_bytes)
        except Interrupted:
            return {"stopped": True}
        except PenstockError as error:
            return {
                "error": error_to_json(error),
                "input": reporter.number,
                "needs_memory": isinstance(error, BudgetExceeded),
                "of_output": is_of_output(request, error),
                "node": request.node,
            }
        except MemoryError as error:
            failed = {"kind": "PenstockError", "message": f"out of memory: {error}", "hint": None}
            return {"error": failed, "input": reporter.number, "needs_memory": True, "node": request.node}
    return {"result": result.to_json()}


def _node() -> str:
    import ray

    return f"{os.uname().nodename}/{ray.get_runtime_context().get_node_id()[:6]}"
