"""The docs tell the truth: pages made from the source are up to date, links lead somewhere, the README's code runs."""

import ast
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LIBRARY = (ROOT / "docs" / "library.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")])


def test_the_configuration_page_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_configuration.py"))["page"]()
    assert (ROOT / "docs" / "configuration.md").read_text() == made, "run: python docs/make_configuration.py"


def test_every_key_of_the_config_is_explained() -> None:
    rows = re.findall(r"^\| `\w+` \|.*$", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE)
    assert len(rows) > 60
    assert [row for row in rows if not row.endswith("|") or not row.split("|")[-2].strip()] == []


@pytest.fixture
def make_tables(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page: Callable[[Path], str] = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))["page"]
    return page


@pytest.mark.parametrize("page", ["runs.md", "environments.md"])
def test_the_tables_are_up_to_date(page: str, make_tables: Callable[[Path], str]) -> None:
    path = ROOT / "docs" / page
    text = path.read_text()
    assert text == make_tables(path), "run: python docs/make_tables.py"
    rows = re.findall(r"^\| `\w+` \|.*$", text, re.MULTILINE)
    assert rows
    assert [row for row in rows if not row.split("|")[-2].strip()] == []


def test_every_field_of_the_logs_is_in_the_page_about_runs() -> None:
    from moonmill.trainer.records import Event, StepRecord
    from moonmill.types import Rollout

    text = (ROOT / "docs" / "runs.md").read_text()
    for struct in (StepRecord, Event, Rollout):
        table = text.partition(f":{struct.__name__} -->")[2].partition("<!-- end -->")[0]
        assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(struct.__struct_encode_fields__)


def test_the_attributes_are_those_of_the_base_class() -> None:
    from moonmill import MultiTurnEnv

    table = (ROOT / "docs" / "environments.md").read_text().partition(":MultiTurnEnv -->")[2]
    rows = re.findall(r"^\| `(\w+)` \| `[^`]+` \| `([^`]+)` \|", table.partition("<!-- end -->")[0], re.MULTILINE)
    settable = {name for name in MultiTurnEnv.__annotations__ if hasattr(MultiTurnEnv, name) and name[0] != "_"}
    assert {name: ast.literal_eval(default) for name, default in rows} == {
        name: getattr(MultiTurnEnv, name) for name in settable
    }


def test_every_kind_of_event_is_explained() -> None:
    calls = [
        node
        for file in (ROOT / "trainer").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("event", "_note")
    ]
    said = [c for call in calls for c in ast.walk(call.args[0]) if isinstance(c, ast.Constant)]
    kinds = {c.value for c in said if isinstance(c.value, str)}
    section = (ROOT / "docs" / "runs.md").read_text().partition("## `events.jsonl`")[2].partition("\n## ")[0]
    assert len(kinds) > 10
    assert {kind for kind in kinds if f"`{kind}`" not in section} == set()


def test_every_metric_of_the_learner_is_explained() -> None:
    code = "".join((ROOT / "trainer" / name).read_text() for name in ("learner.py", "metrics.py", "policy_update.py"))
    names = set(re.findall(r'metrics\["(\w+)"\]|^ +"(\w+)": |_timed\("(\w+)"\)', code, re.MULTILINE))
    metrics = {metric or item or f"seconds_{phase}" for metric, item, phase in names}
    section = (ROOT / "docs" / "runs.md").read_text().partition("### `metrics`")[2].partition("\n## ")[0]
    assert len(metrics) > 20
    assert {metric for metric in metrics if f"`{metric}`" not in section} == set()


def test_every_reason_of_a_drop_is_explained() -> None:
    parts = ("buffer", "controller", "filters")
    buffer, controller, filters = ((ROOT / "trainer" / f"{part}.py").read_text() for part in parts)
    found = re.findall(r'_drop_unit\(key, "(\w+)"\)|drain\("(\w+)"\)|return f?"(\w+)', buffer)
    found += [(reason,) for reason in re.findall(r'drain\("(\w+)"\)', controller)]
    reasons = {reason for groups in found for reason in groups if reason}
    wanted = {"stale", "run_ended", "group_incomplete", "failed", "unscored", "no_actions", "rolled_back"}
    assert reasons == wanted
    page = (ROOT / "docs" / "runs.md").read_text()
    assert {reason for reason in reasons if not re.search(rf"^\| `{reason}[`:]", page, re.MULTILINE)} == set()
    [row] = re.findall(r"^\| `filter: …` \|.*", page, re.MULTILINE)
    kinds = {kind for groups in re.findall(r"{PREFIX}(\w+)|'(too_\w+)'", filters) for kind in groups if kind}
    assert kinds == {"zero_std", "overlong", "too_hard", "too_easy"}
    assert {kind for kind in kinds if f"`{kind}`" not in row} == set()


def test_the_page_about_runs_tells_which_rollouts_were_trained_on(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "calculator-demo"
    run.mkdir(parents=True)
    rollout = {"env": "e", "task": {"prompt": "p"}, "status": "finished", "stop_reason": "answered", "reward": 1.0}
    (run / "rollouts.jsonl").write_text("".join(json.dumps({"id": name, **rollout}) + "\n" for name in "abc"))
    last = {"step": None, "version": 1, "dropped": [{"rollout": "b", "reason": "run_ended"}]}
    lines = ({"step": 9, "version": 1, "consumed": ["a"]}, last)
    (run / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "runs.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["a 1.0 9 None", "b 1.0 None run_ended", "c 1.0 None None"]


def test_a_preset_is_what_the_configuration_page_writes_out() -> None:
    from moonmill import plain_yaml
    from moonmill.config_io import make_config
    from moonmill.trainer.algorithms.presets import PRESETS, resolve

    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "configuration.md").read_text(), re.DOTALL)
    written = {block["algorithm"]["preset"]: block for block in (plain_yaml.parse(b, "page").data for b in blocks)}
    assert written.keys() == PRESETS.keys()
    for name, block in written.items():
        data = {"env": {"id": "e-v0"}, "model": {"path": "p"}, **block}
        algorithm = make_config(data, source="page", folder=ROOT).algorithm
        assert resolve(algorithm, 64) == PRESETS[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_environment_is_played_by_hand_as_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    environment, by_hand = blocks[:2]
    (tmp_path / "unit_converter.py").write_text(environment)
    (tmp_path / "by_hand.py").write_text(by_hand + "\nprint(observation[0].content, terminated)")
    done = subprocess.run([sys.executable, "by_hand.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["26.098", "False"]


@pytest.mark.parametrize(("page", "name"), [("README.md", "UnitConverter"), ("docs/environments.md", "Safe")])
def test_nothing_is_found_in_the_first_environment_of_a_page(page: str, name: str, tmp_path: Path) -> None:
    first = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[0]
    (tmp_path / "first.py").write_text(first)
    command = [sys.executable, "-m", "moonmill", "envs", "check", f"first.py:{name}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        f"first.py:{name}: 19 of 19 checks found nothing; 0 errors, 0 warnings",
    )


def test_the_readme_config_is_valid(tmp_path: Path) -> None:
    from moonmill.config_io import load_config

    blocks = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "calculator.yaml").write_text(blocks[0])
    assert load_config(tmp_path / "calculator.yaml").env.id == "calculator-v0"


def test_the_authoring_guide_runs_as_it_stands(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "environments.md").read_text(), re.DOTALL)
    (tmp_path / "guide.py").write_text("\n\n".join(blocks) + "\nprint(rollout.status, rollout.stop_reason)\n")
    done = subprocess.run(
        [sys.executable, "-c", "import guide"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["finished", "stopped"]


def test_the_built_in_environments_are_in_their_page() -> None:
    from moonmill.registry import _registered

    ours = {spec.id for spec in _registered.values() if "moonmill.envs.library" in str(spec.entry_point)}
    assert set(re.findall(r"^\| `([\w-]+-v\d)` \|", LIBRARY, re.MULTILINE)) == ours


def test_documents_and_questions_of_ones_own_are_as_the_page_shows_them(tmp_path: Path) -> None:
    from moonmill.registry import make

    files = ("documents.jsonl", "questions.jsonl")
    for name, block in zip(files, re.findall(r"```json\n(.*?)```", LIBRARY, re.DOTALL), strict=True):
        (tmp_path / name).write_text(block)
    corpus, questions = (str(tmp_path / name) for name in files)
    [task] = make("search-v0", corpus=corpus, questions=questions).tasks("eval")
    assert (task.answer, task.level) == (["Galileo", "Galileo Galilei"], "easy")


def test_the_users_of_the_page_about_built_in_environments_answer(served: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", LIBRARY, re.DOTALL)
    player = """
print(observation[0].content)
model_env = ModelBooking(levels=[1])
model_env.reset(seed=0)
print(model_env.step("For which day?")[2], model_env.user_turns)
"""
    lines = run_against(served, "\n".join((*blocks, player))).splitlines()
    assert re.fullmatch(r"I am in a hurry\. (I take size|It should be a) \d\d\.", lines[0])
    assert lines[-1].endswith(" 1")


@pytest.mark.sandboxes
def test_the_guide_to_sandboxes_judges_as_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "environments.md").read_text(), re.DOTALL)
    [environment] = [block for block in blocks if "class Scripts" in block]
    player = """
import anyio
from moonmill import Message, Taskset, ToolCall
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent

task = Taskset(Scripts, "train", seed=0).task(0)
right, wrong = (f"print(int(input()) * {task.prompt.split()[-4]}{more})" for more in ("", " + 1"))
for text in (right, wrong, "while True: pass", "#" * 200_000, None):
    def act(messages):
        calls = [("write", {"path": "solution.py", "text": text}), ("python", {"path": "solution.py", "stdin": "3"})]
        made = sum(m.role == "assistant" for m in messages)
        if made == 2 or text is None or text[0] in "w#" and made == 1:
            return Message("assistant", "done")
        return Message("assistant", tool_calls=(ToolCall("1", *calls[made]),))
    rollout = anyio.run(lambda: EpisodeRunner("s", Scripts, ScriptedAgent(act)).run(task, id="0", seed=0))
    print(rollout.status, rollout.reward)
"""
    (tmp_path / "guide.py").write_text(environment.replace("timeout=10", "timeout=2") + player)
    done = subprocess.run([sys.executable, "guide.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["finished 1.0", *["finished 0.0"] * 4]


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The API of `moonmill serve examples/calculator/policy`."""
    command = [sys.executable, "-m", "moonmill", "serve", "examples/calculator/policy", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


def run_against(url: str, code: str) -> str:
    """What the code of a page prints, with the address it names replaced."""
    assert "http://127.0.0.1:8000/v1" in code
    code = code.replace("http://127.0.0.1:8000/v1", url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_a_chat_agent_plays_against_a_served_policy(served: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "environments.md").read_text(), re.DOTALL)
    [code] = [block for block in blocks if "ChatAgent" in block]
    lines = run_against(served, code).splitlines()
    assert len(lines) == 3
    assert all(re.fullmatch(r"\S+ \S+ [01]\.0 None", line) for line in lines), lines


def test_the_readme_example_of_openais_client_gets_a_tool_call(served: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    [code] = [block for block in blocks if "OpenAI" in block]
    assert "name='calculate'" in run_against(served, code)


def test_the_readme_example_of_curl_gets_a_tool_call(served: str) -> None:
    [body] = re.findall(r"curl http://127\.0\.0\.1:8000/v1/chat/completions .* -d '(.*?)'", README, re.DOTALL)
    answer = httpx.post(f"{served}/chat/completions", json=json.loads(body), timeout=60).json()
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "calculate"


def test_the_promises_of_sandboxes_are_those_of_the_check() -> None:
    from moonmill.sandboxes.testing import PROMISES

    section = (ROOT / "docs" / "sandboxes.md").read_text().partition("## What holds on this host")[2]
    table = section.partition("| promise |")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `([\w ]+)` \| (.*) \|$", table, re.MULTILINE)) == PROMISES


def test_the_guide_to_agents_plays_its_environments(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "agents.md").read_text(), re.DOTALL)
    player = """
import anyio
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs import Taskset

for kind in (Emma, Script):
    task = Taskset(kind, "train", seed=0).task(0)
    runner = EpisodeRunner("emma", kind, ScriptedAgent(lambda messages: "Jane Austen"))
    rollout = anyio.run(lambda: runner.run(task, id="0", seed=0))
    print(rollout.status, rollout.reward, rollout.turns, rollout.metrics)
"""
    (tmp_path / "agent.py").write_text(
        "import openai, os, sys\n"
        "openai.OpenAI().chat.completions.create(\n"
        "    model=os.environ['OPENAI_MODEL'], messages=[{'role': 'user', 'content': sys.stdin.read()}]\n"
        ")\n"
    )
    (tmp_path / "emma.py").write_text("\n\n".join([*blocks, player]))
    done = subprocess.run([sys.executable, "emma.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["finished 1.0 2 {}", "finished 1.0 1 {'exit_code': 0.0}"]
