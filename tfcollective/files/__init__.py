"""Files here and elsewhere: a text like ``hdfs://...`` or ``s3://...`` names one that fsspec reaches.

TensorFlow itself knows no such file systems any more. So what reads and writes files does that on the local disk: what
is whole is moved to its place, and what is asked for is fetched. Importing this imports no fsspec.
"""

from __future__ import annotations

from tfcollective.files._facts import FileFacts
from tfcollective.files._places import (
    Place,
    as_place,
    delete,
    delete_tree,
    is_url,
    join,
    list_files,
    local_copy,
    local_path,
    written_whole,
)
from tfcollective.files._remote import append_tail, find_files
from tfcollective.files._workspace import Workspace

__all__ = [
    "FileFacts",
    "Place",
    "Workspace",
    "append_tail",
    "as_place",
    "delete",
    "delete_tree",
    "find_files",
    "is_url",
    "join",
    "list_files",
    "local_copy",
    "local_path",
    "written_whole",
]
