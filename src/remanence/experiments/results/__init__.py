from remanence.experiments.results.check import parse_records
from remanence.experiments.results.folder import (
    Row,
    Run,
    check_writable,
    read_records,
    read_run,
    redacted,
    replace_file,
    write_run,
)
from remanence.experiments.results.record import as_pixels, images, record, rows
from remanence.experiments.results.schema import SCHEMA, FigureRecord, Record, SeriesRecord

__all__ = [
    "SCHEMA",
    "FigureRecord",
    "Record",
    "Row",
    "Run",
    "SeriesRecord",
    "as_pixels",
    "check_writable",
    "images",
    "parse_records",
    "read_records",
    "read_run",
    "record",
    "redacted",
    "replace_file",
    "rows",
    "write_run",
]
