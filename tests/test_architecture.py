"""Which way imports point. One table says on which floor a module or a room lives; everything else follows from it."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import fedsocket_flwr

PACKAGE = "fedsocket_flwr"
ROOT = Path(fedsocket_flwr.__file__).parent

# From the ground up. A room (a folder) may import itself and whatever lies below it; rooms on one floor do not know each other.
# The modules of the ground floor, and of a room, may import each other, but never in a circle.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "config",
            "field_types",
            "configuration_file",
            "errors",
            "file_names",
            "import_paths",
            "learning_settings",
            "metric_names",
            "plain_files",
            "problems",
            "protocol_settings",
            "provenance",
            "seeds",
            "state_folder",
            "strict_yaml",
            "text",
        }
    ),
    frozenset({"exchange"}),
    frozenset({"datasets", "evaluation", "runtime"}),
    frozenset({"models"}),
    frozenset({"learning"}),
    frozenset({"strategies", "clients"}),
    frozenset({"methods"}),
    frozenset({"run_preparation"}),
    frozenset({"server_app", "client_app", "endpoints", "checking"}),
    frozenset({"engines", "prediction", "other_data"}),
    frozenset({"experiments", "runs", "cli_parser"}),
    frozenset({"cli"}),
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
GROUND = FLOORS[0]
STRATEGIES_MAY_IMPORT = GROUND | {"exchange", "strategies"}
WITH_STRATEGIES_ONLY = {"numpy", "flwr"}
TRAINING_LIBRARIES = frozenset(
    {"torch", "ray", "torchvision", "timm", "transformers", "sklearn", "scipy", "pandas", "matplotlib", "datasets"}
)


def module_name(path: Path, root: Path) -> str:
    parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """Return the first part below the package: a room's name, or a module's own."""
    return module.split(".")[1]


def runtime_imports(nodes: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield every import that can run, also inside functions; not those for type checkers only."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from runtime_imports(node.orelse)
        else:
            yield from runtime_imports(ast.iter_child_nodes(node))


def imported_modules(source: str, known: frozenset[str]) -> set[str]:
    """Return the modules that a file imports; ``from package import name`` is the module ``package.name`` where there is one."""
    found: set[str] = set()
    for node in runtime_imports([ast.parse(source)]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.module, f"a relative import in line {node.lineno}"
            assert node.level == 0, f"a relative import in line {node.lineno}"
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = within & known
            found |= submodules if submodules and node.module.split(".")[0] == PACKAGE else set()
            if not submodules or within - submodules:
                found.add(node.module)
    return found


def read_graph(root: Path) -> dict[str, set[str]]:
    sources = {module_name(path, root): path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    return {module: imported_modules(source, frozenset(sources)) for module, source in sources.items()}


GRAPH = read_graph(ROOT)
OWN = {module: {name for name in found if name.split(".")[0] == PACKAGE} for module, found in GRAPH.items()}


def points_upwards(module: str, imported: str) -> bool:
    """Say whether an import breaks the order of floors; the package itself is nobody's."""
    if PACKAGE in (module, imported) or room_of(module) == room_of(imported):
        return False
    here, there = FLOOR_OF[room_of(module)], FLOOR_OF[room_of(imported)]
    return there >= here and not here == there == 0


def reachable(start: set[str]) -> set[str]:
    """Return all modules of the package that these import, directly or through others."""
    found, waiting = set(start), list(start)
    while waiting:
        for module in OWN.get(waiting.pop(), set()) - found:
            found.add(module)
            waiting.append(module)
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a circle, or nothing."""
    finished: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in finished:
            return []
        for imported in sorted(graph.get(module, ())):
            found = walk(imported, [*path, module])
            if found:
                return found
        finished.add(module)
        return []

    return next(filter(None, (walk(module, []) for module in sorted(graph))), [])


def modules_in(*rooms: str) -> set[str]:
    return {module for module in GRAPH if module != PACKAGE and room_of(module) in rooms}


def third_party(modules: set[str]) -> dict[str, set[str]]:
    """Return library -> the modules that import it."""
    found: dict[str, set[str]] = {}
    for module in modules:
        for name in GRAPH[module] - OWN[module]:
            library = name.split(".")[0]
            if library not in sys.stdlib_module_names:
                found.setdefault(library, set()).add(module)
    return found


def test_every_module_has_its_floor() -> None:
    rooms = {room_of(module) for module in GRAPH if module != PACKAGE}
    assert rooms == set(FLOOR_OF)
    assert sum(map(len, FLOORS)) == len(FLOOR_OF), "a room is on two floors"


def test_no_import_points_upwards_or_sideways() -> None:
    wrong = {f"{module} -> {imported}" for module, found in OWN.items() for imported in found if points_upwards(module, imported)}
    assert not wrong


def test_no_circle_among_modules() -> None:
    assert not circle(OWN)


def test_strategies_and_clients_never_meet() -> None:
    assert not {module for module in reachable(modules_in("strategies")) if module.startswith(f"{PACKAGE}.clients")}
    assert not {module for module in reachable(modules_in("clients")) if module.startswith(f"{PACKAGE}.strategies")}


def test_strategies_import_only_exchange_ground_floor_numpy_and_flwr() -> None:
    strategies = modules_in("strategies")
    assert {room_of(imported) for module in strategies for imported in OWN[module]} <= STRATEGIES_MAY_IMPORT
    assert set(third_party(strategies)) <= WITH_STRATEGIES_ONLY


@pytest.mark.parametrize("room", ["exchange", "strategies"])
def test_nothing_that_this_room_reaches_imports_a_training_library(room: str) -> None:
    assert modules_in(room)
    found = third_party(reachable(modules_in(room)))
    assert not {library: modules for library, modules in found.items() if library in TRAINING_LIBRARIES}


@pytest.mark.parametrize("module", ["strategies", "client_app", "exchange.payload", "runtime.store"])
def test_a_clean_interpreter_stays_light(module: str) -> None:
    program = f"import sys, {PACKAGE}.{module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, encoding="utf-8", check=True)
    loaded = set(done.stdout.split())
    assert {PACKAGE, "numpy"} <= loaded
    assert not loaded & TRAINING_LIBRARIES


class TestTheReaderOfImports:
    """The rules above are worth what reading the imports is worth."""

    KNOWN = frozenset({"fedsocket_flwr", "fedsocket_flwr.errors", "fedsocket_flwr.exchange", "fedsocket_flwr.exchange.payload"})

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("import torch.nn as nn", {"torch.nn"}),
            ("def work():\n    if True:\n        import torch", {"torch"}),
            ("try:\n    from torch import nn\nexcept ImportError:\n    import numpy", {"torch", "numpy"}),
            ("from fedsocket_flwr.errors import RunError", {"fedsocket_flwr.errors"}),
            ("from fedsocket_flwr.exchange import payload", {"fedsocket_flwr.exchange.payload"}),
            ("from fedsocket_flwr import exchange, errors", {"fedsocket_flwr.exchange", "fedsocket_flwr.errors"}),
            ("from fedsocket_flwr.exchange import payload, name", {"fedsocket_flwr.exchange.payload", "fedsocket_flwr.exchange"}),
            (
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\nelse:\n    import numpy",
                {"typing", "numpy"},
            ),
            ("if not TYPE_CHECKING:\n    import torch", {"torch"}),
        ],
    )
    def test_hand_made_sources(self, source: str, expected: set[str]) -> None:
        assert imported_modules(source, self.KNOWN) == expected

    def test_relative_imports_are_refused(self) -> None:
        with pytest.raises(AssertionError, match="relative import"):
            imported_modules("from . import errors", self.KNOWN)

    @pytest.mark.parametrize(
        ("module", "imported", "wrong"),
        [
            ("exchange.payload", "models.predictor", True),
            ("strategies.merging", "clients.local", True),
            ("datasets.toy", "evaluation.metrics", True),
            ("errors", "exchange.contract", True),
            ("models.predictor", "exchange.contract", False),
            ("models.towers", "models.images", False),
            ("configuration_file", "config", False),
        ],
    )
    def test_floors(self, module: str, imported: str, wrong: bool) -> None:
        assert points_upwards(f"{PACKAGE}.{module}", f"{PACKAGE}.{imported}") is wrong

    def test_circles(self) -> None:
        assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
        assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
