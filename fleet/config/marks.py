"""YAML text to a tree of plain values that remember their line.

The tree keeps scalars as they are written: what `on`, `0o22` or `1e3` means is for the field that
reads it, not for YAML 1.1's guesses. It is built from the parser's event stream, not by PyYAML's
composer: that one recurses, and keeps the last of two equal keys without a word. Size, depth, the
number of values and what merge keys copy are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import yaml

SIZE_LIMIT = 1024 * 1024     # bytes of the file
DEPTH_LIMIT = 24             # levels; the deepest field sits at six
VALUES_LIMIT = 50_000        # values in the file, and as many again copied by merge keys

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_TAGS = frozenset(_CORE + tag for tag in ("str", "int", "float", "bool", "null", "map", "seq", "merge"))


@dataclass(frozen=True, slots=True)
class Scalar:
    """One word, as written. `quoted` tells "22" from 22."""

    line: int
    text: str
    quoted: bool = False

    @property
    def empty(self) -> bool:
        """Nothing is written here: `key:`, `key: ~` or `key: null`."""
        return not self.quoted and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """A list."""

    line: int
    items: list[Value] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Mapping:
    """Keys and values in the order of the file; a key's own line is `lines[key]`."""

    line: int
    entries: dict[str, Value] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    merged: set[str] = field(default_factory=set)     # keys that came by `<<`, not by hand


Value = Scalar | Sequence | Mapping


class NotReadable(Exception):
    """The text is no YAML that we read: a line (1 = first) and a sentence."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(line, sentence)
        self.line = line
        self.sentence = sentence


def decode(data: bytes) -> str:
    """The file's bytes as text.

    Raises:
        NotReadable: too long, or not UTF-8.
    """
    if len(data) > SIZE_LIMIT:
        raise NotReadable(1, f"the file has {len(data):,} bytes. Expected a fleet.yaml of at most 1 MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise NotReadable(line, f"byte {error.start + 1} is not UTF-8. Expected a text file saved as UTF-8") from None


def read(text: str) -> Value:
    """The tree of a document.

    Raises:
        NotReadable: no YAML, nothing in it, two documents, equal keys, too deep or too much.
    """
    if len(text) > SIZE_LIMIT:
        raise NotReadable(1, "the text is too long. Expected a fleet.yaml of at most 1 MiB")
    try:
        root = _Builder().build(text)
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(text, error) from None
    except UnicodeError:
        raise NotReadable(1, "the text holds half a character. Expected a text file saved as UTF-8") from None
    except yaml.YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0) or 0) + 1
        raise NotReadable(line, f"{_one_line(getattr(error, 'reason', '') or 'this is no YAML')}. "
                          "Expected text without control characters") from None
    if root is None or (isinstance(root, Scalar) and root.empty):
        raise NotReadable(1, "the file is empty. Expected at least `fleet: NAME`; "
                          "without any file the fleet is this machine and what is discovered")
    return root


def _not_yaml(text: str, error: yaml.MarkedYAMLError) -> NotReadable:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else 1
    lines = text.splitlines()
    before = lines[line - 1][:mark.column + 1] if mark is not None and line <= len(lines) else ""
    if "\t" in before and not before.strip():
        return NotReadable(line, "this line begins with a tab. Expected spaces: YAML allows no tabs before a key")
    said = _one_line(" ".join(part for part in (error.context, error.problem) if part) or "this is no YAML")
    return NotReadable(line, f"this is no YAML: {said}. Expected `key: value` lines, nested ones two spaces further in")


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:200]


class _Builder:
    """Turns events into the tree, with its own stack instead of recursion."""

    def __init__(self) -> None:
        self.anchors: dict[str, Value | None] = {}     # None: begun, not finished
        self.count = 0
        self.copied = 0

    def build(self, text: str) -> Value | None:
        root: Value | None = None
        stack: list[_Open] = []
        documents = 0
        loader = _LOADER(text)
        try:
            while loader.check_event():
                event = loader.get_event()
                line = event.start_mark.line + 1
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        raise NotReadable(line, "a second document begins here. Expected one document, without `---`")
                elif isinstance(event, yaml.NodeEvent):
                    finished = self._begin(event, line, stack)
                    if finished is not None:
                        root = self._place(finished, stack, root)
                elif isinstance(event, yaml.CollectionEndEvent):
                    done = stack.pop()
                    if done.anchor:
                        self.anchors[done.anchor] = done.value
                    root = self._place(done.value, stack, root)
        finally:
            loader.dispose()
        return root

    def _begin(self, event: yaml.NodeEvent, line: int, stack: list[_Open]) -> Value | None:
        """A scalar or an alias is finished at once; a collection is put on the stack."""
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise NotReadable(line, f"*{_one_line(event.anchor)} has no anchor before it. "
                                  f"Expected `&{_one_line(event.anchor)}` on a value further up")
            target = self.anchors[event.anchor]
            if target is None:
                raise NotReadable(line, f"*{_one_line(event.anchor)} lies inside of what it stands for. "
                                  "Expected an alias of another value")
            return target
        self.count += 1
        if self.count > VALUES_LIMIT:
            raise NotReadable(line, f"there are more than {VALUES_LIMIT:,} values. Expected a smaller file")
        if event.tag is not None and event.tag != "!" and event.tag not in _TAGS:
            raise NotReadable(line, f"the tag {_one_line(event.tag)} is not used here. Expected a plain value")
        if isinstance(event, yaml.ScalarEvent):
            # A tag is as good as quotes where it says that this is text.
            value = Scalar(line, event.value, event.style not in (None, "") or event.tag in ("!", _CORE + "str"))
            if event.anchor:
                self.anchors[event.anchor] = value
            return value
        if len(stack) >= DEPTH_LIMIT:
            raise NotReadable(line, f"this is nested more than {DEPTH_LIMIT} levels deep. Expected a flatter file")
        if event.anchor:
            self.anchors[event.anchor] = None
        stack.append(_Open(Mapping(line) if isinstance(event, yaml.MappingStartEvent) else Sequence(line),
                           event.anchor))
        return None

    def _place(self, value: Value, stack: list[_Open], root: Value | None) -> Value | None:
        """Put a finished value where it belongs; the new root when it belongs nowhere."""
        if not stack:
            return value
        top = stack[-1]
        if isinstance(top.value, Sequence):
            top.value.items.append(value)
        elif isinstance(top.value, Mapping):
            if top.key is None:
                if not isinstance(value, Scalar):
                    raise NotReadable(value.line, "a list or a mapping stands where a key belongs. "
                                      "Expected `key: value`")
                top.key = value
            else:
                self._put(top.value, top.key, value)
                top.key = None
        return root

    def _put(self, mapping: Mapping, key: Scalar, value: Value) -> None:
        if key.text == "<<" and not key.quoted:
            self._merge(mapping, key.line, value)
            return
        if key.text in mapping.entries and key.text not in mapping.merged:
            raise NotReadable(key.line, f"{_one_line(key.text)!r} is here twice, first on line "
                              f"{mapping.lines[key.text]}. Expected each key once")
        mapping.merged.discard(key.text)
        mapping.entries[key.text] = value
        mapping.lines[key.text] = key.line

    def _merge(self, mapping: Mapping, line: int, value: Value) -> None:
        """`<<: *base`: keys of the base that are not written here by hand; the first base wins."""
        for base in value.items if isinstance(value, Sequence) else [value]:
            if not isinstance(base, Mapping):
                raise NotReadable(line, "`<<` merges mappings. Expected `<<: *anchor` of a mapping")
            self.copied += len(base.entries) + 1
            if self.copied > VALUES_LIMIT:
                raise NotReadable(line, f"merge keys copy more than {VALUES_LIMIT:,} values. Expected fewer of them")
            for key, item in base.entries.items():
                if key not in mapping.entries:
                    mapping.entries[key] = item
                    mapping.lines[key] = base.lines[key]
                    mapping.merged.add(key)


@dataclass(slots=True)
class _Open:
    """A collection whose end has not come yet."""

    value: Mapping | Sequence
    anchor: str | None
    key: Scalar | None = None
