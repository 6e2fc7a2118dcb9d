"""Writes the encoder of one message at one version: a flat Python function that appends buffers to a list.

Fixed-size fields wait in a run until something of variable size comes; its length prefix joins the run, and the run is
packed by one `struct` call. Small pieces are joined into one buffer; records of some size are appended as they are, so
that a socket gets few buffers and no large one was copied.
"""

from collections.abc import Callable
from struct import Struct, pack
from struct import error as struct_error
from typing import Any, cast

from chronik.protocol.schema import FieldPlan, StructPlan
from chronik.protocol.source import SourceWriter
from chronik.protocol.varint import encode_uvarint, write_tags
from chronik.protocol.wire import Buffer, EncodeError, Wire

Encoder = Callable[[Any, list[Buffer]], None]

JOIN_BELOW_BYTES = 4096
"""Records smaller than this are joined with what is around them; larger ones are not copied."""

SHORT_ARRAY = 16
"""Arrays of numbers with fewer elements than this are packed by a prepared `Struct`."""


def build_encoder(plan: StructPlan) -> Encoder:
    """Compile the encoder of `plan`."""
    return cast(Encoder, _EncoderWriter(plan).compile())


def _short_array_packers(prefix: str, letter: str) -> tuple[Callable[..., bytes], ...]:
    return tuple(Struct(">" + prefix + letter * count).pack for count in range(SHORT_ARRAY))


class _EncoderWriter:
    def __init__(self, plan: StructPlan) -> None:
        self.plan = plan
        self.label = f"{plan.cls.__name__} v{plan.version}"
        self.out = SourceWriter()
        self.run: list[tuple[str, str]] = []  # fixed-size writes not yet written: (letter, expression)
        self.target = "small"  # the list that `a` appends to
        self.out.namespace.update(
            uv=encode_uvarint,
            write_tags=write_tags,
            pack=pack,
            WRITE_ERRORS=(struct_error, AttributeError, TypeError, UnicodeEncodeError),
            EncodeError=EncodeError,
        )

    def compile(self) -> object:
        out = self.out
        with out.block("def encode(o, out):"):
            out.line("small = []; a = small.append")
            with out.block("try:"):
                self.struct(self.plan, "o")
                self.flush()
                out.line("out.append(b''.join(small))")
            with out.block("except WRITE_ERRORS as cause:"):
                out.line(f"raise EncodeError(f'{self.label} cannot carry this: {{cause}}') from cause")
        return out.compile("encode", f"encoder of {self.label}")

    # -- fixed-size runs

    def packed(self, *more: tuple[str, str]) -> str:
        """An expression for the bytes of the pending run followed by `more`."""
        run = [*self.run, *more]
        letters = ">" + "".join(letter for letter, _ in run)
        if all(expression.lstrip("-").isdigit() for _, expression in run):
            return repr(pack(letters, *(int(expression) for _, expression in run)))
        packer = self.out.bind("P", letters, lambda: Struct(letters).pack)
        return f"{packer}({', '.join(expression for _, expression in run)})"

    def flush(self) -> None:
        if self.run:
            self.out.line(f"a({self.packed()})")
            self.run.clear()

    def null(self, flexible: bool, wire_name: str) -> None:
        """Write the run and a null length, and keep the run for the branch that follows."""
        if flexible:
            length = ("B", "0")
        else:
            length = ("h" if wire_name == "string" else "i", "-1")
        self.out.line(f"a({self.packed(length)})")

    def length(self, count: str, flexible: bool, wire_name: str) -> None:
        """Write the run and the length prefix for `count`."""
        if not flexible:
            self.out.line(f"a({self.packed(('h' if wire_name == 'string' else 'i', count))})")
        else:
            self.out.line(f"if {count} < 127: a({self.packed(('B', f'{count} + 1'))})")
            before = self.packed() + " + " if self.run else ""
            self.out.line(f"else: a({before}uv({count} + 1))")
        self.run.clear()

    # -- structs and fields

    def struct(self, plan: StructPlan, o: str) -> None:
        """Write the struct in local `o`."""
        for field in plan.plain_fields():
            self.field(field, plan.flexible, f"{o}.{field.name}")
        if not plan.flexible:
            return
        tagged = plan.tagged_fields()
        nothing = [f"{o}.unknown_tags is None", *(self.at_default(f, f"{o}.{f.name}") for f in tagged)]
        self.out.line(f"if {' and '.join(nothing)}: a({self.packed(('B', '0'))})")
        with self.out.block("else:"):
            self.flush()
            known = self.tagged(tagged, o) if tagged else "{}"
            self.out.line(f"write_tags({known}, {o}.unknown_tags, {self.target})")

    def tagged(self, fields: list[FieldPlan], o: str) -> str:
        """Encode the tagged fields that are not at their default, by tag, into the local that is returned."""
        out = self.out
        known = out.name("t")
        out.line(f"{known} = {{}}")
        outer = self.target
        for field in fields:
            self.target = out.name("sub")
            with out.block(f"if not ({self.at_default(field, f'{o}.{field.name}')}):"):
                out.line(f"{self.target} = []; a = {self.target}.append")
                self.field(field, True, f"{o}.{field.name}")
                self.flush()
                out.line(f"{known}[{field.tag}] = b''.join({self.target}); a = {outer}.append")
        self.target = outer
        return known

    def at_default(self, field: FieldPlan, expression: str) -> str:
        """Condition under which a tagged field has its default value, and so is not written."""
        if field.factory is list:
            return f"{expression} == []" if field.nullable else f"not {expression}"
        if field.default is None:
            return f"{expression} is None"
        return f"{expression} == {field.default!r}"

    def field(self, field: FieldPlan, flexible: bool, expression: str) -> None:
        if field.is_fixed:
            self.run.append((cast(Wire, field.wire).letter, expression))
            return
        value = self.out.name()
        self.out.line(f"{value} = {expression}")
        if field.struct is not None and not field.is_array:
            self.inner_struct(field, field.struct, value)
            return
        wire_name = "array" if field.is_array else cast(Wire, field.wire).name
        if field.nullable:
            with self.out.block(f"if {value} is None:"):
                self.null(flexible, wire_name)
            with self.out.block("else:"):
                self.sized(field, wire_name, flexible, value)
        else:
            self.sized(field, wire_name, flexible, value)

    def inner_struct(self, field: FieldPlan, plan: StructPlan, value: str) -> None:
        if not field.nullable:
            self.struct(plan, value)
            return
        with self.out.block(f"if {value} is None:"):
            self.out.line(f"a({self.packed(('b', '-1'))})")
        with self.out.block("else:"):
            self.run.append(("b", "1"))
            self.struct(plan, value)
            self.flush()

    def sized(self, field: FieldPlan, wire_name: str, flexible: bool, value: str) -> None:
        """A string, bytes, records or array that is not null."""
        out = self.out
        count = out.name("n")
        if wire_name == "array":
            self.array(field, flexible, value, count)
        elif wire_name == "records":
            out.line(f"{count} = sum(map(len, {value})) if type({value}) is list else len({value})")
            self.length(count, flexible, wire_name)
            with out.block(f"if {count} >= {JOIN_BELOW_BYTES}:"):
                out.line("out.append(b''.join(small)); small.clear()")
                out.line(f"out.extend({value}) if type({value}) is list else out.append({value})")
            out.line(f"elif type({value}) is list: small.extend({value})")
            out.line(f"else: a({value})")
        else:
            if wire_name == "string":
                out.line(f"{value} = {value}.encode()")
            out.line(f"{count} = len({value})")
            self.length(count, flexible, wire_name)
            out.line(f"a({value})")

    def array(self, field: FieldPlan, flexible: bool, value: str, count: str) -> None:
        out = self.out
        out.line(f"{count} = len({value})")
        wire = field.wire
        if wire is not None and wire.size:
            self.flush()
            prefix = "B" if flexible else "i"
            packers = out.bind("A", (prefix, wire.letter), lambda: _short_array_packers(prefix, wire.letter))
            prefix_value = f"{count} + 1" if flexible else count
            out.line(f"if {count} < {SHORT_ARRAY}: a({packers}[{count}]({prefix_value}, *{value}))")
            with out.block("else:"):
                self.length(count, flexible, "array")
                if wire.name == "uuid":
                    out.line(f"a(b''.join({value}))")
                else:
                    out.line(f"a(pack('>%d{wire.letter}' % {count}, *{value}))")
            return
        self.length(count, flexible, "array")
        element = out.name("e")
        with out.block(f"for {element} in {value}:"):
            if field.struct is not None:
                self.struct(field.struct, element)
            else:
                self.sized(field, cast(Wire, wire).name, flexible, element)
            self.flush()
