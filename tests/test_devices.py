"""An explicit choice of device is honoured or refused, never replaced; the global random state is left alone."""

import pytest
import torch

from transformer_lib import devices, pick_device


def test_without_a_choice_a_gpu_or_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device() == torch.device("cpu"), "Apple's GPU only when asked for"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device() == torch.device("cuda")


def test_an_explicit_cpu_never_asks_cuda(monkeypatch):
    def fail(*_):
        raise AssertionError("a CUDA function was called")

    for name in ("is_available", "device_count"):
        monkeypatch.setattr(torch.cuda, name, fail)
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device(torch.device("cpu")) == torch.device("cpu")


def test_a_named_gpu_is_honoured_or_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda:1") and pick_device("cuda") == torch.device("cuda")
    with pytest.raises(ValueError, match=r"'cuda:2'.*2 CUDA GPUs"):
        pick_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"'cuda'.*0 CUDA GPUs"):
        pick_device("cuda")


def test_apples_gpu_is_used_only_after_it_agreed_with_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="'mps'"):
        pick_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    checked = []
    monkeypatch.setattr(devices, "check_against_cpu", checked.append)
    assert pick_device("mps") == torch.device("mps") == checked[0]

    def disagree(_):
        raise RuntimeError("other numbers")

    monkeypatch.setattr(devices, "check_against_cpu", disagree)
    with pytest.raises(RuntimeError, match="other numbers"):
        pick_device("mps")


@pytest.mark.parametrize("name", ["gpu", "", "cuda0", "meta", "cpu:x", 3.5, "xpu"])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(ValueError, match=r"device.*use .*'cpu'") as refusal:
        pick_device(name)
    assert repr(name) in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_self_check_accepts_the_cpu_and_finds_wrong_numbers(monkeypatch):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    devices.check_against_cpu(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), state), "training afterwards draws what it would have drawn"
    with pytest.raises(RuntimeError, match=r"other numbers.*difference"):
        devices.check_against_cpu(torch.device("cpu"), tolerance=-1.0)
