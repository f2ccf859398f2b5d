"""Two real Ray nodes on this machine, for all tests of this directory; without ray they are skipped."""

from __future__ import annotations

import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.remote import behaviour

REPOSITORY = Path(__file__).resolve().parents[2]
NODE = {"num_cpus": 1, "memory": 2**30, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="session")
def bucket() -> Iterator[str | None]:
    """A bucket of a real S3 server, where PENSTOCK_MOTO_SERVER names one; the nodes have its credentials, too."""
    command = os.environ.get("PENSTOCK_MOTO_SERVER", "")
    if not shutil.which(command):
        yield None
        return
    with (
        behaviour.started([command, "-H", "127.0.0.1", "-p", "PORT"], "/moto-api/") as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in (("AWS_ENDPOINT_URL", url), ("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s")):
            patch.setenv(name, value)
        urllib.request.urlopen(urllib.request.Request(f"{url}/fleet", method="PUT"), timeout=10).close()
        yield "s3://fleet"


@pytest.fixture(scope="session")
def cluster(bucket: str | None) -> Iterator[Any]:
    """A head and a second node, one CPU and 1 GiB each; nothing of it looks beyond this machine."""
    pytest.importorskip("ray")
    source = str(Path(penstock.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        # Workers load penstock and tests/scale/faults.py from where this process has them.
        patch.setenv("PYTHONPATH", os.pathsep.join([source, str(REPOSITORY)]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        try:
            made.add_node(**NODE)
            patch.setenv("RAY_ADDRESS", made.address)
            yield made
        finally:
            import ray

            ray.shutdown()
            made.shutdown()


@pytest.fixture
def two_nodes(cluster: Any) -> Any:
    """The cluster, with both of its nodes whatever a test did to the second one."""
    import ray

    while len(cluster.list_all_nodes()) < 2:
        cluster.add_node(**NODE)
    if not ray.is_initialized():  # one connection: workers, which take seconds to start, serve several tests
        ray.init(address=cluster.address, log_to_driver=False)
    return cluster
