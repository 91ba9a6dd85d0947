"""`moonmill serve`, also called `moonmill engine serve`: an engine as a server of its own, for any OpenAI client."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from moonmill.cli.models import policy_of, settings_of
from moonmill.cli.options import json_option

_STOP_SECONDS = 10
"""How long the engine may take to end before it is killed."""


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--type",
    "engine",
    type=click.Choice(["embedded", "vllm"]),
    default="embedded",
    show_default=True,
    help="The engine; vllm wants `moonmill engine install`.",
)
@click.option("--name", help="What requests call the model; by default the folder's name.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is every one.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port to listen on; 0 takes any."
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads that compute a step."
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Requests that are answered at once; further ones wait.",
)
@click.option(
    "--max-length",
    type=click.IntRange(min=1),
    help="Longest context in tokens; by default the run's model.max_length, else the model's own.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    help="What is computed in; by default the run's model.dtype, else float32.",
)
@click.option("--device", default="cpu", show_default=True, help="What computes: cpu, cuda, cuda:0.")
@click.option("--python", default="", help="Interpreter of vLLM's environment; by default of the installed one.")
@click.option(
    "--arg", "further", multiple=True, metavar="KEY=VALUE", help="A further option of vLLM's server. May be repeated."
)
@json_option
def serve(
    model: Path,
    engine: str,
    name: str | None,
    host: str,
    port: int,
    threads: int,
    max_batch: int,
    max_length: int | None,
    dtype: str | None,
    device: str,
    python: str,
    further: tuple[str, ...],
    as_json: bool,
) -> None:
    """Serve a model to any OpenAI client.

    MODEL is a model's folder, an adapter's, or a run's, which stands for its newest checkpoint. The server runs until
    Ctrl-C and answers OpenAI's /v1/completions, /v1/chat/completions (with tools) and /v1/models.

    vLLM chats by the chat template in the model's tokenizer, where it has one, and reads calls with
    --arg enable-auto-tool-choice --arg tool-call-parser=hermes, or whatever the model's family is.
    """
    served = name or model.resolve().name
    policy, trained = policy_of(model), settings_of(model)
    click.echo(f"loading {policy} …", err=True)
    arguments = {
        "--model": policy,
        "--served-name": served,
        "--host": host,
        "--port": port,
        "--threads": threads,
        "--max-batch": max_batch,
        "--max-length": max_length or (trained and trained.max_length),
        "--dtype": dtype or (trained and trained.dtype),
        "--device": device,
    }
    log: Path | None = None
    more: list[str] = []
    if engine == "vllm":
        arguments["--python"] = _interpreter(device, python)
        arguments["--log"] = log = _new_log()
        module = "moonmill.agents.engine.vllm"
        more = [part for pair in further for part in ("--arg", pair)]
    elif python or further:
        raise click.UsageError("--python and --arg are for --type vllm")
    else:
        module = "moonmill.agents.engine"
        arguments |= {"--renderer": trained and trained.renderer, "--tool-format": trained and trained.tool_format}
    given = [part for flag, value in arguments.items() if value is not None for part in (flag, str(value))]
    command = [sys.executable, "-P", "-m", module, *given, *more, "--exit-with-stdin"]
    # The engine lives as long as the pipe to its stdin: it cannot outlive us, however we end.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            code = _attend(process, served, host, as_json)
        except KeyboardInterrupt:
            code = 0
        finally:
            _stop(process)
    if log and not code:
        log.unlink(missing_ok=True)
    click.get_current_context().exit(code)


def _attend(process: "subprocess.Popen[str]", served: str, host: str, as_json: bool) -> int:
    """Say how far the engine is and where it listens, once it does, and wait for its end."""
    assert process.stdout
    for line in process.stdout:
        said = json.loads(line)
        if "progress" in said:
            click.echo(said["progress"], err=True)
        else:
            url = f"http://{f'[{host}]' if ':' in host else host}:{said['ready']['port']}/v1"
            facts = {"url": url, "model": served, "pid": process.pid}
            click.echo(json.dumps(facts) if as_json else f"serving {served} at {url} (Ctrl-C stops)")
    return process.wait()


def _stop(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _interpreter(device: str, given: str) -> str:
    from moonmill.agents.engine.vllm_environment import interpreter_for

    return interpreter_for(device, given)


def _new_log() -> Path:
    """Where vLLM's many words go. It is named when vLLM dies, and removed when it does not."""
    with tempfile.NamedTemporaryFile(prefix="moonmill-vllm-", suffix=".log", delete=False) as log:
        return Path(log.name)
