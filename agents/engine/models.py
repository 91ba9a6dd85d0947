"""Loading a model, and further versions of its weights.

Every version is a module of its own with the base's configuration. Parameters that a version does not change are the
base's tensors, shared and never written to; those it changes are new. Nothing here touches a version that is in use, so
loading may happen in any thread while others decode.
"""

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from moonmill.agents.engine.attention import IMPLEMENTATION, Chunk, KVCache, StepPlan
from moonmill.agents.engine.folder import parts_of, problem_of
from moonmill.errors import ConfigError, EngineError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}
"""Rotary embeddings that change with the longest context in a batch, so that a token's would depend on its
neighbours."""
_CHECK_TOKENS = 12
_CHECK_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.25}
"""Largest difference of log-probabilities between our attention and the model's own. Wrong attention is off by units;
the tokens, which no text has, can make much of rounding: the model's own is off by 2e-3 for SmolLM2-135M."""


class ModelError(EngineError):
    """A folder that does not hold what it should, or a model this engine cannot run."""


def load_model(path: str, dtype: str, device: str) -> PreTrainedModel:
    """The model in a folder (or under a hub id), ready to run over slots; an adapter in a folder, merged into its base.

    Raises:
        ModelError: there is none, or its attention is not one this engine can do.
    """
    if problem := problem_of(path):
        raise ModelError(problem)
    base, adapter = parts_of(path)
    model = _load_whole(base, dtype, device)
    _use_slots(model)
    return load_version(model, adapter) if adapter else model


def _load_whole(path: str, dtype: str, device: str) -> PreTrainedModel:
    try:
        target = torch.device(device)
        torch.zeros(1, device=target)
        config = AutoConfig.from_pretrained(path)
        _refuse_unsupported(config)
        model = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=_DTYPES[dtype], attn_implementation="eager"
        )
        model.to(target).eval().requires_grad_(False)
    except ModelError:
        raise
    except Exception as e:  # transformers, safetensors and torch raise whatever they like about a folder or a device
        raise ModelError(f"cannot load the model {path} on {device}: {_first_line(e)}") from e
    return model


def load_version(base: PreTrainedModel, path: Path) -> PreTrainedModel:
    """Another version of `base` from a folder: a PEFT adapter, merged, or full weights in `model.safetensors`.

    Raises:
        ModelError: the folder holds neither, or it does not fit the base.
    """
    try:
        with torch.no_grad():
            return _load_from(base, path)
    except ModelError:
        raise
    except OSError as e:
        raise ModelError(f"cannot read weights from {path}: {e.strerror or _first_line(e)}") from e
    except Exception as e:  # peft and safetensors raise whatever they like about a folder
        raise ModelError(f"cannot load weights from {path}: {_first_line(e)}") from e


def _load_from(base: PreTrainedModel, path: Path) -> PreTrainedModel:
    if not path.is_dir():
        raise ModelError(f"the folder {path} does not exist")
    if (path / "adapter_config.json").is_file():
        return _merge_adapter(base, path)
    if (path / "model.safetensors").is_file():
        return _load_full(base, path / "model.safetensors")
    raise ModelError(f"{path} holds neither a PEFT adapter (adapter_config.json) nor full weights (model.safetensors)")


def _merge_adapter(base: PreTrainedModel, path: Path) -> PreTrainedModel:
    from peft import PeftModel

    shell = _twin(base, lambda parameter: parameter.detach())
    # Only the safe way makes a new tensor of a merged weight; the other would write into the base's.
    merged: PreTrainedModel = PeftModel.from_pretrained(shell, path).merge_and_unload(safe_merge=True)
    merged.eval().requires_grad_(False)
    return merged


def _load_full(base: PreTrainedModel, file: Path) -> PreTrainedModel:
    from safetensors.torch import load_file

    weights = load_file(file)
    twin = _twin(base, torch.empty_like)
    expected = twin.state_dict()
    tied = _tied_names(twin)
    missing = [name for name in expected if name not in weights and name not in tied]
    unknown = [name for name in weights if name not in expected]
    wrong = [n for n, w in weights.items() if n in expected and w.shape != expected[n].shape]
    for what, names in (("lacks", missing), ("has unknown", unknown), ("has of other shapes than the model", wrong)):
        if names:
            raise ModelError(f"{file} {what} {len(names)} of the model's tensors, such as {names[0]!r}")
    twin.load_state_dict(weights, strict=False)
    return twin


def _twin(base: PreTrainedModel, tensor: Callable[[Tensor], Tensor]) -> PreTrainedModel:
    """A copy of the module whose parameters hold `tensor(parameter)`; configuration and buffers are shared."""
    memo: dict[int, Any] = {id(base.config): base.config}
    memo.update((id(p), nn.Parameter(tensor(p), requires_grad=False)) for p in base.parameters())
    memo.update((id(b), b) for b in base.buffers())
    return copy.deepcopy(base, memo)


def move_weights(models: Iterable[nn.Module], place: Callable[[Tensor], Tensor]) -> None:
    """Have `place` move all parameters and buffers; those that share memory share it afterwards, too."""
    tensors = {id(t): t for model in models for t in (*model.parameters(), *model.buffers())}
    moved: dict[tuple[object, ...], Tensor] = {}
    with torch.inference_mode(False), torch.no_grad():
        for tensor in tensors.values():
            memory = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if memory not in moved:
                moved[memory] = place(tensor)
            tensor.data = moved[memory]


def _tied_names(model: nn.Module) -> set[str]:
    """Names in the state dict whose tensor stands there under another name too."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name for group in names.values() if len(group) > 1 for name in group}


def _refuse_unsupported(config: Any) -> None:
    kind = config.model_type
    other = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if other:
        raise ModelError(
            f"a {kind} model has {', '.join(sorted(other))} layers, which the embedded engine cannot do; vLLM may "
            "(engine.type: vllm)"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    if isinstance(rope, dict) and rope.get("rope_type") in _BATCH_DEPENDENT_ROPE:
        raise ModelError(
            f"this {kind} model has {rope['rope_type']} rotary embeddings; the embedded engine cannot do them"
        )


def _use_slots(model: PreTrainedModel) -> None:
    """Switch a model to attention over slots, and see on a few tokens that it still computes the same."""
    kind = model.config.model_type
    device = model.device
    tokens = torch.arange(1, _CHECK_TOKENS + 1, device=device) % model.config.get_text_config().vocab_size
    with torch.inference_mode():
        expected = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0].float().log_softmax(-1)
        try:
            model.set_attn_implementation(IMPLEMENTATION)
            actual = _over_slots(model, tokens).float().log_softmax(-1)
        except ConfigError as e:
            raise ModelError(f"the embedded engine cannot run a {kind} model: {e}") from e
        except Exception as e:  # a model that knows no exchangeable attention fails in its own way
            raise ModelError(f"the embedded engine cannot run a {kind} model: {_first_line(e)}") from e
    difference = (expected - actual).abs().max().item()
    if not difference < _CHECK_TOLERANCE[model.dtype]:
        raise ModelError(
            f"the embedded engine cannot run a {kind} model: with its attention, log-probabilities differ by "
            f"{difference:.2g}"
        )


def _over_slots(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Logits of a prompt computed in two chunks, the second of one token, as a request's are."""
    cache = KVCache(slots=2, max_length=len(tokens))
    logits = []
    for start, end in ((0, len(tokens) - 1), (len(tokens) - 1, len(tokens))):
        plan = StepPlan([Chunk(1, start, end - start)], cache, tokens.device)
        logits.append(forward(model, tokens[None, start:end], plan))
    return torch.cat(logits)


def forward(model: PreTrainedModel, ids: Tensor, plan: StepPlan, at: Tensor | None = None) -> Tensor:
    """Logits `[tokens, vocab]` of a step.

    Args:
        model: one version.
        ids: `[1, tokens]`.
        plan: where they stand.
        at: index of the tokens whose logits are wanted; None: all.
    """
    out = model(
        input_ids=ids,
        position_ids=plan.position_ids,
        use_cache=False,
        logits_to_keep=0 if at is None else at,
        plan=plan,
    )
    logits: Tensor = out.logits[0]
    return logits


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
