"""What the page says, read as text; how it behaves is in test_browser.py."""

import base64
import hashlib
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
import torch
from made_run import MEANINGS, edited, made_claim, made_limit, made_measurement, made_null, made_point, made_run
from refusals import refused

from remanence import releases
from remanence.experiments import Budget
from remanence.experiments.codec import encode
from remanence.experiments.folder import Run, read_run, write_run
from remanence.experiments.results import SCHEMA
from remanence.metrics import MATCHINGS, METRICS, SSIM, greedy, normalised
from remanence.report import glossary, render, verdict

SPACE, DASH = "\N{NO-BREAK SPACE}", "\N{EN DASH}"
HOSTILE = "<img src=x onerror=alert(1)>\"'&.npz"


def test_verdict_says_fraction_interval_and_chance() -> None:
    said = verdict(made_run(n=16, leak=14).results[0]).replace(SPACE, " ").replace(DASH, "-")
    fraction = "14 of 16 records were found (88 %, 95 % interval 62-98 %)"
    assert said == f"{fraction}, of which fewer than one by chance; p 5e\N{MINUS SIGN}05 for all together."
    assert verdict(made_run(n=16, leak=1).results[0]).startswith("1 of 16 records was found")


def test_verdict_of_a_result_without_the_test_names_the_rate_of_the_pooled_nulls() -> None:
    older = edited(made_run(n=16, leak=14), attack__scores__test=None, attack__scores__identification=None)
    said = verdict(older.results[0]).replace(SPACE, " ")
    assert said.endswith(", where chance finds 1 %.")
    page = render(older)
    assert "by chance; p " not in page
    assert "Ranked among" not in page


def test_nothing_found_is_not_called_safe() -> None:
    page = render(made_run(leak=0))
    assert "No record was found at this budget" in page
    assert "This is not a proof of safety" in page
    assert not re.search(r"\bsafe\b", page, re.IGNORECASE)


def test_page_of_a_run_read_back_is_the_same(tmp_path: Path) -> None:
    run = made_run(["one", "two"])
    for row in run.rows_of("two"):
        row["lpips"] = "0.25"  # a column that the other experiment does not have
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
    assert 'class="line ours c0"' in page
    assert page == render(replace(run, rows=[], images={}))


def test_rows_without_pictures() -> None:
    page = render(replace(made_run(), images={}))
    assert "Every record" in page
    assert "holds no pictures" in page
    assert "data:image" not in page


@pytest.mark.slow
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
    shown = [int(index) for index in re.findall(r'<span class="who">Record (\d+)', page)]
    scores = [float(row["ssim"]) for row in run.rows]
    order = sorted(range(n), key=lambda i: -scores[i])
    assert shown == order[:best] + order[(n - best) // 2 :][:middle] + order[::-1][:worst]
    assert len(set(shown)) == len(shown)
    assert page.count("data:image/png") == 3 * (best + middle + worst)


def test_gallery_follows_a_metric_where_lower_is_better() -> None:
    run = edited(made_run(leak=16), attack__scores__primary="mse")
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
    with refused("damaged-file"):
        render(replace(run, rows=run.rows[1:]))


def test_every_null_stands_beside_the_scores_with_its_meaning() -> None:
    page = render(made_run())
    assert "Treat this page as personal data" in page
    assert "This page is redacted" not in page
    table = page[page.index('<table class="levels">') :]
    assert [table.index(meaning) for meaning in MEANINGS.values()] == sorted(map(table.index, MEANINGS.values()))
    assert "Paired by <code>nearest_ncc</code>" in page


def test_rates_stand_with_their_interval_and_too_few_held_out_records_are_named() -> None:
    run = made_run()
    page = render(run).replace(SPACE, " ").replace("&nbsp;", " ")
    assert "too few held-out records to say" not in page
    assert page.count("88 % (95 % interval 62 % to 98 %)") == 2
    few = edited(run, attack__scores__roc__tpr_at_1_percent=None, attack__scores__roc__tpr_at_01_percent=None)
    assert render(few).count("too few held-out records to say") == 2


def test_levels_that_are_missing_are_dashes() -> None:
    metrics = {"ssim": {"mean": None, "at_1_percent": None}}
    assert f"1&nbsp;%: {DASH}" in render(edited(made_run(), attack__nulls__held_out__metrics=metrics))


def test_a_budget_is_said_next_to_the_papers() -> None:
    said = render(edited(made_run(), budget=Budget(epochs=(20_000, 1_000_000))))
    assert "20,000 epochs of 1,000,000" in said.replace(SPACE, " ")


def test_claims_say_whether_they_hold() -> None:
    page = render(made_run())
    words = ("holds", "does not hold, target missed", "other scale", "not measured")
    assert re.findall(r"<td>([a-z ,]+)</td></tr>", page[page.index("Beside the printed") :])[:4] == list(words)
    assert "Beside the printed numbers" not in render(made_run(leak=0))


def test_attack_is_a_table_of_fields_and_always_the_raw_call() -> None:
    page, call = render(made_run()), made_run().results[0].attack.call
    assert "<dt>norms</dt><dd><code>(150.0, 200.0)</code></dd>" in page
    assert f"<pre><code>{escape(call)}</code></pre>".replace("&#x27;", "&#39;") in page


@pytest.mark.parametrize("attack", ["<function attack at 0x7f>", "KKT", "a\0b", "(" * 5000, ""])
def test_attack_that_does_not_read_as_a_call_is_shown_raw(attack: str) -> None:
    page = render(edited(made_run(), attack__call=attack))
    assert f"<pre><code>{escape(attack)}</code></pre>" in page
    assert "with these settings" not in page


def test_provenance_is_complete() -> None:
    page = render(made_run(["one", "two"]))
    facts = page[page.index("Where this comes from") :]
    schema = f"<dt>schema</dt><dd>{SCHEMA}"
    for word in ("remanence demo --out demo", "0123abc", "41.3", "Linux", "2.11.0", schema, "not known"):
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


def test_everything_from_a_result_is_escaped() -> None:
    run = made_run([HOSTILE])
    metric = encode(run.results[0])["attack"]["scores"]["metrics"]["ssim"]
    texts = dict.fromkeys(("recipe", "scale", "command", "commit", "about"), HOSTILE)
    of_attack = {f"attack__{name}": HOSTILE for name in ("call", "matching", "release__kind", "release__withholds")}
    run = edited(
        run,
        **texts,
        **of_attack,
        hardware__device=HOSTILE,
        attack__release__shows={HOSTILE: HOSTILE},
        attack__release__owned=HOSTILE,
        attack__release__data=HOSTILE,
        claims=[made_claim(HOSTILE, 1.0, HOSTILE, 1.0)],
        caveats=[{"code": HOSTILE, "text": HOSTILE}],
        attack__scores__primary=HOSTILE,
        attack__scores__metrics={HOSTILE: metric},
        attack__nulls={name: made_null(HOSTILE, 0.1, HOSTILE) for name in MEANINGS},
        point=made_point(HOSTILE, HOSTILE, series=HOSTILE),
        attack__limit=made_limit(0.5, 0.1, metric=HOSTILE),
    )
    run.results.append(run.results[0])
    rows = [dict.fromkeys(row, HOSTILE) | {HOSTILE: HOSTILE} for row in run.rows]
    page = render(replace(run, rows=rows), title=HOSTILE)
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x") > 50


def test_run_without_results() -> None:
    assert "This run holds no result" in render(Run(results=[], rows=[], images={}))


def test_our_own_names_are_explained_where_they_are_used() -> None:
    shown = [value for value in vars(releases).values() if hasattr(value, "withholds")]
    assert {each.__name__ for each in shown} == glossary.RELEASES.keys()
    scored = normalised(SSIM, mean=(0.5,), std=(0.2,))
    assert {metric.name for metric in (*METRICS, scored)} == glossary.METRICS.keys()
    assert {matching.name for matching in (*MATCHINGS, greedy(scored))} == glossary.MATCHINGS.keys()
    page = render(made_run())
    assert glossary.METRICS["ssim"] in page
    assert glossary.MATCHINGS["nearest_ncc"] in page
    assert glossary.MATCHINGS["identity"] not in page
    assert glossary.METRICS["ssim"] not in render(Run(results=[made_measurement()], rows=[], images={}))


def test_what_was_released_stands_beside_each_verdict() -> None:
    page = render(made_run())
    result = page[page.index('<section class="result"') :]
    assert "Released: a trained model. Withheld: " in result[: result.index("<details")]
    verdicts = page[: page.index('<section class="result"')]
    assert "The models were trained for this page" in verdicts
    assert "can be reconstructed by whoever is shown such a release" in verdicts
    own = edited(made_run(leak=0), attack__release__kind="MyRelease")
    assert "Released: MyRelease. Withheld: " in render(own)
    assert "can be reconstructed by whoever" not in render(own)


def test_what_else_a_result_says() -> None:
    page = render(made_run(n=16)).replace(SPACE, " ")
    assert f"8 of 16 records (50 %, 95 % interval 25{DASH}75 %) came back closer (ssim)" in page
    assert "the attacker could own; of held-out records 12 % are." in page
    assert "Ranked among 1,000 held-out records" in page
    assert "comes first for 88 % of the records (by chance 0.4 %), and among the first five for 88 % (1.5 %)." in page
    assert "are recognised by pixels (7), ssim (7); exact copies: 1." in page
    assert f"The label was right for 25 % of the records (95 % interval 7.3{DASH}52 %)" in page
    assert "is right for 20 %" in page
    assert "own objective at 0.125" in page
    assert "good from 0.4" in page
    bare = render(made_run(leak=0))
    absent = ("came back closer (", "are recognised by", "The label was right", "own objective")
    assert not [words for words in absent if words in bare]
