"""`remanence audit`: files of one's own in, an answer, a folder and an exit code out."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from command_line import Call, assert_refused
from torch import nn
from torch.nn.functional import cross_entropy

from remanence.auditing.answer.report import schema
from remanence.data import load

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.hidden(x.flatten(1)).relu())
"""
SOURCES = ("--data", "private.npz", "--held-out", "others.npz")
UPDATE = ("audit", "update", "nets_of_mine:Net", "--before", "before.pt", "--after", "after.pt", *SOURCES)
FAST = ("--attack", "FirstLayer", "--budget", "30s")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network, digits, the weights before and after one step on the private ones, and after one on others."""
    (tmp_path / "nets_of_mine.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    scope: dict[str, type[nn.Module]] = {}
    exec(NET, scope)
    digits, order = load("digits"), torch.randperm(1797, generator=torch.Generator().manual_seed(3))
    private, others, foreign = (digits.take(order[a:b]) for a, b in ((0, 8), (8, 608), (700, 708)))
    for name, data in (("private", private), ("others", others)):
        np.savez(tmp_path / f"{name}.npz", x=data.x.numpy(), y=data.y.numpy())
    torch.manual_seed(0)
    net = scope["Net"]()
    torch.save(net.state_dict(), tmp_path / "before.pt")
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    for name, data in (("after", private), ("null", foreign)):
        net.load_state_dict(before)
        net.zero_grad()
        cross_entropy(net(data.x), data.y).backward()
        after = {key: p.detach() - 0.1 * p.grad for key, p in net.named_parameters() if p.grad is not None}
        torch.save({"state_dict": {f"module.{key}": p for key, p in after.items()}}, tmp_path / f"{name}.pt")
    return tmp_path


LOCAL = ("--local", "sgd lr=0.1 epochs=1 batch=full")


def test_a_planted_leak_fails_the_gate_and_leaves_a_valid_answer(call: Call, files: Path) -> None:
    said = call(*UPDATE, *LOCAL, *FAST, "--fail-if", "found>0", "--out", "run", "--json")
    assert said.code == 3
    assert "not passed: found>0" in said.err
    answer = json.loads(said.out)
    jsonschema.validate(answer, schema())
    assert answer["severity"] == "many-records"
    assert [(row["name"], row["found"], row["records"]) for row in answer["attacks"]] == [("FirstLayer", 8, 8)]
    assert json.loads((files / "run" / "report.json").read_text()) == answer
    assert call("report", "run").code == 0


def test_dumps_of_numpy_clients_are_audited_as_state_dicts_are(call: Call, files: Path) -> None:
    """A list in the order of the state dict, and differences by name."""
    before = torch.load(files / "before.pt", weights_only=True)
    after = torch.load(files / "after.pt", weights_only=True)["state_dict"]
    np.savez(files / "before.npz", *[value.numpy() for value in before.values()])
    differences = {name: (after[f"module.{name}"] - value).numpy() for name, value in before.items()}
    np.savez(files / "after.npz", data_kind="WEIGHT_DIFF", **differences)
    dumped = [each.replace(".pt", ".npz") for each in UPDATE]
    said = call(*dumped, *LOCAL, *FAST, "--out", "run", "--json")
    assert said.code == 0
    assert [(row["name"], row["found"]) for row in json.loads(said.out)["attacks"]] == [("FirstLayer", 8)]


def test_an_update_of_other_records_is_inconclusive_and_passes_no_gate(call: Call, files: Path) -> None:
    null = [each.replace("after.pt", "null.pt") for each in UPDATE]
    said = call(*null, *LOCAL, *FAST, "--fail-if", "found>0", "--fail-if", "severity>=membership", "--json")
    assert (said.code, json.loads(said.out)["severity"]) == (3, "inconclusive")
    assert "not passed: severity>=membership: the severity is inconclusive: what the attacks assume" in said.err
    assert "not passed: found>0: what the attacks assume" in said.err


def test_too_few_held_out_records_for_any_list_pass_no_gate(call: Call, files: Path) -> None:
    """Until as many are held out as it says."""
    others = np.load(files / "others.npz")
    np.savez(files / "few.npz", x=others["x"][:24], y=others["y"][:24])
    few = [each.replace("others.npz", "few.npz") for each in UPDATE]
    defended = torch.load(files / "after.pt", weights_only=True)["state_dict"]
    noise = torch.Generator().manual_seed(0)
    before = torch.load(files / "before.pt", weights_only=True)
    for key, value in defended.items():  # too much for exact copies
        step = value - before[key.removeprefix("module.")]
        value += 0.5 * step.square().mean().sqrt() * torch.randn(value.shape, generator=noise)
    torch.save(defended, files / "after.pt")
    said = call(*few, *LOCAL, *FAST, "--fail-if", "found>0", "--json")
    answer = json.loads(said.out)
    assert said.code == 3
    assert answer["together"]["smallest_list"] > answer["together"]["records"]
    assert answer["severity"] in ("inconclusive", "membership")
    assert "24 held-out records are too few for any list of the 8 private records" in said.err
    needed = answer["together"]["needed"]
    assert f"hold out {needed} or more" in answer["verdict"]
    enough = [i for label in range(10) for i in np.nonzero(others["y"] == label)[0][:needed]]
    np.savez(files / "few.npz", x=others["x"][enough], y=others["y"][enough])
    assert "too few for any list" not in call(*few, *LOCAL, *FAST, "--json", "--force").err


def test_an_update_on_embeddings_is_audited_in_their_own_units(call: Call, files: Path) -> None:
    """Rows whose box the files say: the model takes them as they are, and the page shows them as tables."""
    generator, scope = torch.Generator().manual_seed(0), dict[str, type[nn.Module]]()
    exec(NET, scope)
    net, bounds = scope["Net"](), np.array([-np.inf, np.inf])
    net.load_state_dict(torch.load(files / "before.pt"))
    for name, count in (("private", 6), ("others", 400)):
        x, y = 2 * torch.randn(count, 64, generator=generator), torch.arange(count) % 10
        np.savez(files / f"{name}.npz", x=x.numpy(), y=y.numpy(), bounds=bounds)
        if name == "private":
            cross_entropy(net(x), y).backward()
            after = {key: p.detach() - 0.1 * p.grad for key, p in net.named_parameters() if p.grad is not None}
            torch.save(after, files / "after.pt")
            private = x
    said = call(*UPDATE, *LOCAL, *FAST, "--out", "run", "--json")
    assert said.code == 0
    answer = json.loads(said.out)
    jsonschema.validate(answer, schema())
    assert [(row["name"], row["found"], row["records"]) for row in answer["attacks"]] == [("FirstLayer", 6, 6)]
    assert answer["release"]["shows"]["bounds"] == "-inf to inf"
    page = (files / "run" / "report.html").read_text()
    assert "column 64" in page or "column 1<" in page
    assert "data:image/png" not in page
    shown = [row for row in private if all(f"{value:.3f}" in page for value in row[:3].tolist())]
    assert shown
    np.savez(files / "others.npz", x=np.full((3, 64), np.inf), y=np.arange(3), bounds=bounds)
    assert_refused(call(*UPDATE, *LOCAL, *FAST), "must be finite")


def test_a_sweep_is_typed_as_several_words_and_answers_in_a_sentence(call: Call, files: Path) -> None:
    sweep = ("--sweep", "clients=1,2", "noise=0,100")
    said = call(*UPDATE, *LOCAL, "--attack", "FirstLayer", "--budget", "20s", *sweep, "--out", "run", "--json")
    assert said.code == 0
    answer = json.loads(said.out)
    jsonschema.validate(answer, schema())
    rows = answer["countermeasures"]
    assert [(row["name"], row["value"]) for row in rows] == [("baseline", None), ("clients", 2), ("noise", 100)]
    assert [row["together"]["found"] for row in rows] == [8, 8, 0]
    assert answer["what_would_help"].startswith("Noise of 100 would hide the records")
    assert answer["what_would_help"] in (files / "run" / "report.html").read_text()


def test_what_is_no_sweep_is_refused_before_anything_runs(call: Call, files: Path) -> None:
    assert_refused(call(*UPDATE, *LOCAL, "--sweep", "client=2"), "unknown axis of a sweep `client`", "`clients`")
    assert_refused(call(*UPDATE, *LOCAL, "--sweep", "clients=2", "nois=1"), "`nois`", "`noise`")
    assert_refused(call(*UPDATE, *LOCAL, "--sweep", "noise=-1"), "0 or more")
    assert_refused(call(*UPDATE, "--sweep", "noise=1"), "--local")
    assert_refused(call(*UPDATE, "--local", "sgd lr=0.1", "--sweep", "noise=1"), "lacks epochs, batch_size")
    model = ("audit", "model", "nets_of_mine:Net", "--weights", "after.pt", *SOURCES)
    assert call(*model, "--sweep", "noise=1").code == 2
    lines = ['kind = "update"', 'model = "nets_of_mine:Net"', 'data = "private.npz"', 'held_out = "others.npz"']
    lines += ['before = "before.pt"', 'after = "after.pt"', 'local = "sgd lr=0.1 epochs=1 batch=full"']
    (files / "audit.toml").write_text("\n".join([*lines, 'sweep = "noise=1 cilp=1"']))
    assert_refused(call("audit", "audit.toml"), "`cilp`", "`clip`")
    (files / "audit.toml").write_text("\n".join([*lines, "sweep = 3"]))
    assert_refused(call("audit", "audit.toml"), "`sweep` must be a text")
    assert not (files / "runs").exists()


@pytest.mark.slow
def test_a_second_audit_compares_with_the_first(call: Call, files: Path) -> None:
    null = [each.replace("after.pt", "null.pt") for each in UPDATE]
    assert call(*null, *LOCAL, *FAST, "--out", "old").code == 0
    formats = ("--junit", "audit.xml", "--sarif", "audit.sarif", "--summary", "audit.md")
    said = call(*UPDATE, *LOCAL, *FAST, "--out", "new", "--compare", "old/report.json", *formats)
    assert said.code == 3
    assert "FirstLayer" in said.err
    assert all((files / name).stat().st_size for name in formats[1::2])
    assert_refused(call(*UPDATE, *LOCAL, *FAST, "--out", "new"), "holds another audit")


@pytest.mark.slow
def test_redacted_nothing_but_counts_is_left_anywhere(call: Call, files: Path) -> None:
    before = {path.name for path in files.iterdir()}
    search = ("--attack", "GradientMatching", "--budget", "6s")
    said = call(*UPDATE, *LOCAL, *search, "--redact", "--json", "--out", "run", "--junit", "ci/audit.xml")
    assert said.code == 0
    assert {path.name for path in (files / "run").iterdir()} == {"report.json", "record.json", "report.html"}
    assert {path.name for path in files.iterdir()} - before - {"__pycache__"} == {"run", "ci"}  # no search is left
    answer = json.loads(said.out)
    assert answer == json.loads((files / "run" / "report.json").read_text())
    assert "Labels of the batch" not in [figure["title"] for figure in answer["figures"]]


@pytest.mark.slow
def test_an_interrupted_audit_leaves_its_searches_beside_the_folder(
    call: Call, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("remanence.auditing.pipeline.count_found", interrupt)
    search = ("--attack", "GradientMatching", "--budget", "6s")
    assert call(*UPDATE, *LOCAL, *search, "--redact", "--out", "run").code == 130
    assert not list((files / "run").glob("*"))
    assert list((files / "run.searches").glob("search-*"))


def test_an_audit_from_a_file(call: Call, files: Path) -> None:
    assert call("audit", "init").out.strip() == "audit.toml"
    assert_refused(call("audit", "init"), "`audit.toml` exists")
    (files / "audit.toml").write_text(
        'kind = "update"\nmodel = "nets_of_mine:Net"\nbefore = "before.pt"\nafter = "after.pt"\n'
        'data = "private.npz"\nheld_out = "others.npz"\nlocal = "sgd lr=0.1 epochs=1 batch=full"\n'
        'budget = "30s"\nattacks = ["FirstLayer"]\nout = "run"\nfail_if = ["found>0"]\n'
    )
    said = call("audit", "audit.toml", "--json")
    assert (said.code, json.loads(said.out)["attacks"][0]["found"]) == (3, 8)


@pytest.mark.parametrize(
    "line", ['seed = "x"', "seed = true", 'redact = "no"', "model = 3", 'normalize = ["a"]', "attacks = [1]"]
)
def test_values_of_another_kind_in_a_file_are_refused(call: Call, files: Path, line: str) -> None:
    given = {"kind": "update", "model": "nets_of_mine:Net", "before": "before.pt", "after": "after.pt"}
    sources = {"data": "private.npz", "held_out": "others.npz"}
    name = line.partition(" ")[0]
    lines = [f'{key} = "{value}"' for key, value in (given | sources).items() if key != name]
    (files / "audit.toml").write_text("\n".join([*lines, line]))
    assert_refused(call("audit", "audit.toml"), f"`{name}` must be")
    assert_refused(call("audit", "nowhere.toml"), "nowhere.toml", "audit init")


def test_the_template_names_every_setting(call: Call, files: Path) -> None:
    from dataclasses import fields

    from remanence.auditing.request import Request
    from remanence.auditing.request_file import TEMPLATE, Wanted

    assert not [each.name for kind in (Request, Wanted) for each in fields(kind) if f"{each.name} = " not in TEMPLATE]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--before", "nowhere.pt"], ["nowhere.pt"]),
        (["--budget", "soon"], ["`--budget` must be a duration"]),
        (["--fail-if", "fund>0"], ["fund"]),
        (["--attack", "FirstLayr"], ["unknown attack `FirstLayr`"]),
        (["--local", "sdg lr=0.1"], ["sgd"]),
        (["--normalize", "0.5"], ["normalize"]),
        (["--data", "nothing.npz"], ["nothing.npz"]),
        (["--device", "cuda:99"], ["CUDA devices"]),
        (["--compare", "nowhere"], ["nowhere"]),
    ],
    ids=lambda given: str(given[0]),
)
def test_what_is_wrong_is_said(call: Call, files: Path, change: list[str], words: list[str]) -> None:
    said = call(*UPDATE, *change)
    assert said.code == 2
    assert not said.out
    assert all(word in said.err.splitlines()[-1] for word in words)


def test_a_table_that_the_model_does_not_take_is_refused_with_its_features(call: Call, files: Path) -> None:
    for name, first in (("private", 0), ("others", 200)):
        rows = [f"{i},{i % 50},{'abc'[i % 3]},{i % 2}" for i in range(first, first + 200)]
        (files / f"{name}.csv").write_text("\n".join(["number,age,city,outcome", *rows]) + "\n")
    tables = ("--data", "private.csv", "--held-out", "others.csv", "--label", "outcome")
    said = call("audit", "model", "nets_of_mine:Net", "--weights", "before.pt", *tables)
    assert said.code == 2
    assert not said.out
    refusal = said.err.splitlines()[-1]
    assert refusal.startswith("error: ")
    assert "age, city (3 features: a, b, c)" in refusal
    assert "`number` was left out" in refusal


def test_how_a_table_was_encoded_is_said_before_it_is_audited(call: Call, files: Path) -> None:
    for name, first in (("private", 0), ("others", 200)):
        rows = [f"P{i},{i % 50 or ''},{'abc'[i % 3]},{'mf'[i // 3 % 2]},{i % 2}" for i in range(first + 1, first + 201)]
        (files / f"{name}.csv").write_text("\n".join(["id,age,city,sex,outcome", *rows]) + "\n")
    (files / "table_net.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.Linear(6, 2)\n")
    torch.save(nn.Linear(6, 2).state_dict(), files / "table.pt")
    tables = ("--data", "private.csv", "--held-out", "others.csv", "--label", "outcome")
    said = call("audit", "model", "table_net:make", "--weights", "table.pt", *tables, "--budget", "2s")
    [note] = [line for line in said.err.splitlines() if line.startswith("note: in private.csv")]
    for words in (
        "`id` was left out",
        "`age` had 8 missing values",
        "`city` became 3 categories",
        "6 features, in this order: age, age missing, city (3 features: a, b, c), sex (1 where it is m)",
    ):
        assert words in note


def test_weights_that_are_swapped_are_warned_of(call: Call, files: Path) -> None:
    swapped = [{"before.pt": "after.pt", "after.pt": "before.pt"}.get(each, each) for each in UPDATE]
    said = call(*swapped, *FAST, "--json")
    answer = json.loads(said.out)
    assert "swapped" in said.err
    assert "preflight-warning" in [caveat["code"] for caveat in answer["caveats"]]
    assert answer["severity"] in ("some-records", "many-records") or "swapped" in answer["advice"][0]
