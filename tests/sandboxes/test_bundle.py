"""The supervisor is one program for any Python from 3.9 on, that imports next to nothing."""

import ast
import subprocess
import sys

from moonmill.sandboxes.bundle import source


def test_it_is_written_for_old_pythons() -> None:
    ast.parse(source(), feature_version=(3, 9))


def test_it_imports_only_what_starts_quickly() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", "-c", source()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "marshal" in imported or "posix" in imported
    assert not imported & {"typing", "enum", "re", "contextlib", "collections", "traceback", "warnings", "subprocess"}
