"""Log-probabilities in chunks: those of all logits at once, with their gradients, whatever a model's head does."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
)

from moonmill.agents.engine.sampling import processed_logprobs
from moonmill.config import LoraConfig, ModelConfig
from moonmill.trainer import logprobs
from moonmill.trainer.attention import PACKED
from moonmill.trainer.lora import Adapter
from moonmill.trainer.models import Packed, action_logprobs, precision
from moonmill.types import Sampling
from tests.trainer.conftest import VOCAB
from tests.trainer.test_architectures import FAMILIES, SHAPE, packed, turns, with_attention

HEADS: dict[str, Callable[[], PreTrainedModel]] = {
    **{name: make for name, (make, _) in FAMILIES.items()},
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "soft cap": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, head_dim=8, final_logit_softcapping=2.0)),
    "scaled up": lambda: CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=3.0)),
    "scaled down": lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=4.0)),
    "bias": lambda: PhiForCausalLM(PhiConfig(**SHAPE)),
    "by another name": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, n_positions=64, initializer_range=0.2)
    ),
}
BFLOAT16, CPU = ModelConfig("none", dtype="bfloat16"), torch.device("cpu")
EVERYTHING = Sampling(temperature=1.3, top_p=0.8, top_k=9)


class Odd(LlamaForCausalLM):
    """Its logits depend on more than the hidden states: no token is likely to come again at once."""

    def forward(self, input_ids: Tensor, logits_to_keep: Tensor | int = 0, **others: object) -> object:
        out = super().forward(input_ids=input_ids, **others)
        out.logits = out.logits.scatter_add(-1, input_ids.unsqueeze(-1), torch.full_like(out.logits[..., :1], -3.0))
        if isinstance(logits_to_keep, Tensor):
            out.logits = out.logits[:, logits_to_keep]
        return out


@pytest.fixture(params=list(HEADS))
def policy(request: pytest.FixtureRequest) -> PreTrainedModel:
    return made(HEADS[str(request.param)])


def made(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(11)
    model = with_attention(make().eval(), PACKED)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def at_once(model: PreTrainedModel, batch: Packed, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """From all logits of the micro-batch, as it stands in the books."""
    sampled = batch.batch.sampled
    logits = model(**batch.inputs, logits_to_keep=batch.batch.before).logits[0]
    rows = processed_logprobs(logits, sampling.temperature, sampling.top_p, sampling.top_k, keep=sampled)
    entropy = torch.stack([-(row[row > -99].exp() * row[row > -99]).sum() for row in rows])
    return rows.gather(-1, sampled.unsqueeze(-1)).squeeze(-1), entropy


def gradients(model: PreTrainedModel, of: tuple[Tensor, Tensor], entropy: float) -> list[Tensor]:
    """Of a loss in which every token has a weight of its own."""
    weights = torch.linspace(-1, 2, len(of[0]))
    model.zero_grad(set_to_none=True)
    torch.autograd.backward((weights * (of[0] + entropy * of[1] if entropy else of[0])).sum())
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("sampling", [Sampling(), EVERYTHING], ids=["plain", "truncated"])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_chunks_give_what_all_logits_at_once_give(
    policy: PreTrainedModel, rows: int, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logprobs, "CHUNK", rows * VOCAB)
    batch = packed(turns())
    expected = at_once(policy, batch, sampling)
    expected_gradients = gradients(policy, expected, 0.0)
    found = action_logprobs(policy, batch, sampling)
    assert not found[1].requires_grad
    differences = [
        float((a - b).abs().max()) for a, b in zip(gradients(policy, found, 0.0), expected_gradients, strict=True)
    ]
    assert max(differences) < 1e-6 * max(float(g.abs().max()) for g in expected_gradients)
    logprobs_off, entropy_off = (float((a - b).detach().abs().max()) for a, b in zip(found, expected, strict=True))
    assert logprobs_off < 1e-6 * float(expected[0].detach().abs().max())
    assert entropy_off < 2e-6


@pytest.mark.parametrize("sampling", [Sampling(), EVERYTHING], ids=["plain", "truncated"])
def test_the_entropy_has_its_gradient_where_that_is_asked_for(
    policy: PreTrainedModel, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logprobs, "CHUNK", 5 * VOCAB)
    batch = packed(turns())
    expected = gradients(policy, at_once(policy, batch, sampling), 0.3)
    found = gradients(policy, action_logprobs(policy, batch, sampling, entropy_grad=True), 0.3)
    largest = max(float(g.abs().max()) for g in expected)
    assert max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)) < 2e-6 * largest


def test_a_row_does_not_depend_on_those_beside_it(policy: PreTrainedModel, monkeypatch: pytest.MonkeyPatch):
    whole = action_logprobs(policy, packed(turns()), EVERYTHING)[0]
    monkeypatch.setattr(logprobs, "CHUNK", 3 * VOCAB)
    # Matrices of another height are multiplied in another order: to the last bits of numbers of about ten.
    assert torch.allclose(action_logprobs(policy, packed(turns()), EVERYTHING)[0], whole, atol=1e-6, rtol=1e-6)


def test_an_adapter_is_reached_through_chunks(monkeypatch: pytest.MonkeyPatch):
    model = made(HEADS["soft cap"])
    adapter = Adapter(model, LoraConfig(r=4, alpha=8), "owner/base", 0)
    with torch.no_grad():
        for parameter in adapter.parameters:
            parameter.add_(0.05)
    expected = gradients(model, at_once(model, packed(turns()), Sampling()), 0.0)
    monkeypatch.setattr(logprobs, "CHUNK", 5 * VOCAB)
    found = gradients(model, action_logprobs(model, packed(turns()), Sampling()), 0.0)
    assert len(found) == len(adapter.parameters)
    largest = max(float(g.abs().max()) for g in expected)
    assert max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)) < 1e-6 * largest


def test_a_head_that_needs_more_than_hidden_states_keeps_its_full_logits(capsys: pytest.CaptureFixture[str]):
    model = made(lambda: Odd(LlamaConfig(**SHAPE)))
    batch = packed(turns())
    for _ in range(2):
        assert torch.equal(action_logprobs(model, batch, Sampling())[0], at_once(model, batch, Sampling())[0])
    told = capsys.readouterr().err
    assert told == "Odd makes logits in a way of its own: all logits of a micro-batch are kept at once\n"


def test_a_model_is_let_go_of_when_nobody_has_it_any_more():
    before = len(logprobs._heads)
    model = made(HEADS["llama"])
    action_logprobs(model, packed(turns()), Sampling())
    assert len(logprobs._heads) == before + 1
    del model
    assert len(logprobs._heads) == before


def test_in_16_bits_log_probabilities_are_still_computed_in_32(monkeypatch: pytest.MonkeyPatch):
    """A softmax in 16 bits would be off by 1e-2."""
    monkeypatch.setattr(logprobs, "CHUNK", 5 * VOCAB)
    model = made(HEADS["llama"])
    batch = packed(turns())
    with precision(BFLOAT16, CPU):
        logits = model(**batch.inputs, logits_to_keep=batch.batch.before).logits[0]
        found, entropy = action_logprobs(model, batch, Sampling())
        torch.autograd.backward(found.sum())
    assert logits.dtype == torch.bfloat16
    assert found.dtype == entropy.dtype == torch.float32
    expected = logits.double().log_softmax(-1).gather(-1, batch.batch.sampled.unsqueeze(-1)).squeeze(-1)
    assert float((found - expected).detach().abs().max()) < 1e-5
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_in_16_bits_an_update_counts_at_once():
    """Autocast would go on with its copies of the weights for as long as its context lasts: a whole learner step."""
    model, batch = made(HEADS["llama"]), packed(turns())
    with precision(BFLOAT16, CPU):
        before = action_logprobs(model, batch, Sampling())[0]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        after = action_logprobs(model, batch, Sampling())[0]
    with precision(BFLOAT16, CPU):
        assert torch.equal(after, action_logprobs(model, batch, Sampling())[0])
    assert not torch.equal(after, before)


MEMORY = """
import resource, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from moonmill.trainer.attention import PACKED
from moonmill.trainer.models import Packed, action_logprobs
from moonmill.trainer.packing import pack
from moonmill.types import Sampling
from tests.trainer.conftest import action, observation, rollout

torch.set_num_threads(1)
vocabulary, rollouts, acted = 262_144, 32, 128
config = LlamaConfig(vocab_size=vocabulary, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                     num_attention_heads=1, tie_word_embeddings=True)
model = LlamaForCausalLM(config).eval()
model.set_attn_implementation(PACKED)
(batch,) = pack([rollout(observation(1), action(*range(2, 2 + acted))) for _ in range(rollouts)], 10**6)
assert len(batch.actions) == 4096
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
logprobs, entropy = action_logprobs(model, Packed(batch, PACKED, torch.device("cpu")), Sampling())
forward = peak()
torch.autograd.backward(logprobs.sum())
print(forward - before, peak() - before, float(logprobs.mean()))
"""


def test_thousands_of_tokens_of_the_largest_vocabulary_fit_into_little_memory():
    """262,144 × 4,096 logits are 4 GiB, once. The bound is 1.25 GiB, forward and backward, most of it a chunk's."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    forward, both, mean = map(float, done.stdout.split())
    assert mean == pytest.approx(-12.48, abs=0.1)  # log(1/262144): the weights are random
    assert forward < both < 1280
