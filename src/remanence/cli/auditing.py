"""What every audit of the command line shares: options as a request has them, files that are written, the gate."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from remanence.cli.interruption import exit_code
from remanence.cli.options import command_line, print_path
from remanence.errors import MAX_MESSAGE, BadInput, printable

if TYPE_CHECKING:
    from remanence.auditing.request import Request
    from remanence.auditing.request_file import Wanted

GATE_FAILED = 3


def parsed(normalize: str | None, attack: list[str] | None, budget: str) -> dict[str, Any]:
    """The fields of a request that the command line gives as text."""
    from remanence.auditing.request_file import numbers, seconds

    return {
        "normalize": numbers(normalize, argument="--normalize") if normalize else None,
        "attacks": tuple(attack) if attack else None,
        "budget": seconds(budget, argument="--budget"),
    }


def wanted_files(
    out: Path | None,
    name: str,
    fail_if: list[str] | None,
    compare: Path | None,
    junit: Path | None,
    sarif: Path | None,
    summary: Path | None,
    *,
    redact: bool,
) -> "Wanted":
    from remanence.auditing.request_file import Wanted

    def text(path: Path | None) -> str | None:
        return None if path is None else str(path)

    return Wanted(
        out=str(out or Path("runs") / name),
        fail_if=tuple(fail_if or ()),
        compare=text(compare),
        junit=text(junit),
        sarif=text(sarif),
        summary=text(summary),
        redact=redact,
    )


def run_audit(request: "Request", wanted: "Wanted", *, force: bool, as_json: bool) -> None:
    """Carry the request out, write what is wanted, print the answer; exit code 3 where a gate is not passed."""
    from remanence.auditing.answer.formats import write_formats
    from remanence.auditing.answer.gate import compare, failures, parse_condition
    from remanence.auditing.answer.report import Report
    from remanence.auditing.answer.saved import load_answer, redacted
    from remanence.auditing.attempts.resuming import searches_of
    from remanence.auditing.request import run_request
    from remanence.disk import check_writable, one_process
    from remanence.progress import say

    assert wanted.out is not None
    folder = Path(wanted.out)
    for condition in wanted.fail_if:
        parse_condition(condition)
    earlier = Report(answer=load_answer(wanted.compare)) if wanted.compare else None
    for option in ("junit", "sarif", "summary"):
        if (file := getattr(wanted, option)) and not Path(file).exists():
            check_writable(Path(file).parent, option=f"--{option}")
    searches = searches_of(folder)
    try:
        with one_process(folder), redirect_stdout(sys.stderr):
            if (folder / "report.json").exists() and not force:
                rmtree(searches, ignore_errors=True)  # of that audit, if it was killed at its very end
                message = f"`{folder}` holds another audit: choose another folder with `--out`, or give `--force`"
                raise BadInput(message, code="conflict", argument="--out")
            report = run_request(request, command=command_line(), store=searches)
            report = redacted(report) if wanted.redact else report
            if not folder.exists():
                say(f"note: `{folder}` vanished and is made again")
            report.save(folder)
            rmtree(searches, ignore_errors=True)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where it stopped", file=sys.stderr)
        raise SystemExit(exit_code()) from None
    failed = failures(report, wanted.fail_if)
    worse = compare(earlier, report) if earlier else []
    write_formats(report.answer, wanted, failed, worse)
    print(json.dumps(report.to_json(), indent=1) if as_json else report)
    if not as_json:
        print_path(folder / "report.html")
    for reason in (*failed, *worse):
        print(f"not passed: {printable(reason, MAX_MESSAGE)}", file=sys.stderr)
    if failed or worse:
        raise SystemExit(GATE_FAILED)
