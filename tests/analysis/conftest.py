import pytest
from dense_sublayers import build


@pytest.fixture(scope="session")
def gpt2():
    """A small GPT-2 in double precision, to be read alone."""
    return build("gpt2")
