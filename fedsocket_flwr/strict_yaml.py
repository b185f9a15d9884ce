"""YAML in which nothing is silently lost: PyYAML's safe loader and dumper without its traps.

A key that stands twice, an empty file, a list at the top, a second document, a key that is no text and every tag beyond plain
data are refused. Dates stay text. An unquoted ``1e-3`` becomes :class:`fedsocket_flwr.config.ExponentText`, and text that looks
like it is written in quotes, so that what was text stays text and what was a number stays a number.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.field_types import ExponentText

_PREFIX = "tag:yaml.org,2002:"
_TEXT_TAG = f"{_PREFIX}str"
_MERGE_TAG = f"{_PREFIX}merge"
_TIMESTAMP_TAG = f"{_PREFIX}timestamp"
_EXPONENT_TAG = "!exponent"
_EXPONENT = re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
_EXPONENT_STARTS = list("-+.0123456789")
_UNSAFE_LETTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
# Keys of the top level that begin so are a place for anchors, and dropped.
ANCHOR_PREFIX = "x-"


class _Loader(yaml.SafeLoader):
    """A safe loader that checks keys while the document is composed, before merges (``<<``) mix them."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open_anchors: set[str] = set()

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose one node; an alias to a node that it stands in is refused, since such data have no end."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, AliasEvent) and event.anchor in self._open_anchors:
            raise _refused(f"*{event.anchor} stands inside the node that it refers to", event)
        return super().compose_node(parent, index)

    def compose_sequence_node(self, anchor: Any) -> SequenceNode:
        """Compose a list."""
        self._open_anchors.add(anchor)
        node = super().compose_sequence_node(anchor)
        self._open_anchors.discard(anchor)
        return node

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """Compose a mapping, whose keys must be texts that differ."""
        self._open_anchors.add(anchor)
        node = super().compose_mapping_node(anchor)
        self._open_anchors.discard(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, ScalarNode) or key.tag not in (_TEXT_TAG, _EXPONENT_TAG, _MERGE_TAG):
                shown = key.value if isinstance(key, ScalarNode) else "a list or mapping"
                raise _refused(f"the key {shown} is not text; put it in quotes", key)
            if key.value in lines:
                message = f"the key {key.value!r} stands twice, in lines {lines[key.value]} and {key.start_mark.line + 1}"
                raise _Refused(message)
            lines[key.value] = key.start_mark.line + 1
        return node

    def flatten_mapping(self, node: MappingNode) -> None:
        """Expand merges: a mapping's own keys win, then those of the mapping that is merged first.

        PyYAML's own way depends on its version: 6.0.4 lets the last of several merged mappings win for most keys.
        """
        own: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if key.tag != _MERGE_TAG:
                own[key.value] = (key, value)
                continue
            for source in value.value if isinstance(value, SequenceNode) else [value]:
                if not isinstance(source, MappingNode):
                    raise _refused(f"<< merges a mapping or a list of mappings, found {source.value!r}", source)
                self.flatten_mapping(source)
                for pair in source.value:
                    merged.setdefault(pair[0].value, pair)
        node.value = list({**merged, **own}.values())


class _Dumper(yaml.SafeDumper):
    """A safe dumper that quotes every text which :class:`_Loader` would take for something else, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value out in full."""
        return True


class _Refused(yaml.YAMLError):
    """What is wrong, in one line without the name of the file."""


def _refused(message: str, place: Any) -> _Refused:
    return _Refused(f"line {place.start_mark.line + 1}: {message}")


def _construct_exponent(loader: yaml.SafeLoader, node: ScalarNode) -> ExponentText:
    return ExponentText(node.value)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> ScalarNode:
    # PyYAML loses some of these letters in single quotes, and folds lines there.
    return dumper.represent_scalar(_TEXT_TAG, text, style='"' if _UNSAFE_LETTERS.search(text) else None)


def _represent_exponent(dumper: yaml.SafeDumper, text: ExponentText) -> ScalarNode:
    return dumper.represent_scalar(_EXPONENT_TAG, str(text))


def _without_timestamps(resolvers: dict[str, list[tuple[str, Any]]]) -> dict[str, list[tuple[str, Any]]]:
    return {first: [pair for pair in pairs if pair[0] != _TIMESTAMP_TAG] for first, pairs in resolvers.items()}


_PLAIN_TAGS: tuple[Hashable, ...] = (None, *(_PREFIX + name for name in ("null", "bool", "int", "float", "str", "seq", "map")))
_Loader.yaml_implicit_resolvers = _without_timestamps(_Loader.yaml_implicit_resolvers)
_Loader.yaml_constructors = {tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag in _PLAIN_TAGS}
_Loader.add_constructor(_EXPONENT_TAG, _construct_exponent)
_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(ExponentText, _represent_exponent)
for _yaml_class in (_Loader, _Dumper):
    _yaml_class.add_implicit_resolver(_EXPONENT_TAG, _EXPONENT, _EXPONENT_STARTS)


def parse_yaml(text: str, origin: str) -> dict[str, Any]:
    """Parse a YAML document whose top level is a mapping.

    Anchors, aliases and merges (``<<``) are expanded; the parts share no objects. Keys of the top level that begin with ``x-``
    are a place for anchors and are dropped.

    Parameters
    ----------
    text
        The document; a byte order mark and any line ends are accepted.
    origin
        The name of the file, for messages.

    Returns
    -------
    dict[str, Any]
        Plain data. A number without quotes in a form that YAML 1.1 reads as text (``1e-3``) is an
        :class:`fedsocket_flwr.config.ExponentText`.

    Raises
    ------
    ConfigurationError
        If the text is not such a document: one line with file, line and cause.
    """
    found = parse_value(text.removeprefix("\ufeff"), origin)
    if found is None:
        raise ConfigurationError(f"{origin}: the file is empty, expected a mapping of sections")
    if not isinstance(found, dict):
        kind = "a list" if isinstance(found, list) else f"{found!r}"
        raise ConfigurationError(f"{origin}: found {kind} at the top level, expected a mapping of sections")
    return {key: value for key, value in found.items() if not key.startswith(ANCHOR_PREFIX)}


def parse_value(text: str, origin: str) -> Any:
    """Parse one YAML value of any kind, under the rules of :func:`parse_yaml`."""
    try:
        loader = _Loader(text)
        try:
            return _unshared(loader.get_single_data())
        finally:
            loader.dispose()
    except RecursionError as error:
        raise ConfigurationError(f"{origin}: lists or mappings are nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{origin}: {_one_line(error)}") from error


def dump_yaml(data: Any) -> str:
    """Write plain data as YAML that :func:`parse_yaml` reads back equal; the order of keys is kept."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=130)


def dump_value(value: Any) -> str:
    """Write one value in one line, as it would stand in a file."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"), default_flow_style=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _unshared(value: Any) -> Any:
    """Copy containers, so that changing one place of an alias leaves the others alone."""
    if isinstance(value, dict):
        return {str(key): _unshared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshared(item) for item in value]
    return value


def _one_line(error: Exception) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    if error.context == "expected a single document in the stream":
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        return f"{line}a second document begins, expected one document a file"
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + " ".join(", ".join(part for part in (error.context, error.problem) if part).split())
