"""Tables that were written to a file and read back are drawn as docs/analyses.md says."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from paper import trace
from test_interval_pictures import statistics

import gattn

TABLES = {
    "heads": lambda: gattn.analysis.head_table(trace(), progress=False),
    "best edges": lambda: gattn.analysis.best_edges(trace(), progress=False),
    "statistics": lambda: statistics(3, 4),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_csv_is_drawn_by_its_kind(name, tmp_path):
    made = TABLES[name]()
    made.to_csv(tmp_path / "table.csv")
    read = pd.read_csv(tmp_path / "table.csv", index_col=made.index.names)
    assert not hasattr(read, "draw")
    ax, again = made.draw(), type(made)(read).draw()
    names = [[label.get_text() for label in one.get_yticklabels()] for one in (ax, again)]
    assert names[0] == names[1]
    for one, other in zip(ax.images, again.images, strict=True):
        np.testing.assert_allclose(one.get_array(), other.get_array())
    plt.close("all")
