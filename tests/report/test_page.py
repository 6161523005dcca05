"""What the page says, read as text; how it behaves is in test_browser.py."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch
from made_run import MEANINGS, made_claim, made_figure, made_limit, made_point, made_run, made_study

from remanence.errors import BadInput
from remanence.report import render, verdict
from remanence.results import SCHEMA, Record, Run, parse_records, read_run, write_run

SPACE, DASH = "\N{NO-BREAK SPACE}", "\N{EN DASH}"
HOSTILE = "<img src=x onerror=alert(1)>\"'&.npz"


def changed(run: Run, **fields: Any) -> Run:
    """`run` with fields of its first record replaced."""
    return replace(run, records=[{**run.records[0], **fields}, *run.records[1:]])  # type: ignore[typeddict-item]


def with_scores(run: Run, **fields: Any) -> Run:
    return changed(run, scores=run.records[0]["scores"] | fields)


def test_verdict_says_share_interval_and_chance() -> None:
    said = verdict(made_run(n=16, leak=14).records[0]).replace(SPACE, " ").replace(DASH, "-")
    assert said == "14 of 16 records were found (88 %, 95 % interval 62-98 %) where chance finds 1 %."


def test_verdict_of_one_record() -> None:
    assert verdict(made_run(n=16, leak=1).records[0]).startswith("1 of 16 records was found")


def test_nothing_found_is_not_called_safe() -> None:
    page = render(made_run(leak=0))
    assert "No record was found at this budget" in page
    assert "This is not a proof of safety" in page
    assert not re.search(r"\bsafe\b", page, re.IGNORECASE)


def test_verdict_without_an_interval() -> None:
    found = {"count": 0, "share": None, "low": None, "high": None, "fpr": 0.01}
    assert "No record was found" in render(with_scores(made_run(), found=found))


def test_page_of_a_run_read_back_is_the_same(tmp_path: Path) -> None:
    run = made_run(["one", "two"])
    for row in run.rows_of("two"):
        row["lpips"] = "0.25"  # a column that the other cell does not have
    write_run(tmp_path, run)
    assert render(read_run(tmp_path)) == render(run)


@pytest.mark.parametrize("shape", [(3, 8, 8), (20,)])
def test_redacted_page_has_counts_and_curves_only(shape: tuple[int, ...]) -> None:
    run = made_run(shape=shape)
    page = render(run, redact=True)
    assert "This page is redacted" in page
    assert "data:image" not in page
    assert "Every record" not in page
    assert "Record 0" not in page
    assert "14 of 16 records were found" in page
    assert 'class="curve"' in page
    assert page == render(replace(run, rows=[], images={}))


def test_page_with_records_says_that_it_is_personal_data() -> None:
    page = render(made_run())
    assert "Treat this page as personal data" in page
    assert "This page is redacted" not in page


def test_rows_without_pictures() -> None:
    page = render(replace(made_run(), images={}))
    assert "Every record" in page
    assert "holds no pictures" in page
    assert "data:image" not in page


def test_page_of_a_thousand_records_can_be_mailed() -> None:
    run = made_run(n=1000, shape=(3, 32, 32), leak=400)
    noise = torch.randint(0, 256, (1000, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    page = render(replace(run, images=dict.fromkeys(run.images, noise)))  # noise: the worst a PNG can meet
    assert len(page.encode()) < 5_000_000
    assert page.count("<tr><td") == 1000


@pytest.mark.parametrize(
    ("n", "best", "middle", "worst"), [(1, 1, 0, 0), (5, 3, 0, 2), (16, 8, 0, 8), (24, 12, 0, 12), (100, 12, 12, 12)]
)
def test_gallery_shows_the_best_the_middle_and_the_worst_once(n: int, best: int, middle: int, worst: int) -> None:
    run = made_run(n=n, leak=n)
    page = render(run)
    shown = [int(place) for place in re.findall(r'<span class="who">Record (\d+)', page)]
    scores = [float(row["ssim"]) for row in run.rows]
    order = sorted(range(n), key=lambda i: -scores[i])
    assert shown == order[:best] + order[(n - best) // 2 :][:middle] + order[::-1][:worst]
    assert len(set(shown)) == len(shown)
    assert page.count("data:image/png") == 3 * (best + middle + worst)


def test_gallery_follows_a_metric_where_lower_is_better() -> None:
    run = with_scores(made_run(leak=16), primary="mse")
    shown = re.findall(r'<span class="who">Record (\d+)', render(run))
    assert int(shown[0]) == min(range(16), key=lambda i: float(run.rows[i]["mse"]))
    assert "lower is better" in render(run)


def test_record_without_a_match_shows_no_picture_of_it() -> None:
    page = render(made_run(n=10, leak=2))  # record 8 has no candidate
    assert page.count("data:image/png") == 3 * 10 - 1
    assert page.count("no match</span>") == 1
    assert "no score" in page


def test_table_rows_are_shown_as_values() -> None:
    run = made_run(n=30, shape=(20,))
    page = render(run)
    assert "data:image" not in page
    assert "The first 12 of 20 features are shown" in page
    assert len(re.findall(r'<span class="who">Record', page)) == 3 * 6
    best = max(range(30), key=lambda i: float(run.rows[i]["ssim"] or 0))
    cells = "".join(f'<td class="num">{value:.3f}</td>' for value in run.images["0/truth"][best, :12].tolist())
    assert f'<tr><th scope="row">truth</th>{cells}</tr>' in page


def test_unequal_rows_and_pictures_are_refused() -> None:
    run = made_run()
    with pytest.raises(BadInput, match=r"has 15 rows in scores\.csv and 16 in images"):
        render(replace(run, rows=run.rows[1:]))


def test_every_null_stands_beside_the_scores_with_its_meaning() -> None:
    page = render(made_run())
    table = page[page.index('<table class="levels">') :]
    assert [table.index(meaning) for meaning in MEANINGS.values()] == sorted(map(table.index, MEANINGS.values()))
    assert "Paired by <code>nearest_ncc</code>" in page


def test_too_few_null_scores_are_named() -> None:
    run = made_run()
    roc = run.records[0]["scores"]["roc"]
    assert "too few null scores to say" not in render(run)
    page = render(with_scores(run, roc=roc | {"tpr_at_1_percent": None, "tpr_at_0.1_percent": None}))
    assert page.count("too few null scores to say") == 2


def test_levels_that_are_missing_are_dashes() -> None:
    run = made_run()
    nulls = {name: {"meaning": "None.", "count": 0, "metrics": {}} for name in MEANINGS}
    assert f"1&nbsp;%: {DASH}" in render(changed(run, nulls=nulls))


def test_claims_say_whether_they_hold() -> None:
    page = render(made_run())
    words = ("holds", "does not hold, target missed", "other scale", "not measured")
    assert re.findall(r"<td>([a-z ,]+)</td></tr>", page[page.index("Beside the printed") :])[:4] == list(words)
    assert "Beside the printed numbers" not in render(made_run(leak=0))


def test_attack_is_a_table_of_fields_and_always_the_raw_call() -> None:
    page = render(made_run())
    assert "<dt>slopes</dt><dd><code>(150.0, 200.0)</code></dd>" in page
    assert f"<pre><code>{escape(made_run().records[0]['attack'])}</code></pre>".replace("&#x27;", "&#39;") in page


@pytest.mark.parametrize("attack", ["<function attack at 0x7f>", "KKT", "a\0b", "(" * 5000, ""])
def test_attack_that_does_not_read_as_a_call_is_shown_raw(attack: str) -> None:
    page = render(changed(made_run(), attack=attack))
    assert f"<pre><code>{escape(attack)}</code></pre>" in page
    assert "with these settings" not in page


def test_provenance_is_complete() -> None:
    page = render(made_run(["one", "two"]))
    facts = page[page.index("Where this comes from") :]
    for word in (
        "remanence demo --out demo",
        "0123abc",
        "41.3",
        "Linux",
        "2.11.0",
        f"<dt>schema</dt><dd>{SCHEMA}",
        "not known",
    ):
        assert word in facts


def test_policy_names_the_hashes_of_what_is_inlined() -> None:
    page = render(made_run())
    policy = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)[0].replace("&#39;", "'")
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert not re.search(r"\sstyle=|\son\w+=", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))


def test_everything_from_a_record_is_escaped() -> None:
    run = made_run([HOSTILE])
    record = run.records[0]
    texts = dict.fromkeys(("recipe", "scale", "command", "commit", "attack", "matching"), HOSTILE)
    run = changed(
        run,
        **texts,
        hardware={HOSTILE: HOSTILE},
        release={
            "kind": HOSTILE,
            "shows": {HOSTILE: HOSTILE},
            "withholds": HOSTILE,
            "owned": HOSTILE,
            "data": HOSTILE,
            "records": HOSTILE,
        },
        claims=[dict.fromkeys(record["claims"][0], HOSTILE)],
        caveats=[{"code": HOSTILE, "text": HOSTILE}],
        scores=record["scores"] | {"primary": HOSTILE, "metrics": {HOSTILE: record["scores"]["metrics"]["ssim"]}},
        nulls={name: {"meaning": HOSTILE, "count": HOSTILE, "metrics": {}} for name in MEANINGS},
        point={"axis": HOSTILE, "value": HOSTILE, "series": HOSTILE, "log": False},
        limit=made_limit(0.5, 0.1) | {"metric": HOSTILE},
    )
    run.records.append(run.records[0])
    rows = [dict.fromkeys(row, HOSTILE) | {HOSTILE: HOSTILE} for row in run.rows]
    page = render(replace(run, rows=rows), title=HOSTILE)
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x") > 50


def test_run_without_records() -> None:
    assert "This run holds no result" in render(Run(records=[], rows=[], images={}))


def alone(record: Record) -> Run:
    return Run(records=[record], rows=[], images={})


def together(values: Sequence[Any], axis: str = "epsilon", **fields: Any) -> Run:
    """Cells along an axis, the mean of each a tenth more than that of the one before."""
    run = made_run([f"cell {value}" for value in values])
    for i, (record, value) in enumerate(zip(run.records, values, strict=True)):
        record["point"] = made_point(axis, value)
        record["scores"]["metrics"]["ssim"]["mean"] = 0.1 * (i + 1)
        record["claims"] = [made_claim("Mean SSIM", 0.05, "figure 1", 0.1)]
        record.update(fields)  # type: ignore[typeddict-item]
    return run


def test_made_records_are_records() -> None:
    run = together([1.0, 10.0], limit=made_limit(0.1, 0.2))
    records = [*made_run(["one", "two"]).records, made_study(), *run.records]
    assert parse_records(json.dumps(records), where="here") == records


def test_verdict_of_a_study_is_its_measures() -> None:
    said = verdict(made_study()).replace(SPACE, " ")
    assert said == (
        "AUC, fixed 0.998 (95 % interval 0.990 to 1.00, chance 0.500); "
        "AUC, random 0.550 (95 % interval 0.500 to 0.600, chance 0.500); norm 12.5."
    )
    many = {**made_study(), "measures": made_study()["measures"] * 3}
    assert verdict(many).endswith("; and 5 more.")  # type: ignore[arg-type]
    assert "Nothing was measured" in verdict({**made_study(), "measures": []})


def test_a_study_shows_measures_figures_and_claims() -> None:
    page = render(alone(made_study()))
    assert "Whether one can tell that a record was trained on." in page
    assert page.count('<svg xmlns="http://www.w3.org/2000/svg" class="figure"') == 3
    assert '<strong>0.998</strong></td><td class="num">0.990 to 1.00</td><td class="num">0.500</td>' in page
    assert "<td>target reached</td>" in page
    assert "About norm." in page


def test_a_page_of_studies_speaks_of_no_attack_and_of_no_redaction() -> None:
    page = render(alone(made_study()))
    for words in ("An attack tried", "This page is redacted", "personal data", "Look-alike", "share found"):
        assert words not in page


def test_pictures_of_a_study_are_personal_data() -> None:
    pictures = torch.zeros(20, 1, 4, 4, dtype=torch.uint8)
    run = Run(records=[made_study()], rows=[], images={"0/neurons": pictures, "0/<b>": pictures[:2]})
    page = render(run)
    assert page.count("data:image/png") == 12 + 2
    assert "neurons, the first 12 of 20" in page
    assert "<b>" not in page
    assert "Treat this page as personal data" in page
    hidden = render(run, redact=True)
    assert "data:image" not in hidden
    assert "Some points" not in hidden  # one point may be one record
    assert "Some lines" in hidden


def test_everything_from_a_study_is_escaped() -> None:
    study = made_study(HOSTILE)
    words = dict.fromkeys(("title", "x_label", "y_label"), HOSTILE)
    series = [{**each, "name": HOSTILE} for each in made_figure()["series"]]
    study |= {
        "about": HOSTILE,
        "measures": [{**measure, "name": HOSTILE, "meaning": HOSTILE} for measure in study["measures"]],
        "figures": [made_figure(**words, series=series)],
        "claims": [made_claim(HOSTILE, 1.0, HOSTILE, 1.0)],
    }
    page = render(alone(study))
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x") > 20


def test_cells_on_an_axis_are_drawn_together() -> None:
    page = render(together([10.0, 1.0, 100.0]))
    assert "Mean ssim against epsilon" in page
    section = page[page.index("The cells side by side") : page.index("How to read this page")]
    assert [name in section for name in ("mean ssim", "nearest neighbour", "mean image", "printed")] == [True] * 4
    numbers = section[section.index("The numbers") : section.index("</details>")]
    assert re.findall(r'<th scope="row">([\d.]+)</th><td class="num">([\d.]+)', numbers) == [
        ("1", "0.200"),
        ("10", "0.100"),
        ("100", "0.300"),
    ]
    assert section.count('href="#cell-') == 3
    assert "The cells side by side" not in render(together([1.0]))


def test_cells_over_texts_are_bars_and_other_axes_other_figures() -> None:
    run = together(["ReLU", "ELU"], axis="activation")
    run.records.extend(together([1.0, 2.0]).records)
    page = render(replace(run, rows=[], images={}))
    assert "Mean ssim against activation" in page
    assert "Mean ssim against epsilon" in page
    assert page.count('class="bar ours c0"') == 2


def test_levels_that_differ_between_series_are_drawn_for_each() -> None:
    run = together([1.0, 2.0])
    for name, record in zip(("ELU", "ReLU"), run.records, strict=True):
        record["point"] = made_point("epsilon", 1.0, series=name)
    assert ">nearest neighbour</text>" in render(run)
    run.records[1]["nulls"]["nearest_neighbour"]["metrics"]["ssim"]["mean"] = 0.9
    page = render(run)
    assert ">nearest neighbour, ReLU</text>" in page
    assert ">nearest neighbour</text>" not in page


def test_the_table_of_cells_has_a_dash_for_what_is_not_known() -> None:
    run = made_run(["one", "two"])  # the second has no count of closer records and nothing printed
    section = render(run)[: render(run).index("How to read this page")]
    assert f'<td class="num">0{SPACE}%</td><td class="num">{DASH}</td><td class="num">{DASH}</td></tr>' in section
    assert f'<td class="num">50{SPACE}%</td><td class="num">0.62</td></tr>' in section


@pytest.mark.parametrize(
    ("success", "bound", "words"), [(0.1, 0.2, ""), (0.21, 0.2, "though no further"), (0.5, 0.2, "there is a bug")]
)
def test_success_above_the_limit_is_flagged(success: float, bound: float, words: str) -> None:
    page = render(together([1.0, 10.0], limit=made_limit(success, bound)))
    assert "what privacy allows" in page
    assert f"can do so more than 20{SPACE}% of the time" in page
    assert page.count(words or "Above the limit") == (0 if not words else 4)  # two cells, each above and in its section
    assert ("mark flagged" in page) is bool(words)


def test_what_else_a_record_says_is_told() -> None:
    page = render(made_run(n=16)).replace(SPACE, " ")
    assert f"8 of 16 records (50 %, 95 % interval 25{DASH}75 %) came back closer (ssim)" in page
    assert f"The label was right for 25 %, 95 % interval 7.3{DASH}52 % of the records" in page
    assert "is right for 20 %" in page
    assert "own objective at 0.125" in page
    assert "good from 0.4" in page
    bare = render(made_run(leak=0))
    assert not [words for words in ("came back closer (", "The label was right", "own objective") if words in bare]
