import pytest
from circuits_by_hand import QUIET, TEXT
from dense_sublayers import build

import gattn


@pytest.fixture(scope="session")
def gpt2():
    """A small GPT-2 in double precision, to be read alone."""
    return build("gpt2")


@pytest.fixture(scope="session")
def embedded():
    """The model that gattn brings, and its tokenizer."""
    return gattn.load_model()


@pytest.fixture(scope="session")
def river(embedded):
    """The circuit of a repeated text."""
    return gattn.circuit(TEXT, *embedded, target=" lamp", **QUIET)
