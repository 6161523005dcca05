"""Write the generated regions of the documentation: tables of fields from the code, tables of results from the JSON.

    python docs/build.py            rewrite every region between `<!-- generated: NAME -->` and `<!-- end -->`
    python docs/build.py --check    change nothing; the exit code is 1 where a region is not current

NAME is `fields MODULE.CLASS`, `recipes PAPER`, `results PAPER`, `measures PAPER/RECIPE`, `reproduction`,
`contradictions`, `headlines`, `decisions` or `layers`. The pictures are made by `docs/plots.py`; `make docs` runs both.
"""

import argparse
import ast
import dataclasses
import importlib
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from result_rows import DAGGER, RESULTS, Row, read_results, read_rows, row

from remanence.experiments.results import Result
from remanence.reproduction import STATUSES, Decided, decide, read_archive
from remanence.reproduction import Row as PaperRow
from remanence.reproduction.words import budget_words, contradiction_words, measured_words, number_words, printed_words
from remanence_recipes import RECIPES
from remanence_recipes.papers import PAPERS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), RESULTS / "README.md"])
REGION = re.compile(r"(<!-- generated: ([\w./ -]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
POOLED = f"{DAGGER} counted before the rank test: beats two pooled null levels at 1 % each"
HEADLINES = (  # released, told beforehand, the file, its experiment, the record count, the score; the README's table
    (
        "a model; all 10,001 MNIST records but one known",
        "the other records, recipe, initial weights",
        "balle2022/mnist",
        "our reconstructor",
        "found",
        "mean mse",
    ),
    (
        "one gradient of eight CIFAR-10 images",
        "batch size; the server chose the weights",
        "wang2023/cifar10",
        "tanh, batches of 8",
        "found",
        "mean psnr",
    ),
    (
        "weights alone, 500 CIFAR-10 images, weight decay",
        "number of records, equal classes, their mean",
        "buzaglo2023/figure2_binary_vs_multiclass",
        "ten classes",
        "share found, Stationarity",
        "mean SSIM, Stationarity",
    ),
    (
        "an MLP and its initial weights, 100 images",
        "recipe, number of records, equal classes",
        "tian2025/mlp_100",
        "MLP, 100 images, image scales",
        "found",
        "mean normalised_ssim",
    ),
    (
        "ResNet-18 and its initial weights, 50 images",
        "recipe, number of records, equal classes",
        "tian2025/resnet_50",
        "ResNet, 50 images",
        "found",
        "mean normalised_ssim",
    ),
)


def table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def fields(name: str) -> str:
    """Name, type, default and description of every field of a dataclass, read from its source."""
    module, _, cls = name.rpartition(".")
    found = getattr(importlib.import_module(module), cls)
    source = inspect.getsource(found)
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    rows = []
    for member in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(member, ast.AnnAssign):
            annotation = ast.unparse(member.annotation).strip("'\"")
            default = "required" if member.value is None else f"`{_default(member.value)}`"
            meaning = _comment(member, comments, source.splitlines()) or _summary(found, annotation)
            rows.append((f"`{ast.unparse(member.target)}`", f"`{annotation}`", default, meaning))
    return table(("field", "type", "default", "meaning"), iter(rows)) if rows else "It has no fields.\n"


def _comment(member: ast.AnnAssign, comments: dict[int, str], code: list[str]) -> str:
    """The comment lines above a field, and those at its end."""
    above, line = [], member.lineno - 1
    while line in comments and code[line - 1].lstrip().startswith("#"):
        above, line = [comments[line], *above], line - 1
    after = [comments[line] for line in range(member.lineno, (member.end_lineno or 0) + 1) if line in comments]
    return "; ".join(" ".join(part) for part in (after, above) if part)


def _summary(owner: type, annotation: str) -> str:
    """The first sentence about a field's type, where that is a dataclass of ours."""
    kind = vars(sys.modules[owner.__module__]).get(annotation)
    text = (inspect.getdoc(kind) or "") if dataclasses.is_dataclass(kind) else ""
    sentence, _, _ = text.replace("\n", " ").partition(". ")
    return "" if text.startswith(f"{annotation}(") else sentence.rstrip(".")


def _default(value: ast.expr) -> str:
    """The default as written; of `field(default=…)` what is inside."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        return next(ast.unparse(word.value) for word in value.keywords if word.arg and word.arg.startswith("default"))
    return ast.unparse(value)


def recipes(paper: str) -> str:
    rows = (
        (f"`{name}`", (inspect.getdoc(recipe) or "").split("\n\n")[0].replace("\n", " "))
        for name, recipe in RECIPES.items()
        if name.startswith(f"{paper}.")
    )
    return table(("recipe", "what it measures"), rows)


def decisions() -> str:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    titles = {page.name: page.read_text(encoding="utf-8").splitlines()[0].partition(": ")[2] for page in pages}
    lines = (f"- {name[:4]} [{title[:1].upper()}{title[1:]}](decisions/{name})\n" for name, title in titles.items())
    return "".join(lines)


def layers() -> str:
    """The order of imports, as the test of the layers states it."""
    for node in ast.parse((ROOT / "tests" / "test_layers.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            names = [", ".join(sorted(layer)) for layer in ast.literal_eval(node.value)]
            return textwrap.fill(" → ".join(names[:-1]), 110, initial_indent="    ", subsequent_indent="    ") + "\n"
    raise LookupError("tests/test_layers.py defines no LAYERS")


def results(paper: str) -> str:
    def cells(row: Row) -> tuple[str, ...]:
        result, name = row.result, row.file.partition("/")[2]
        device = result.hardware.device.removeprefix("NVIDIA ").removesuffix(" CPU")
        run = f"{result.seconds:,.0f} s, {device}, seed {result.seed}, `{(result.commit or '')[:7]}`"
        experiment = f"[{name}]({row.file}.json): {result.label}"
        return experiment, *_numbers(row), row.status, row.budget, run

    header = ("experiment", "quantity", "printed", "ours", "95 % interval", "chance", "status", "budget", "run")
    return table(header, (cells(row) for row in read_rows() if row.file.startswith(f"{paper}/")))


def measures(file: str) -> str:
    """The measures of every experiment of one file, a column for each; of a single experiment a row for each. Of an
    attack without measures they are the records found and the mean score."""
    found = dict(read_results())[file]

    def of(result: Result) -> list[str]:
        scores = [] if result.attack is None else ["found", f"mean {result.attack.scores.primary}"]
        return [each.name for each in result.measures] or scores

    names = list(dict.fromkeys(name for result in found for name in of(result)))

    def cells(result: Result) -> dict[str, str]:
        return {name: _cell(row(file, result, name)) for name in of(result)}

    if len(found) == 1:
        return table(("measure", found[0].label), cells(found[0]).items())
    every = [(result.label, cells(result)) for result in found]
    rows = ((label, *(shown.get(name, "not run") for name in names)) for label, shown in every)
    return table(("experiment", *names), rows)


def _cell(row: Row) -> str:
    """A value with its interval and its chance level."""
    around = "; ".join(filter(None, (row.interval, f"chance {row.chance}" if row.chance else "")))
    return f"{row.quantity.ours}{f' ({around})' * bool(around)}"


def _numbers(row: Row) -> tuple[str, ...]:
    return row.quantity.name, row.printed, row.quantity.ours, row.interval, row.chance


@cache
def decided() -> list[Decided]:
    """Every claim of the papers, decided by the committed results."""
    return decide(PAPERS, read_archive(RESULTS, RECIPES))


def reproduction() -> str:
    """Every claim of the papers with its status, as `remanence reproduce` prints it."""
    header = (
        "where",
        "claim",
        "printed",
        "ours (95 % interval)",
        "chance",
        "seeds",
        "budget",
        "status",
        "recipe",
        "min",
    )
    parts = [f"{_counted(decided())}.\n"]
    for paper in PAPERS:
        mine = [each for each in decided() if each.row.paper == paper.name]
        rows = (_cells(each.row) for each in mine)
        parts.append(f"\n**{paper.title}.** {_counted(mine)}.\n\n{table(header, rows)}")
    return "".join(parts)


def _counted(some: list[Decided]) -> str:
    counts = Counter(each.row.status for each in some)
    return f"{len(some)} claims: " + ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])


def _cells(row: PaperRow) -> tuple[str, ...]:
    return (
        row.where,
        row.claim,
        printed_words(row),
        measured_words(row),
        number_words(row.chance),
        ", ".join(map(str, row.seeds)),
        budget_words(row),
        row.status,
        f"`{row.recipe}`",
        f"{row.minutes:g}",
    )


def contradictions() -> str:
    """A paragraph for every claim that our results contradict."""
    return "\n".join(
        f"- **{each.row.paper}, {each.row.where}.** {reason.says} {contradiction_words(reason, each.row)} "
        f"*What decides:* {reason.decides}\n"
        for each in decided()
        if each.row.status == "contradicted" and (reason := each.claim.contradiction)
    )


def _explained(text: str) -> str:
    """The table, and what a dagger in it means."""
    return f"{text}\n{POOLED}.\n" if DAGGER in text else text


def headlines() -> str:
    """A few results for the README, with the attack's page."""
    files = dict(read_results())

    def line(release: str, told: str, file: str, label: str, found: str, score: str) -> tuple[str, ...]:
        result = next(result for result in files[file] if result.label == label)
        first, second = row(file, result, found), row(file, result, score)
        attack = f"[`{first.attack}`](docs/methods/{first.page}.md)"
        name = re.sub(r"mean |,.*", "", score)
        shown = {"mse": "MSE", "psnr": "PSNR, dB", "normalised_ssim": "SSIM, normalised"}.get(name, name)
        ours, dagger = first.quantity.ours.removesuffix(DAGGER), DAGGER * first.quantity.ours.endswith(DAGGER)
        if " of " not in ours:  # a fraction of the images that the first column counts
            records = int(re.findall(r"(\d+) (?:CIFAR-10 )?images", release)[0])
            ours = f"{round(float(ours) * records)} of {records}"
        return (
            release,
            told,
            attack,
            f"{ours}{dagger} ({first.chance})",
            f"{shown}: {second.quantity.ours} ({second.chance})",
            second.printed or "no number",
        )

    header = (
        "what was released",
        "told beforehand",
        "attack",
        "found (chance)",
        "mean score (chance)",
        "the paper prints",
    )
    return _explained(table(header, (line(*each) for each in HEADLINES)))


def region(name: str) -> str:
    kind, _, argument = name.partition(" ")
    makers: dict[str, Callable[..., str]] = {
        "fields": fields,
        "recipes": recipes,
        "results": results,
        "reproduction": reproduction,
        "contradictions": contradictions,
        "measures": measures,
        "decisions": decisions,
        "layers": layers,
        "headlines": headlines,
    }
    return makers[kind](argument) if argument else makers[kind]()


def rebuilt(text: str) -> str:
    """The page with every generated region written again."""
    return REGION.sub(lambda match: match[1] + region(match[2]) + match[4], text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail where a page is not current")
    check = parser.parse_args().check
    stale = [page for page in PAGES if rebuilt(old := page.read_text(encoding="utf-8")) != old]
    for page in stale:
        print(page.relative_to(ROOT), "is not current" if check else "rewritten", file=sys.stderr)
        if not check:
            page.write_text(rebuilt(page.read_text(encoding="utf-8")), encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
