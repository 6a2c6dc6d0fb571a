"""What holds for every module: imports, public names, documentation, no hidden state.

These tests find the modules by themselves; a new module is covered without a line here.
"""

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

import packcore

SOURCE = Path(packcore.__file__).parent
ADAPTERS = ("packcore_torch", "packcore_grain", "packcore_ray")

LIST_IMPORTS = """
import importlib, json, random, sys
import numpy
before = random.getstate(), repr(numpy.random.get_state())
start = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
top = {name.partition(".")[0] for name in set(sys.modules) - start}
known = sys.stdlib_module_names | {"numpy", "packcore"}
same = before == (random.getstate(), repr(numpy.random.get_state()))
print(json.dumps({"foreign": sorted(top - known), "random_untouched": same}))
"""


def modules_of(package):
    """Every module of a package, by file; none of them is imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    names = []
    for path in sorted(root.rglob("*.py")):
        parts = [package, *path.relative_to(root).with_suffix("").parts]
        names.append(".".join(part for part in parts if part != "__init__"))
    return [name for name in names if not name.endswith("__main__")]


def tree_of(module):
    spec = importlib.util.find_spec(module)
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8")), bool(
        spec.submodule_search_locations
    )


def is_command(name):
    return name.startswith("packcore.cli.")


# The command's modules import click and tqdm; `packcore.cli` itself does not.
COMMAND = [name for name in modules_of("packcore") if is_command(name)]
HAS_COMMAND = all(map(importlib.util.find_spec, ("click", "tqdm")))
CORE = [name for name in modules_of("packcore") if not is_command(name)]
# An adapter is looked at where the framework it adapts is installed.
ALL = (
    CORE
    + (COMMAND if HAS_COMMAND else [])
    + [
        name
        for package, needs in zip(ADAPTERS, ("torch", "grain", "ray"), strict=True)
        if importlib.util.find_spec(needs)
        for name in modules_of(package)
    ]
)


def import_afresh(*modules):
    command = [sys.executable, "-c", LIST_IMPORTS, *modules]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_the_core_imports_nothing_but_numpy_and_the_standard_library():
    assert import_afresh(*CORE)["foreign"] == []


def test_a_foreign_import_would_be_seen():
    assert import_afresh("packcore", "pytest")["foreign"][:1] == ["_pytest"]


def test_importing_the_core_leaves_the_global_random_states_alone():
    assert import_afresh(*CORE)["random_untouched"]


def test_a_drawn_random_number_would_be_seen(tmp_path, monkeypatch):
    (tmp_path / "draws.py").write_text("import random\nrandom.random()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not import_afresh("draws")["random_untouched"]


GENERATORS = {"Generator", "SeedSequence", "BitGenerator", "PCG64", "Philox", "default_rng"}


def global_draws(tree):
    """Uses of the module-level generators: random.x but Random, np.random.x but a generator."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner == "random" and node.attr not in {"Random", "SystemRandom"}:
                yield ast.unparse(node)
            if owner in {"np.random", "numpy.random"} and node.attr not in GENERATORS:
                yield ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.module in {"random", "numpy.random"}:
            names = {alias.name for alias in node.names}
            yield from sorted(names - GENERATORS - {"Random"})


@pytest.mark.parametrize("module", CORE)
def test_no_module_draws_from_a_global_generator(module):
    assert list(global_draws(tree_of(module)[0])) == []


def test_a_global_draw_would_be_found():
    code = (
        "np.random.seed(1); random.shuffle(x); from random import choice; np.random.default_rng(1)"
    )
    assert set(global_draws(ast.parse(code))) == {"np.random.seed", "random.shuffle", "choice"}


def public_names(module):
    """What a module defines without an underscore; a package also what it takes from its own."""
    tree, is_package = tree_of(module)
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(
                name.id
                for to in node.targets
                for name in ast.walk(to)
                if isinstance(name, ast.Name)
            )
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
        elif is_package and isinstance(node, ast.ImportFrom) and is_ours(node):
            names.update(alias.asname or alias.name for alias in node.names)
    return {name for name in names if not name.startswith("_")}


def is_ours(node):
    return node.level > 0 or (node.module or "").partition(".")[0] in {"packcore", *ADAPTERS}


@pytest.mark.parametrize("module", ALL)
def test_all_lists_the_public_names_in_order(module):
    listed = importlib.import_module(module).__all__
    assert set(listed) - {"__version__"} == public_names(module)
    assert len(set(listed)) == len(listed)


METHODS = (types.FunctionType, property)


def public_objects(module):
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        value = getattr(loaded, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value
        if inspect.isclass(value):
            for attribute, member in vars(value).items():
                plain = getattr(member, "__func__", member)
                if not attribute.startswith("_") and isinstance(plain, METHODS):
                    yield f"{name}.{attribute}", plain


@pytest.mark.parametrize("module", ALL)
def test_every_module_and_public_name_says_what_it_is(module):
    assert importlib.import_module(module).__doc__
    assert [name for name, value in public_objects(module) if not value.__doc__] == []


def test_the_version_is_the_installed_one():
    assert packcore.__version__ == importlib.metadata.version("packcore")


def test_numpy_is_the_only_requirement():
    required = importlib.metadata.requires("packcore")
    assert [line for line in required if "extra ==" not in line] == ["numpy>=1.24"]


def private_uses(tree):
    """What an adapter takes from the core that the core does not offer."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("packcore"):
            continue
        if node.module.partition(".")[0] == "packcore":
            offered = importlib.import_module(node.module).__all__
            for alias in node.names:
                if alias.name not in offered and f"{node.module}.{alias.name}" not in CORE:
                    yield f"{node.module}.{alias.name}"


@pytest.mark.parametrize("module", [name for name in ALL if name not in CORE])
def test_an_adapter_takes_public_names_of_the_core_only(module):
    assert list(private_uses(tree_of(module)[0])) == []


def test_a_private_name_taken_from_the_core_would_be_found():
    code = "from packcore.checks import check_int, _INT64_MAX\nfrom packcore import errors, nothing"
    assert list(private_uses(ast.parse(code))) == ["packcore.checks._INT64_MAX", "packcore.nothing"]


def test_types_are_shipped():
    for package in ("packcore", *ADAPTERS):
        assert (SOURCE.parent / package / "py.typed").is_file()
