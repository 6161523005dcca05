"""Good files are compared with what torch and safetensors read; damaged, odd and foreign ones are refused."""

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_files import entry, refused, write_safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from remanence.errors import BadModelFile
from remanence.releases.loading import load_weights, save_weights


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def conv_net() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    net(torch.rand(5, 1, 4, 4))
    return net


def tied() -> dict[str, Tensor]:
    weight = torch.rand(3, 4)
    return {"a": weight, "b": weight, "row": weight[1], "turned": weight.t(), "last": weight[:, 3:]}


GOOD: dict[str, Callable[[], Mapping[str, Tensor]]] = {
    "mlp": lambda: mlp().state_dict(),
    "conv and batch norm": lambda: conv_net().state_dict(),
    "parameters": lambda: dict(mlp().named_parameters()),
    "kinds of number": lambda: {
        str(dtype): torch.tensor([[0, 1, 1]]).to(dtype)
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool)
    },
    "scalar and empty": lambda: {"scalar": torch.tensor(3.0), "none": torch.zeros(0, 5), "ünï": torch.ones(1)},
    "nothing": lambda: {},
    "tied": tied,
}


def same(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    return list(got) == list(wanted) and all(
        g.dtype == w.dtype and torch.equal(g, w) for g, w in zip(got.values(), wanted.values(), strict=True)
    )


@pytest.mark.parametrize("case", GOOD)
def test_a_good_torch_zip_is_read_as_torch_reads_it(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, path = GOOD[case](), tmp_path / "good.pt"
    torch.save(weights, path)
    reference = torch.load(path, weights_only=True)
    monkeypatch.setattr(torch, "load", None)  # no unpickler takes part
    got = load_weights(str(path), expected=weights)
    assert same(got, {key: value.detach() for key, value in weights.items()})
    assert same(got, {key: value.detach() for key, value in reference.items()})
    assert all(type(t) is Tensor and t.is_contiguous() and not t.requires_grad for t in got.values())
    assert len({t.data_ptr() for t in got.values() if t.numel()}) == sum(t.numel() > 0 for t in got.values())


@pytest.mark.parametrize("case", GOOD)
def test_a_good_safetensors_file_is_read_as_safetensors_reads_it(case: str, tmp_path: Path) -> None:
    weights, path = GOOD[case](), tmp_path / "good"
    copies = {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in weights.items()}
    save_file(copies, path, metadata={"format": "pt"})
    assert same(in_order(load_weights(path, expected=weights)), in_order(load_file(path)))
    save_weights(path, weights)
    assert same(in_order(load_weights(path)), in_order(copies))
    assert os.listdir(tmp_path) == ["good"]


def in_order(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return dict(sorted(weights.items()))


def test_a_model_can_stand_for_what_is_expected(tmp_path: Path) -> None:
    model = conv_net()
    torch.save(model.state_dict(), tmp_path / "net.pt")
    model.load_state_dict(load_weights(tmp_path / "net.pt", expected=conv_net()))


@pytest.mark.slow
@pytest.mark.parametrize("write", [save_file, torch.save])
def test_a_truncated_file_is_refused_wherever_it_is_cut(write: Callable[..., None], tmp_path: Path) -> None:
    write({"a": torch.rand(7), "b": torch.rand(3, 3)}, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    for length in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(BadModelFile) as caught:
            load_weights(tmp_path / "cut")
        assert caught.value.code in ("empty", "unsupported-format", "damaged-file")
    refused(tmp_path / "cut", "damaged-file", "fetch it again")


@pytest.mark.parametrize("write", [save_file, torch.save])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_weight_that_is_not_finite_is_refused(
    write: Callable[..., None], value: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    weight = torch.zeros(5, 5, dtype=dtype)
    weight[3, 4] = value
    write({"fine": torch.ones(2), "layer.w": weight}, tmp_path / "odd")
    refused(tmp_path / "odd", "not-finite", "'layer.w'")


def test_a_boolean_must_be_zero_or_one(tmp_path: Path) -> None:
    header = {"mask": entry(0, 3, [3], "BOOL")}
    assert load_weights(write_safetensors(tmp_path / "mask", header, b"\0\1\1"))["mask"].tolist() == [False, True, True]
    refused(write_safetensors(tmp_path / "mask", header, b"\0\1\2"), "unsafe-file")


@pytest.mark.parametrize("write", [save_file, torch.save])
def test_another_model_is_refused_with_the_first_differences(write: Callable[..., None], tmp_path: Path) -> None:
    weights = {"0.weight": torch.ones(4, 3), **{f"extra{i}": torch.ones(1) for i in range(5)}}
    write({**weights, "0.bias": torch.ones(4, dtype=torch.int64)}, tmp_path / "other")
    message = refused(
        tmp_path / "other", "shape-mismatch", "missing: '2.weight', '2.bias';", "and 2 more", expected=mlp()
    )
    assert message.count("extra") == 3
    assert "different: '0.bias' (expected float (4,), got integer (4,))" in message
    write({key: value.t().contiguous() for key, value in weights.items() if key == "0.weight"}, tmp_path / "other")
    refused(
        tmp_path / "other", "shape-mismatch", "'0.weight' (expected float (4, 3), got float (3, 4))", expected=weights
    )


def test_weights_of_a_quantised_model_are_refused_with_the_way_out(tmp_path: Path) -> None:
    model = mlp()
    scales = {f"{name}.zero_point": torch.zeros(()) for name, layer in model.named_modules() if name}
    torch.save({**scales, "0._packed_params._packed_params": torch.ones(1)}, tmp_path / "int8.pt")
    refused(tmp_path / "int8.pt", "shape-mismatch", "quantised model", expected=model)


def test_paths_that_are_no_files_are_refused_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "empty", "empty")
    refused(tmp_path / "pipe", "wrong-type")
    refused(tmp_path / "nowhere", "missing-file", "No such file")
    refused(tmp_path, "missing-file", "Is a directory")
    refused(Path("/dev/zero"), "wrong-type")
    (tmp_path / "loop").symlink_to("loop")
    refused(tmp_path / "loop", "missing-file")
    with pytest.raises(BadModelFile):
        load_weights(f"{tmp_path}\0")  # a null byte


def test_a_link_to_a_good_file_is_followed(tmp_path: Path) -> None:
    save_weights(tmp_path / "real", {"w": torch.ones(2)})
    (tmp_path / "link").symlink_to("real")
    assert list(load_weights(tmp_path / "link")) == ["w"]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    class Shrinking(dict[str, Tensor]):  # what is expected is asked for between the index and the data
        def items(self) -> Any:
            os.truncate(path, size - 4)
            return super().items()

    for write, path in ((save_file, tmp_path / "a"), (torch.save, tmp_path / "b")):
        write({"w": torch.ones(3)}, path)
        content = path.read_bytes()
        size = len(content) if write is save_file else content.index(b"data/0") + 10
        refused(path, "damaged-file", expected=Shrinking(w=torch.ones(3)))


FORMATS: dict[str, Callable[..., None]] = {"safetensors": save_file, "torch zip": torch.save}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("seed", range(4))
def test_damage_gives_a_refusal_or_a_sound_dict_and_nothing_else(kind: str, seed: int, tmp_path: Path) -> None:
    draw, path = random.Random(seed), tmp_path / "damaged"
    weights = {"a.weight": torch.linspace(-1, 1, 12).reshape(3, 4), "n": torch.tensor(3), "half": torch.ones(3).half()}
    FORMATS[kind](weights, path)
    content = path.read_bytes()
    for _ in range(200):
        path.write_bytes(damaged(content, draw))
        try:
            got = load_weights(path, expected=weights)
        except BadModelFile:
            continue
        assert set(got) == set(weights)
        assert all(t.isfinite().all() and t.shape == weights[key].shape for key, t in got.items())


def damaged(content: bytes, draw: random.Random) -> bytes:
    broken = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(broken))
        byte = draw.choice((0, 0xFF, 0x7F, 0x80, ord("."), ord("R"), draw.randrange(256)))
        match draw.randrange(5):
            case 0:
                broken[at] ^= 1 << draw.randrange(8)
            case 1:
                broken[at] = byte
            case 2:
                del broken[at + 1 : at + draw.choice((2, 5, 100))]
            case 3:
                broken[at:at] = bytes([byte] * draw.choice((1, 8)))
            case 4:
                del broken[at + 1 :]
    return bytes(broken)
