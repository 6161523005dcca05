"""A cluster of two workers on this machine, for the tests of one file."""

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from distributed_recipes import FOLDER

from remanence.execution import Ray
from remanence.execution._cluster import connect

TESTS = Path(__file__).parents[1]
TOKEN = token_hex(32)  # one for the process, or Ray remembers another; without one it writes it into the home folder


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where experiments note what they did, on whichever worker."""
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, marks: Path) -> Iterator[Ray]:
    """Two workers, which import `distributed_recipes` in place of our recipes."""
    import ray

    package = tmp_path_factory.mktemp("package") / "remanence_recipes"
    package.mkdir()
    (package / "__init__.py").write_text("from distributed_recipes import RECIPES\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        with pytest.MonkeyPatch.context() as of_workers:
            paths = [package.parent, TESTS, TESTS / "execution", os.environ.get("PYTHONPATH", "")]
            of_workers.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
            of_workers.setenv("REMANENCE_COMMIT", "0123456789ab")  # or a changed checkout resumes nothing
            of_workers.setenv(FOLDER, str(marks))
            connect(address="local", num_cpus=2, num_gpus=2, include_dashboard=False)  # GPUs that are only counted
        backend = Ray()
        assert list(backend.map(abs, [-1])) == [1]
        yield backend
        gc.collect()  # unfinished maps end while the cluster is there
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Ray does not wait for all of its processes to end
            ray.shutdown()
            gc.collect()
