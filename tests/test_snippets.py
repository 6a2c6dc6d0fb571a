"""Every Python example in the README and the documentation runs and prints what stands under it.

A block of ```python that is followed by one of ```text must print that text. The blocks of one
page share their names, as a reader would type them one after the other, in an empty folder.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(
    r"^```python\n(.*?)^```\n(?:\n*```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)

NEEDS = {"jax.md": ("grain", "jax"), "pytorch.md": ("torch", "torchdata")}


def snippets(page):
    return SNIPPET.findall(page.read_text(encoding="utf-8"))


def run(code, names):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "<snippet>", "exec"), names)
    return out.getvalue()


# torchdata 0.11 calls what torch 2.13 has deprecated; Python 3.12 warns of fork beside threads.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name
)
def test_the_examples_print_what_the_page_says(page, tmp_path, monkeypatch):
    for module in NEEDS.get(page.name, ()):
        pytest.importorskip(module, reason=f"{page.name} is about it")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for code, expected in snippets(page):
        assert run(code, names) == expected


def test_the_readme_has_an_example_with_its_output():
    assert any(expected for _, expected in snippets(PAGES[0]))
