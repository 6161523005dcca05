from remanence.results.folder import Row, Run, check_writable, read_records, read_run, replace_file, write_run
from remanence.results.record import as_pixels, images, record, rows
from remanence.results.schema import SCHEMA, Record, parse_records

__all__ = [
    "SCHEMA",
    "Record",
    "Row",
    "Run",
    "as_pixels",
    "check_writable",
    "images",
    "parse_records",
    "read_records",
    "read_run",
    "record",
    "replace_file",
    "rows",
    "write_run",
]
