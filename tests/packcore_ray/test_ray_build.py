import json
import os

import pytest

pytest.importorskip("ray", reason="builds on a Ray cluster")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import packcore  # noqa: E402
import packcore_ray  # noqa: E402
from packcore.errors import FormatError  # noqa: E402

OPTIONS = {"tokenizer": "bytes", "chunk_size": 300_007}


@pytest.fixture(scope="module")
def cluster():
    """A head that runs no task, and two nodes that do."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    options = {"num_cpus": 0, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=options)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    yield cluster, nodes
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def path(tmp_path):
    texts = [f"{number} " * 2000 for number in range(2500)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Stop(Exception):  # noqa: N818 - it is no error
    pass


@pytest.mark.usefixtures("cluster")
def test_a_cluster_gives_the_bytes_of_one_process(tmp_path, path):
    packcore.build(path, tmp_path / "one", workers=0, **OPTIONS)
    packcore_ray.build(path, tmp_path / "cluster", **OPTIONS)
    assert files_of(tmp_path / "cluster") == files_of(tmp_path / "one")


@pytest.mark.usefixtures("cluster")
def test_a_broken_line_is_named_as_ever(tmp_path, path):
    with open(path, "ab") as file:
        file.write(b"bad\n")
    with pytest.raises(FormatError) as caught:
        packcore_ray.build(path, tmp_path / "out", **OPTIONS)
    assert str(caught.value).startswith(f"{path}:2501: Expecting value")


@pytest.mark.usefixtures("cluster")
def test_a_stopped_build_goes_on_with_or_without_the_cluster(tmp_path, path):
    seen = []

    def stop(progress):
        seen.append(progress)
        if len(seen) == 5:
            raise Stop

    with pytest.raises(Stop):
        packcore_ray.build(path, tmp_path / "out", on_progress=stop, **OPTIONS)
    packcore.build(path, tmp_path / "out", workers=0, **OPTIONS)
    packcore.build(path, tmp_path / "whole", workers=0, **OPTIONS)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_node_killed_in_mid_build_changes_nothing(tmp_path, path, cluster):
    nodes, killed = cluster[1], []

    def kill(_):
        if not killed:
            killed.append(nodes.pop())
            cluster[0].remove_node(killed[0], allow_graceful=False)

    packcore_ray.build(path, tmp_path / "out", on_progress=kill, **OPTIONS)
    assert killed
    packcore.build(path, tmp_path / "whole", workers=0, **OPTIONS)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
