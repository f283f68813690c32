"""Ray clusters that are not there; in a module of their own, where no cluster is up."""

import pytest

from gattn.errors import CaptureError
from gattn.surveys.run.ray_pool import RayPool
from gattn.surveys.run.running import survey

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.ray,
    # Ray Data warns of settings of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "no.such:1", ":x"])
def test_a_cluster_that_is_not_there_is_said_at_once(tmp_path, address):
    assert not ray.is_initialized()
    with pytest.raises(CaptureError, match=f"Cannot connect to a Ray cluster at '{address}': "):
        survey(["a b"], out=tmp_path, progress=False, ray=RayPool(address))
    assert not ray.is_initialized()
