"""Inputs in storage that is not there are given up soon."""

import pyarrow.fs
import pytest

from gattn.errors import FileError
from gattn.surveys.inputs import files as input_files
from gattn.surveys.inputs.inputs import read_inputs


def test_storage_of_google_is_tried_for_some_seconds_and_not_for_minutes(monkeypatch):
    asked = []

    def from_uri(uri):
        asked.append(uri)
        raise OSError("No route to host")

    monkeypatch.setattr(pyarrow.fs, "FileSystem", type("", (), {"from_uri": from_uri}))
    for uri in (
        "gs://bucket/a.txt",
        "gs://bucket/a?x=1",
        "gs://b/?retry_limit_seconds=90",
        "s3://b",
    ):
        with pytest.raises(
            FileError, match=r"cannot be read: .* Check the network and your access"
        ):
            read_inputs(uri)
    assert asked == [
        "gs://bucket/a.txt?retry_limit_seconds=10",
        "gs://bucket/a?x=1&retry_limit_seconds=10",
        "gs://b/?retry_limit_seconds=90",
        "s3://b",
    ]


def test_the_option_is_one_that_pyarrow_knows():
    filesystem, place = pyarrow.fs.FileSystem.from_uri(input_files._patient("gs://bucket/a.txt"))
    assert (filesystem.type_name, place) == ("gcs", "bucket/a.txt")


@pytest.mark.slow
def test_a_bucket_that_cannot_be_reached_is_an_error():
    with pytest.raises(FileError, match="gs://no-such-bucket-of-gattn"):
        list(read_inputs("gs://no-such-bucket-of-gattn/a.txt"))
