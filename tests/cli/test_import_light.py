import subprocess
import sys

import pytest

HEAVY = ("httpx", "uvicorn", "psutil", "pynvml", "huggingface_hub", "starlette", "yaml")

SHOW = """
import sys
sys.argv = ["llmserve", *{args!r}]
from orchestrator.cli.main import main
try:
    main()
except SystemExit as e:
    assert not e.code, e.code
print("|".join(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["launch", "--help"], ["machine", "--help"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(args=args)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    loaded = set(done.stderr.strip().splitlines()[-1].split("|"))
    assert "typer" in loaded
    assert [name for name in HEAVY if name in loaded] == []
