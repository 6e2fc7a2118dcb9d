"""Writes the decoder of one message at one version: a flat Python function with every offset and type built in.

What makes it fast: neighbouring fixed-size fields, and the length prefix of whatever follows them, are read by one
`struct` call; a one-byte varint costs one comparison; structs are built with positional arguments.

What makes it safe: an array's length is compared with the bytes that are left before the array is built, and all arrays
of a message share one limit of elements, because a Python object is far larger than the two bytes that can ask for it.
A slice never reaches past the buffer. Running past the end shows as `IndexError`, `struct.error` or a final position
beyond `end`, all of which become `DecodeError`.
"""

from collections.abc import Callable
from struct import Struct, unpack_from
from struct import error as struct_error
from typing import cast

from chronik.protocol.schema import FieldPlan, StructPlan
from chronik.protocol.source import SourceWriter
from chronik.protocol.varint import read_tag, read_tag_count, read_unknown_tags, uvarint
from chronik.protocol.wire import DecodeError, Message, Wire

Decoder = Callable[[memoryview, int, int], tuple[Message, int]]

MAX_ELEMENTS = 1_000_000
"""Elements that all arrays of one message may have together: about 100 MB of objects."""


def build_decoder(plan: StructPlan) -> Decoder:
    """Compile the decoder of `plan`."""
    writer = _DecoderWriter(plan)
    return cast(Decoder, writer.compile())


def _ends_early(label: str, cause: Exception) -> DecodeError:
    if isinstance(cause, UnicodeDecodeError):
        return DecodeError(f"{label} has a string that is not UTF-8: {cause}")
    return DecodeError(f"{label} ends before all of its fields were read")


def _beyond_end(label: str, pos: int, end: int) -> DecodeError:
    return DecodeError(f"{label} needs {pos - end} bytes more than it has")


def _too_many(field: str, count: int, left: int, room: int) -> DecodeError:
    if count > room:
        return DecodeError(f"{field} says {count} elements; a message may have {MAX_ELEMENTS} in all its arrays")
    return DecodeError(f"{field} says {count} elements, which cannot be in the {max(left, 0)} bytes that are left")


class _DecoderWriter:
    def __init__(self, plan: StructPlan) -> None:
        self.plan = plan
        self.label = f"{plan.cls.__name__} v{plan.version}"
        self.out = SourceWriter()
        self.run: list[tuple[str, str, int]] = []  # fixed-size reads not yet written: (local name, letter, size)
        self.out.namespace.update(
            uvarint=uvarint,
            read_tag=read_tag,
            read_tag_count=read_tag_count,
            read_unknown_tags=read_unknown_tags,
            unpack_from=unpack_from,
            READ_ERRORS=(IndexError, struct_error, UnicodeDecodeError),
            DecodeError=DecodeError,
            ends_early=_ends_early,
            beyond_end=_beyond_end,
            too_many=_too_many,
        )

    def compile(self) -> object:
        out = self.out
        with out.block("def decode(b, p, e):"):
            out.line(f"room = {MAX_ELEMENTS}")
            with out.block("try:"):
                result = self.struct(self.plan)
            with out.block("except READ_ERRORS as cause:"):
                out.line(f"raise ends_early({self.label!r}, cause) from cause")
            with out.block("if p > e:"):
                out.line(f"raise beyond_end({self.label!r}, p, e)")
            out.line(f"return {result}, p")
        return out.compile("decode", f"decoder of {self.label}")

    # -- fixed-size runs

    def flush(self) -> None:
        """Write the pending run as one unpack."""
        run = self.run
        if not run:
            return
        if len(run) == 1 and run[0][1] == "B":
            self.out.line(f"{run[0][0]} = b[p]; p += 1")
        else:
            letters = ">" + "".join(letter for _, letter, _ in run)
            unpack = self.out.bind("U", letters, lambda: Struct(letters).unpack_from)
            targets = ", ".join(name for name, _, _ in run)
            comma = "," if len(run) == 1 else ""
            self.out.line(f"{targets}{comma} = {unpack}(b, p); p += {sum(size for _, _, size in run)}")
        run.clear()

    def read(self, stem: str, letter: str, size: int) -> str:
        """Add a fixed-size read to the run."""
        name = self.out.name(stem)
        self.run.append((name, letter, size))
        return name

    def length(self, wire_name: str, flexible: bool) -> tuple[str, str]:
        """Read a length prefix; returns its local name and the condition under which the value is not null.

        In flexible versions the local holds length + 1, so that null is 0.
        """
        if flexible:
            name = self.read("n", "B", 1)
            self.flush()
            self.out.line(f"if {name} > 127: {name}, p = uvarint(b, p - 1)")
            return name, name
        letter, size = ("h", 2) if wire_name == "string" else ("i", 4)
        name = self.read("n", letter, size)
        self.flush()
        return name, f"{name} >= 0"

    # -- structs and fields

    def struct(self, plan: StructPlan) -> str:
        """Read one struct and return the local that holds it."""
        out = self.out
        values = {}
        for field in plan.plain_fields():
            values[field.name] = self.field(field, plan.flexible)
        tagged = plan.tagged_fields()
        count = self.read("t", "B", 1) if plan.flexible else ""
        self.flush()
        unknown = self.tagged(tagged, count, values) if tagged else ""
        cls = out.bind("C", plan.cls, lambda: plan.cls)
        result = out.name("s")
        out.line(f"{result} = {cls}({self.arguments(plan, values)})")
        if tagged:
            out.line(f"if {unknown} is not None: {result}.unknown_tags = {unknown}")
        elif plan.flexible:
            out.line(f"if {count}: {result}.unknown_tags, p = read_unknown_tags(b, p - 1, e)")
        return result

    def arguments(self, plan: StructPlan, values: dict[str, str]) -> str:
        """Positional arguments up to the last field that was read; absent ones in between get their default."""
        last = max((i for i, f in enumerate(plan.fields) if f.name in values), default=-1)
        return ", ".join(values.get(f.name) or self.default(f) for f in plan.fields[: last + 1])

    def default(self, field: FieldPlan) -> str:
        if field.factory is list:
            return "[]"
        if field.factory is not None:
            factory = field.factory
            return self.out.bind("F", factory, lambda: factory) + "()"
        return repr(field.default)

    def tagged(self, fields: list[FieldPlan], count: str, values: dict[str, str]) -> str:
        """Read the tagged-field section; returns the local that holds the unknown ones."""
        out = self.out
        unknown, tag, stop = out.name("u"), out.name("tag"), out.name("stop")
        out.line(f"{unknown} = None")
        for field in fields:
            values[field.name] = out.name()
            out.line(f"{values[field.name]} = {self.default(field)}")
        with out.block(f"if {count}:"):
            out.line(f"{count}, p = read_tag_count(b, p - 1, e)")
            with out.block(f"for _ in range({count}):"):
                out.line(f"{tag}, {stop}, p = read_tag(b, p, e)")
                word = "if"
                for field in fields:
                    with out.block(f"{word} {tag} == {field.tag}:"):
                        value = self.field(field, True)
                        self.flush()
                        out.line(f"{values[field.name]} = {value}")
                    word = "elif"
                with out.block("else:"):
                    out.line(f"if {unknown} is None: {unknown} = {{}}")
                    out.line(f"{unknown}[{tag}] = bytes(b[p:{stop}]); p = {stop}")
                out.line(f"if p != {stop}: raise DecodeError(f'tagged field {{{tag}}} does not have the size it says')")
        return unknown

    def field(self, field: FieldPlan, flexible: bool) -> str:
        """Read one field and return the local that holds it (set once the run is flushed)."""
        if field.is_fixed:
            wire = cast(Wire, field.wire)
            return self.read("v", wire.letter, wire.size)
        if field.is_array:
            return self.array(field, flexible)
        if field.struct is not None:
            return self.nullable_struct(field, field.struct) if field.nullable else self.struct(field.struct)
        return self.sized(field.name, cast(Wire, field.wire).name, field.nullable, flexible)

    def nullable_struct(self, field: FieldPlan, plan: StructPlan) -> str:
        marker = self.read("n", "b", 1)
        self.flush()
        value = self.out.name()
        with self.out.block(f"if {marker} < 0:"):
            self.out.line(f"{value} = None")
        with self.out.block("else:"):
            self.out.line(f"{value} = {self.struct(plan)}")
        return value

    def null(self, field_name: str, nullable: bool, value: str) -> None:
        """The branch for a null value."""
        with self.out.block("else:"):
            if nullable:
                self.out.line(f"{value} = None")
            else:
                self.out.line(f"raise DecodeError({f'{field_name} is null, which {self.label} does not allow'!r})")

    def sized(self, field_name: str, wire_name: str, nullable: bool, flexible: bool) -> str:
        """A string, bytes or records."""
        out = self.out
        length, present = self.length(wire_name, flexible)
        value = out.name()
        with out.block(f"if {present}:"):
            out.line(f"q = p + {length}" + (" - 1" if flexible else ""))
            text = {"string": "b[p:q].tobytes().decode()", "bytes": "b[p:q].tobytes()", "records": "b[p:q]"}[wire_name]
            out.line(f"{value} = {text}; p = q")
        self.null(field_name, nullable, value)
        return value

    def array(self, field: FieldPlan, flexible: bool) -> str:
        out = self.out
        count, present = self.length("array", flexible)
        value = out.name()
        with out.block(f"if {present}:"):
            if flexible:
                out.line(f"{count} -= 1")
            size = field.element_min_size(flexible)
            needed = count if size == 1 else f"{count} * {size}"
            out.line(f"if {needed} > e - p or {count} > room: raise too_many({field.name!r}, {count}, e - p, room)")
            out.line(f"room -= {count}")
            wire = field.wire
            if wire is not None and wire.size and wire.name != "uuid":
                out.line(f"{value} = list(unpack_from('>%d{wire.letter}' % {count}, b, p)); p += {needed}")
            else:
                self.elements(field, flexible, count, value)
        self.null(field.name, field.nullable, value)
        return value

    def elements(self, field: FieldPlan, flexible: bool, count: str, value: str) -> None:
        out = self.out
        out.line(f"{value} = []")
        with out.block(f"for _ in range({count}):"):
            if field.struct is not None:
                element = self.struct(field.struct)
            elif field.wire is not None and field.wire.name == "uuid":
                element = "b[p:p + 16].tobytes()"
            else:
                element = self.sized(field.name, cast(Wire, field.wire).name, False, flexible)
            out.line(f"{value}.append({element})")
            if element.startswith("b["):
                out.line("p += 16")
