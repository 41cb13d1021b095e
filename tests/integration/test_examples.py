"""Every example, run as its README says, from the project's root."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.zookeeper import free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STEELYARD = ("-c", "from steelyard.cli import main; main()")


class Shell:
    """Runs Python in the project's root, with a registry of its own as the user's default one."""

    def __init__(self, runtime: Path) -> None:
        self._environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}

    def output(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def serving(self, *arguments: str) -> Iterator[None]:
        """A provider that is registered; ended as a user would, and it must end well."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            self._wait_for_a_node(process)
            yield
        finally:
            process.terminate()
            output, _ = process.communicate(timeout=30)
        assert process.returncode == 0, output

    @contextlib.contextmanager
    def printing(self, *arguments: str) -> Iterator[str]:
        """A program that serves once it has printed a line; that line. Ended without a word."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            yield process.stdout.readline()
        finally:
            process.kill()
            process.communicate()

    def _wait_for_a_node(self, process: subprocess.Popen[str]) -> None:
        give_up_at = time.monotonic() + 60
        while time.monotonic() < give_up_at:
            assert process.poll() is None, process.communicate()[0]
            if '"address"' in self.output(*STEELYARD, "nodes", "--json"):
                return
        pytest.fail("nothing was registered within a minute")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    tmp_path.chmod(0o700)
    return Shell(tmp_path)


def test_ctr(shell: Shell) -> None:
    with shell.serving("-m", "examples.ctr.provider"):
        assert shell.output("-m", "examples.ctr.consumer").splitlines()[:2] == [
            "clicks: [0.912 0.052]",
            "   user 7 starts at -0.30",
        ]


def test_ctr_by_the_command_line_alone(shell: Shell) -> None:
    with shell.serving(*STEELYARD, "serve", "examples.ctr.model:CtrModel", "--tag", "pool=ads"):
        assert "pool=ads" in shell.output(*STEELYARD, "nodes")
        reply = shell.output(*STEELYARD, "call", "ads.Ctr.predict", "--json", "[7, [0.1, 0.2, 0.3, 0.4]]")
        assert reply.startswith("[0.67")


def test_digits(shell: Shell) -> None:
    with shell.serving(*STEELYARD, "serve", "examples.digits.model:DigitModel"):
        output = shell.output("-m", "examples.digits.consumer")
    right = re.match(r"(\d+) of 200 right\n", output)
    assert right, output
    assert int(right[1]) > 180
    assert "refused: 8 x 8 pixels, please, not (2, 2)" in output


def test_security(shell: Shell, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    shell.output("-m", "examples.security.certificates", str(keys))
    with shell.serving("-m", "examples.security.provider", str(keys)):
        lines = shell.output("-m", "examples.security.consumer", str(keys)).splitlines()
        assert lines[:4] == [
            "desk.bank.example: balance 1250",
            "desk.bank.example: balance 1350 after a transfer",
            "visitor.example: balance 1350",
            "visitor.example: PERMISSION_DENIED: bank.Ledger.transfer is not open to dns:visitor.example",
        ]
        assert re.fullmatch(r"nobody: unreachable: 127\.0\.0\.1:\d+ speaks TLS only", lines[4])
        desk = keys / "desk.bank.example"
        tls = ("--tls-ca", f"{keys}/ca.pem", "--tls-certificate", f"{desk}.pem", "--tls-key", f"{desk}.key.pem")
        call = (*STEELYARD, "call", "bank.Ledger.balance", "--json", '["coffee"]', *tls)
        assert shell.output(*call).strip() == "1350"
        shell.output("-m", "examples.security.certificates", str(keys))
        assert shell.output(*call).strip() == "1350", "after a rotation, with both ends' new files"


def test_interop(shell: Shell) -> None:
    port = str(free_port())
    with shell.serving("-m", "examples.interop.provider", port):
        assert shell.output("-m", "examples.interop.grpc_client", f"127.0.0.1:{port}").splitlines() == [
            "tea costs 450 cents",
            "next days: [450, 451, 452]",
            "INVALID_ARGUMENT: there is no 'milk' here",
        ]
    with shell.printing("-m", "examples.interop.grpc_server", "0") as line:
        address = line.split()[-1]
        assert shell.output("-m", "examples.interop.consumer", address).splitlines() == [
            "tea costs 475 cents",
            "next days: [475, 470, 465]",
            "INVALID_ARGUMENT: only tea here, no milk",
        ]


@pytest.mark.parametrize("file", ["provider", "grpc_client", "grpc_server", "consumer"])
def test_the_foreign_ends_know_nothing_of_us(file: str) -> None:
    text = (EXAMPLES / "interop" / f"{file}.py").read_text(encoding="utf-8")
    assert ("steelyard" in text) is (not file.startswith("grpc_"))


def test_every_example_has_a_readme_that_names_its_files() -> None:
    folders = [folder for folder in EXAMPLES.iterdir() if folder.is_dir() and folder.name != "__pycache__"]
    assert len(folders) >= 2
    for folder in folders:
        text = (folder / "README.md").read_text(encoding="utf-8")
        for file in folder.glob("*.py"):
            assert file.stem in text, f"{folder.name}/README.md does not say what {file.name} is"
