"""What the page says of a measurement without an attack."""

import torch
from made_run import figure_json, made_claim, made_measure, made_measurement

from remanence.experiments.folder import Run
from remanence.experiments.results import Result
from remanence.report import render, verdict

SPACE = "\N{NO-BREAK SPACE}"
HOSTILE = "<img src=x onerror=alert(1)>\"'&.npz"


def alone(result: Result) -> Run:
    return Run(results=[result], rows=[], images={})


def test_verdict_of_a_measurement_is_its_measures() -> None:
    said = verdict(made_measurement()).replace(SPACE, " ")
    assert said == (
        "AUC, fixed 0.998 (95 % interval 0.990 to 1.00, chance 0.500); "
        "AUC, random 0.550 (95 % interval 0.500 to 0.600, chance 0.500); norm 12.5."
    )
    assert verdict(made_measurement(measures=[made_measure("m", 1.0)] * 9)).endswith("; and 5 more.")
    assert "Nothing was measured" in verdict(made_measurement(measures=[]))
    unknown = made_measure("AUC", 0.5) | {"value": None}
    assert verdict(made_measurement(measures=[unknown])) == "AUC: cannot be said."


def test_a_verdict_of_its_own_stands_in_the_place_of_the_measures() -> None:
    said = made_measurement(verdict="All <b>records</b> were identified.")
    assert verdict(said) == "All <b>records</b> were identified."
    page = render(alone(said))
    assert page.count('<p class="verdict">All &lt;b&gt;records&lt;/b&gt; were identified.</p>') == 2
    assert "<strong>0.998</strong>" in page


def test_the_largest_share_found_leads_the_verdict() -> None:
    names = {"difference": -0.1, "share found, KKT": 0.0, "mean": 0.1, "above 0.4": 3.0, "share found, ours": 0.72}
    measures = [made_measure(name, value) for name, value in names.items()]
    unknown = {**made_measure("share found, others", 0.0), "value": None}
    said = verdict(made_measurement(measures=[*measures, unknown]))
    assert said.startswith("share found, ours 0.720; difference ")
    assert said.endswith("; share found, KKT 0; mean 0.100; and 2 more.")


def test_a_measurement_shows_measures_figures_and_claims() -> None:
    page = render(alone(made_measurement()))
    assert "Whether one can tell that a record was trained on." in page
    assert page.count('<svg xmlns="http://www.w3.org/2000/svg" class="figure"') == 3
    assert '<strong>0.998</strong></td><td class="num">0.990 to 1.00</td><td class="num">0.500</td>' in page
    assert "<td>target reached</td>" in page
    assert "About norm." in page


def test_a_page_of_measurements_speaks_of_no_attack_and_of_no_redaction() -> None:
    page = render(alone(made_measurement()))
    for words in (
        *("An attack tried", "This page is redacted", "personal data", "Look-alike", "share found"),
        *("one attack at one budget", "whether a given person was in the data"),
    ):
        assert words not in page
    assert "Not proved here" in page


def test_pictures_of_a_measurement_are_personal_data() -> None:
    pictures = torch.zeros(20, 1, 4, 4, dtype=torch.uint8)
    run = Run(results=[made_measurement()], rows=[], images={"0/neurons": pictures, "0/<b>": pictures[:2]})
    page = render(run)
    assert page.count("data:image/png") == 12 + 2
    assert "neurons, the first 12 of 20" in page
    assert "<b>" not in page
    assert "Treat this page as personal data" in page
    hidden = render(run, redact=True)
    assert "data:image" not in hidden
    assert "Some points" not in hidden  # one point may be one record
    assert "Some lines" in hidden


def test_everything_from_a_measurement_is_escaped() -> None:
    words = dict.fromkeys(("title", "x_label", "y_label"), HOSTILE)
    series = [{**each, "name": HOSTILE} for each in figure_json()["series"]]
    result = made_measurement(
        HOSTILE,
        about=HOSTILE,
        measures=[made_measure(HOSTILE, 1.0, meaning=HOSTILE)] * 3,
        figures=[figure_json(**words, series=series)],
        claims=[made_claim(HOSTILE, 1.0, HOSTILE, 1.0)],
    )
    page = render(alone(result))
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x") > 20
