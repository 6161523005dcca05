"""The answer of an audit: report, severity, page, record for the file, gate, formats for CI systems."""
