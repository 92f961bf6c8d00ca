"""Follows the statements of a training step in order and keeps what is known of each value.

It knows the idioms of torch, numpy and jax. What it does not know makes a value unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from audit.claims.code_calls import (
    UNCLEAR,
    axis_of,
    builtin_sum,
    call_name,
    clamp,
    einsum,
    is_euclidean,
    shaped,
)
from audit.claims.code_calls import noise as noise_of
from audit.claims.code_values import (
    FIRST,
    ONE,
    RECORDS,
    Factor,
    Gradient,
    Mask,
    Noise,
    Norms,
    Parameters,
    Product,
    Released,
    Value,
    Zero,
    add,
    capped,
    divide,
    dotted,
    listed,
    multiply,
    norm,
    raised,
    summed,
)

PER_RECORD = {"grad_sample", "per_sample_grads", "per_example_grads", "per_record_grads",
              "per_sample_gradients", "per_example_gradients", "grad_samples"}  # fmt: skip
BATCH_SIZES = {"batch_size", "bs", "lot_size", "expected_batch_size", "n_batch", "batchsize"}
DATA = {"x", "xs", "xb", "y", "ys", "yb", "inputs", "features", "images", "labels", "targets",
        "data", "batch", "records", "samples", "examples"}  # fmt: skip
SAME = {"clone", "detach", "contiguous", "to", "float", "double", "cpu", "cuda", "unsqueeze",
        "expand", "expand_as", "view_as", "type_as", "stack", "list", "tuple", "asarray", "tensor",
        "array", "numpy", "copy", "squeeze", "items", "values"}  # fmt: skip
SHAPES = {"flatten", "reshape", "view", "ravel"}
LIBRARY = {"make_private", "make_private_with_epsilon", "PrivacyEngine", "DPOptimizer",
           "DPKerasSGDOptimizer", "DPKerasAdamOptimizer", "differentially_private_aggregate",
           "dp_aggregate", "dpsgd"}  # fmt: skip
EFFECTS = {"zero_grad", "backward", "clip_grad_norm_", "clip_grad_value_", "step", "append", "add_",
           "sub_", "mul_", "div_", "copy_", "update", "normal_"}  # fmt: skip
LARGEST_WORK = 100_000  # looks at expressions: no snippet needs a tenth of that
SEEDS = {"manual_seed", "seed", "default_rng", "RandomState", "PRNGKey", "key"}
Loop = Literal["records", "batches", "unclear"]


class Reader:
    """The state of one reading.

    ``released`` holds what leaves: what is returned, put into weights, or handed to an optimizer.
    """

    def __init__(self) -> None:
        self.released: list[Value] = []
        self.library = False
        self.seeded = False
        self.env: dict[str, Value] = {}
        self.grad: Value = None  # of the parameters, as torch keeps it
        self.weights: Value = None
        self.grad_set = False  # by the code, and not by backward() alone
        self.zeroed = False
        self.loops: list[Loop] = []
        self.larger: Factor | None = None  # inside "if norm > C"
        self.work = 0

    def read(self, tree: ast.Module) -> None:
        """Follow a whole file."""
        self.body(tree.body)
        self.end()

    def end(self) -> None:
        """What is left in gradients and weights at the end of a function is released."""
        for state in (self.grad if self.grad_set else None, self.weights):
            if state is not None and not isinstance(state, Zero):
                self.released.append(state)
        self.grad, self.weights, self.grad_set = None, None, False

    def body(self, statements: Sequence[ast.stmt]) -> None:
        """Follow statements in order."""
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """Follow one statement."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.function(node)
            case ast.ClassDef(body=body) | ast.With(body=body) | ast.AsyncWith(body=body):
                self.body(body)
            case ast.Assign(targets, value):
                found = self.of(value)
                for target in targets:
                    self.assign(target, found, value)
            case ast.AnnAssign(target, _, ast.expr() as value):
                self.assign(target, self.of(value), value)
            case ast.AugAssign(target, operator, value):
                self.augment(target, operator, self.of(value), value)
            case ast.Expr(value):
                self.of(value)
                self.given_away(value)
            case ast.Return(ast.expr() as value):
                self.leave(value)
            case ast.For() | ast.AsyncFor():
                self.loop(node)
            case ast.While(_, body):
                self.loops.append("batches")
                self.body(body)
                self.loops.pop()
            case ast.If():
                self.branch(node)
            case ast.Try(body, handlers, orelse, final):
                self.body([*body, *orelse, *final])
                if any(not isinstance(s, ast.Pass | ast.Raise) for h in handlers for s in h.body):
                    self.released.append(None)
            case ast.Match() | ast.Delete():
                self.released.append(None)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A function on its own: its parameters are free names, its calls are not followed."""
        outer, self.env = self.env, {}
        state = self.grad, self.weights, self.zeroed, self.loops
        self.grad, self.weights, self.zeroed, self.loops = None, None, False, []
        self.body(node.body)
        self.end()
        self.env = outer
        self.grad, self.weights, self.zeroed, self.loops = state
        self.env[node.name] = None

    def leave(self, node: ast.expr) -> None:
        """What a function returns; per-record gradients may be summed by its caller."""
        for part in node.elts if isinstance(node, ast.Tuple | ast.List) else [node]:
            value = self.of(part)
            if isinstance(value, Gradient) and value.of != "sum":
                self.released.append(None)
            elif isinstance(value, Gradient | Released):
                self.released.append(value)
            elif value is None and not isinstance(part, ast.Constant) and self._private(part):
                self.released.append(None)

    def given_away(self, node: ast.expr) -> None:
        """A call whose result nobody takes, as print or save, and that was given a gradient."""
        if not isinstance(node, ast.Call) or call_name(node) in EFFECTS:
            return
        given = [*node.args, *(k.value for k in node.keywords)]
        if any(isinstance(self.of(part), Gradient) for part in given):
            self.released.append(None)

    def _private(self, node: ast.expr) -> bool:
        """Whether an unknown value was made from a gradient, or from anything unknown."""
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
        if names & (PER_RECORD | DATA | {"grad"}):
            return True
        public = Product | Parameters | Mask
        return any(name in self.env and not isinstance(self.env[name], public) for name in names)

    def loop(self, node: ast.For | ast.AsyncFor) -> None:
        """One turn of a loop; gradients taken in a loop over records are single records' ones."""
        kind = self.bind(node.target, node.iter, node.body)
        if kind:
            self.loops.append(kind)
            self.zeroed = False
        before = dict(self.env)
        self.body(node.body)
        if kind:
            self.loops.pop()
        if kind in ("batches", "unclear"):  # the next turn starts from what this one left
            for name, old in before.items():
                if self.env[name] != old:
                    self.env[name] = None
        if kind == "records":
            if isinstance(self.grad, Gradient) and self.grad.of == "one":
                self.grad = Zero()  # the last record's, which the next reader would take for a sum
            for name in self.env.keys() - before.keys():
                value = self.env[name]
                if isinstance(value, Gradient) and value.of == "one":
                    self.env[name] = None
        self.body(node.orelse)

    def bind(
        self, target: ast.expr, source: ast.expr, body: Sequence[ast.stmt] = ()
    ) -> Loop | None:
        """Bind a loop's names; what the loop runs over if it is data."""
        called = call_name(source)
        if isinstance(source, ast.Call) and isinstance(target, ast.Tuple) and source.args:
            if called == "enumerate" and len(target.elts) == 2:
                self.assign(target.elts[0], None, source)
                return self.bind(target.elts[1], source.args[0], body)
            if called == "zip" and len(source.args) == len(target.elts):
                pairs = zip(target.elts, source.args, strict=True)
                kinds = {self.bind(t, s, body) for t, s in pairs}
                if kinds == {None}:
                    return None
                return kinds.pop() if len(kinds) == 1 else "unclear"
        value = self.of(source)
        if isinstance(value, Parameters) or called in {"parameters", "named_parameters"}:
            last = target.elts[-1] if isinstance(target, ast.Tuple) else target
            self.assign(target, None, source)
            text = value.text if isinstance(value, Parameters) else _model(source)
            self.assign(last, Parameters(text, element=True), source)
            return None
        if isinstance(value, Gradient | Factor | Norms | Zero | Noise | Released):
            element = value
            if isinstance(value, Gradient):  # of layers or of records: only an axis tells
                element = replace(value, partial=True)
            last = target.elts[-1] if isinstance(target, ast.Tuple) else target
            self.assign(target, None, source)
            self.assign(last, element, source)
            return None
        kind = self._runs_over(target, source, called, body)
        for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
            self.env[name] = None
        return kind

    def _runs_over(
        self, target: ast.expr, source: ast.expr, called: str, body: Sequence[ast.stmt]
    ) -> Loop:
        words = " ".join(dotted(n).lower() for n in ast.walk(source) if isinstance(n, ast.expr))
        bound = {n.id.lower() for n in ast.walk(target) if isinstance(n, ast.Name)}
        batches = ("loader", "batches", "epoch", "steps", "iterations")
        if any(w in words for w in batches) or any("batch" in b for b in bound):
            return "batches"
        used = {n.id.lower() for s in body for n in ast.walk(s) if isinstance(n, ast.Name)}
        if not bound & used:
            return "unclear"
        if called == "zip" and len(getattr(source, "args", [])) == 1:
            inner = source.args[0] if isinstance(source, ast.Call) else source
            whole = isinstance(inner, ast.Starred) and dotted(inner).lower() in DATA
            return "records" if whole else "unclear"
        if called == "range":
            over = source.args[-1] if isinstance(source, ast.Call) and source.args else source
            counted = self.of(over) == RECORDS
            single = len(getattr(source, "args", [])) == 1 and _indexes_one(body, bound)
            return "records" if counted and single else "unclear"
        named = isinstance(source, ast.Name | ast.Attribute)
        return (
            "records"
            if named and dotted(source).rpartition(".")[2] in DATA - {"data"}
            else "unclear"
        )

    def branch(self, node: ast.If) -> None:
        """Both sides; a name that they leave different is unknown. "if norm > C" clips."""
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and not node.orelse:
            left, right = self.of(test.left), self.of(test.comparators[0])
            if isinstance(test.ops[0], ast.Lt | ast.LtE):
                left, right = right, left
            if (
                isinstance(left, Norms)
                and isinstance(right, Product)
                and not isinstance(test.ops[0], ast.Eq | ast.NotEq)
            ):
                before = dict(self.env)
                self.larger = Factor("ratio", right, left)
                self.body(node.body)
                self.larger = None
                for name, value in before.items():  # a clip to another norm is no clip to this one
                    now = self.env.get(name)
                    if now != value and not (isinstance(now, Gradient) and now.bound == right):
                        self.env[name] = None
                return
        env, state, count = dict(self.env), (self.grad, self.weights), len(self.released)
        self.body(node.body)
        one, one_state = self.env, (self.grad, self.weights)
        self.env, (self.grad, self.weights) = env, state
        self.body(node.orelse)
        names = one.keys() | self.env.keys()
        self.env = {
            n: self.env[n] if n in self.env and n in one and self.env[n] == one[n] else None
            for n in names
        }
        if one_state != (self.grad, self.weights):
            self.grad = self.weights = None
            if len(self.released) == count:
                self.released.append(None)

    # assignments

    def assign(self, target: ast.expr, value: Value, node: ast.expr) -> None:
        """Give a name its value."""
        if isinstance(target, ast.Tuple | ast.List):
            parts: Sequence[ast.expr | None] = [None] * len(target.elts)
            if isinstance(node, ast.Tuple) and len(node.elts) == len(target.elts):
                parts = node.elts
            for element, part in zip(target.elts, parts, strict=True):
                self.assign(element, self.of(part) if part is not None else None, node)
            return
        name = self.key(target)
        if name.endswith(".grad"):
            empty = isinstance(node, ast.Constant) and node.value is None
            self.zeroed = self.zeroed or empty
            self.grad = Zero() if empty else value
            self.grad_set = not empty
            if self.grad is None:
                self.released.append(None)
        elif name.endswith(".data"):
            self.weights = value
            if value is None:
                self.released.append(None)
        elif name:
            self.env[name] = value

    def augment(
        self, target: ast.expr, operator: ast.operator, value: Value, node: ast.expr
    ) -> None:
        """``target op= value``; in a loop over records, sums of their gradients."""
        name = self.key(target)
        old = self.of(target)
        one = isinstance(value, Gradient) and value.of == "one"
        if isinstance(operator, ast.Add) and one and self.loops[-1:] == ["records"]:
            assert isinstance(value, Gradient)
            fresh = old == Zero(len(self.loops) - 1)  # made anew for each batch
            total: Value = replace(value, of="sum") if fresh else None
        elif self.loops[-1:] == ["records"] and isinstance(value, Noise):
            total = None  # noise for each record, and not for the sum
        elif isinstance(value, Released | Gradient) and name.rpartition(".")[2] in {"data"}:
            total = value if self.weights is None else add(self.weights, value)
        elif isinstance(value, Noise) and name.endswith(".data") and self.weights is None:
            total = value
        else:
            total = self.binary(operator, old, value, (name, dotted(node)))
        self.assign(target, total, node)

    def key(self, node: ast.expr) -> str:
        """A name for the environment; attributes of one layer are those of every layer."""
        if isinstance(node, ast.Subscript | ast.Starred):
            return self.key(node.value)
        if isinstance(node, ast.Attribute) and isinstance(self.of(node.value), Parameters):
            return f"{self.of(node.value)}.{node.attr}"
        return dotted(node)

    # expressions

    def of(self, node: ast.expr) -> Value:
        """What is known of an expression's value."""
        self.work += 1
        if self.work > LARGEST_WORK:
            raise RecursionError
        match node:
            case ast.Constant(int() | float() as number) if not isinstance(number, bool):
                return Product(float(number))
            case ast.UnaryOp(ast.USub(), operand):
                return multiply(self.of(operand), Product(-1.0))
            case ast.BinOp(left, operator, right):
                names = dotted(left), dotted(right)
                return self.binary(operator, self.of(left), self.of(right), names)
            case ast.Call():
                return self.call(node)
            case ast.Name() | ast.Attribute():
                return self.named(node)
            case ast.Subscript(ast.Attribute(base, "shape"), ast.Constant(0)):
                return self.count(base)
            case ast.Subscript(base, index):
                return self.subscript(base, index, node)
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
                return self.comprehension(node)
            case ast.List(elts=[]):
                return Zero(len(self.loops))
            case ast.NamedExpr(target, value):
                self.assign(target, self.of(value), value)
                return self.of(target)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.of(child)
        return None

    def binary(
        self, operator: ast.operator, left: Value, right: Value, names: tuple[str, str]
    ) -> Value:
        """left op right."""
        match operator:
            case ast.Mult():
                return multiply(left, right)
            case ast.Div():
                found = divide(left, right)
                if isinstance(found, Factor) and found == self.larger:
                    return replace(found, kind="capped")
                return found
            case ast.Add() | ast.Sub():
                if isinstance(operator, ast.Sub) and isinstance(left, Norms):
                    return None
                return add(left, right, names)
            case ast.Pow():
                return raised(left, right)
            case ast.MatMult():
                weighted = multiply(left, right) if isinstance(left, Factor) else None
                return summed(weighted, FIRST)
        return None

    def named(self, node: ast.Name | ast.Attribute) -> Value:
        """A name's value; a free name is a number that stands for itself."""
        name = self.key(node)
        last = name.rpartition(".")[2]
        if isinstance(node, ast.Attribute) and last == "grad":
            return (
                replace(self.grad, partial=True) if isinstance(self.grad, Gradient) else self.grad
            )
        if isinstance(node, ast.Attribute) and last == "data":
            return self.weights
        if name in self.env:
            value = self.env[name]
            if isinstance(value, Noise) and value.depth < len(self.loops):
                return replace(value, scale=None)  # the same noise each turn cancels out
            return value
        if last in PER_RECORD:
            layer = isinstance(node, ast.Attribute)
            return Gradient("records", name, partial=layer)
        if "mask" in last.lower():
            return Mask()
        if last.lower() in BATCH_SIZES:
            return RECORDS
        if last in {"params", "parameters"}:
            return Parameters(name)
        if last in DATA or not name:
            return None
        return Product(1.0, frozenset({(name, 1.0)}))

    def subscript(self, base: ast.expr, index: ast.expr, node: ast.expr) -> Value:
        """An element; ``factor[:, None]`` only turns a vector into a column."""
        value = self.of(base)
        shaped = isinstance(index, ast.Tuple) and all(
            (isinstance(i, ast.Slice) and not (i.lower or i.upper or i.step))
            or (isinstance(i, ast.Constant) and i.value in (None, ...))
            or (isinstance(i, ast.Attribute) and i.attr == "newaxis")
            for i in index.elts
        )
        if shaped or isinstance(value, Zero | Noise | Mask | Released):
            return value
        if isinstance(value, Gradient) and value.of == "sum":
            return value  # one layer's
        if isinstance(value, Product) and isinstance(index, ast.Constant):
            return Product(1.0, frozenset({(ast.unparse(node), 1.0)}))  # config["sigma"]
        return None

    def comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> Value:
        """A list of like values, over the layers of a model or over records."""
        outer = dict(self.env)
        if len(node.generators) != 1 or node.generators[0].ifs:
            return None
        [part] = node.generators
        element = node.value if isinstance(node, ast.DictComp) else node.elt
        self.bind(part.target, part.iter)
        value = self.of(element)
        layers = any(isinstance(n, ast.Name) and isinstance(
            self.env.get(n.id), Parameters) for n in ast.walk(part.target))  # fmt: skip
        layers = layers or isinstance(self.of(part.iter), Gradient)
        self.env = outer
        if isinstance(value, Parameters):
            return replace(value, element=False)
        return listed(value, layers)

    def count(self, node: ast.expr) -> Value:
        """How many records: len(x) and x.shape[0] of data."""
        value = self.of(node)
        data = dotted(node).rpartition(".")[2].lower() in DATA and dotted(node) not in self.env
        if data or (isinstance(value, Gradient) and value.of == "records" and not value.clipped):
            return RECORDS
        return None

    # calls

    def call(self, node: ast.Call) -> Value:
        """The value of a call, and what it does beside."""
        called = call_name(node)
        method = isinstance(node.func, ast.Attribute) and not _module(node.func.value)
        receiver = node.func.value if isinstance(node.func, ast.Attribute) and method else None
        arguments = ([receiver] if receiver is not None else []) + list(node.args)
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        if called in LIBRARY:
            self.library = True
        if called in SEEDS and node.args and isinstance(node.args[0], ast.Constant):
            self.seeded = self.seeded or isinstance(node.args[0].value, int)
        if isinstance(node.func, ast.Call):
            return self.mapped(node.func, node)
        if (noise := noise_of(node, keywords, self.of)) is not None:
            noise = replace(noise, depth=len(self.loops))
            if called.endswith("_") and receiver is not None and self.key(receiver):
                self.assign(receiver, noise, node)
            return noise
        if self.effect(called, node, receiver, arguments, keywords):
            return self.grad if called == "clip_grad_norm_" else None
        first = self.of(arguments[0]) if arguments else None
        rest = arguments[1:]
        axis = axis_of(rest, keywords, skip=1 if called in {"norm", "vector_norm"} else 0)
        match called:
            case "parameters" | "named_parameters":
                return Parameters(_model(node))
            case "grad" if ast.unparse(node.func).endswith("autograd.grad"):
                single = self.loops[-1:] == ["records"]
                origin = f"autograd:{node.lineno}"
                known = single or "unclear" not in self.loops
                return Gradient("one" if single else "sum", origin) if known else None
            case "len":
                return self.count(arguments[0]) if arguments else None
            case "size" if rest and self.of(rest[0]) == Product(0.0):
                return self.count(arguments[0])
            case "ones" | "ones_like":
                return ONE
            case "zeros" | "zeros_like":
                return Zero(len(self.loops))
            case "float" if receiver is None:
                return first
            case "square":
                return raised(first, Product(2.0))
            case "pow":
                return raised(first, self.of(rest[0])) if rest else None
            case "sqrt":
                return raised(first, Product(0.5))
            case "norm" | "vector_norm":
                return (
                    norm(first, axis) if is_euclidean(rest, keywords) and axis != UNCLEAR else None
                )
            case "sum" if receiver is None and isinstance(node.func, ast.Name):
                return builtin_sum(first)
            case "sum" | "mean" | "average":
                return None if axis == UNCLEAR else summed(first, axis, called != "sum")
            case "clamp" | "clip" | "clamp_max" | "clamp_min":
                return clamp(called, first, rest, keywords, self.of)
            case "minimum" | "min" | "maximum" | "max" if len(arguments) == 2:
                return capped(first, self.of(arguments[1]), called.startswith("min"))
            case "einsum":
                return einsum(arguments, self.of)
            case _ if called in SHAPES:
                return shaped(called, first, rest, keywords, self.of)
            case _ if called in SAME and (receiver is not None or len(arguments) >= 1):
                return first
        for argument in [*rest, *keywords.values()]:
            self.of(argument)
        return None

    def mapped(self, function: ast.Call, node: ast.Call) -> Value:
        """``vmap(grad(loss))(...)`` gives every record's gradient; nothing else is followed."""
        inner = call_name(function.args[0]) if function.args else ""
        for argument in node.args:
            self.of(argument)
        if call_name(function) == "vmap" and inner == "grad":
            return Gradient("records", f"vmap:{node.lineno}:{node.col_offset}")
        return None

    def effect(
        self,
        called: str,
        node: ast.Call,
        receiver: ast.expr | None,
        arguments: Sequence[ast.expr],
        keywords: dict[str, ast.expr],
    ) -> bool:
        """Calls that change a state and give nothing back."""
        kind = self.loops[-1] if self.loops else "batches"
        match called:
            case "zero_grad":
                self.grad, self.zeroed = Zero(), True
            case "backward":
                single = kind == "records" and self.zeroed
                of: Literal["one", "sum"] = "one" if single else "sum"
                origin = f"backward:{node.lineno}"
                clear = single or kind == "batches"
                self.grad = Gradient(of, origin) if clear else None
                if not clear:
                    self.released.append(None)
            case "clip_grad_norm_" | "clip_grad_norm":
                self.clip_total(arguments, keywords)
            case "clip_grad_value_":
                ok = isinstance(self.grad, Gradient) and self.grad.of == "sum"
                self.grad = replace(self.grad, clipped="aggregate") if ok else None  # type: ignore[type-var]
            case "step" if receiver is not None:
                self.released.append(self.grad)
                self.grad, self.grad_set = None, False
            case "append" if receiver is not None and len(arguments) == 2:
                self.append(receiver, self.of(arguments[1]))
            case "add_" | "sub_" | "mul_" | "div_" if receiver is not None and len(arguments) > 1:
                value = self.of(arguments[1])
                if "alpha" in keywords:
                    value = multiply(value, self.of(keywords["alpha"]))
                operator = {"mul_": ast.Mult(), "div_": ast.Div()}.get(called, ast.Add())
                self.augment(receiver, operator, value, arguments[1])
            case "copy_" if receiver is not None and len(arguments) == 2:
                self.assign(receiver, self.of(arguments[1]), arguments[1])
            case "update" | "apply_updates" | "apply_gradients":
                for value in map(self.of, arguments):
                    if isinstance(value, Released):
                        self.released.append(value)
                    elif isinstance(value, Gradient):
                        self.released.append(None)
            case _:
                return False
        return True

    def clip_total(self, arguments: Sequence[ast.expr], keywords: dict[str, ast.expr]) -> None:
        """One norm over all layers: of a record where it was taken of one, else of the sum."""
        limit = keywords.get("max_norm") or (arguments[1] if len(arguments) > 1 else None)
        kind = keywords.get("norm_type") or (arguments[2] if len(arguments) > 2 else None)
        bound = self.of(limit) if limit is not None else None
        euclidean = kind is None or self.of(kind) == Product(2.0)
        grad = self.grad
        if not isinstance(grad, Gradient) or not isinstance(bound, Product) or not euclidean:
            self.grad = None
            self.released.append(None)
            return
        clipped: Literal["per_record", "aggregate"] = (
            "per_record" if grad.of == "one" else "aggregate"
        )
        if grad.clipped or grad.scale != ONE:
            self.released.append(None)
        self.grad = replace(grad, clipped=clipped, bound=bound)

    def append(self, receiver: ast.expr, value: Value) -> None:
        """A list of what single records gave."""
        name = self.key(receiver)
        fresh = self.env.get(name) == Zero(len(self.loops) - 1)
        one = isinstance(value, Gradient) and value.of == "one" and not value.partial
        if one and fresh and self.loops[-1:] == ["records"]:
            assert isinstance(value, Gradient)
            self.env[name] = replace(value, of="records")
        else:
            self.env[name] = None


def _module(node: ast.expr) -> bool:
    first = dotted(node).partition(".")[0]
    return first in {"torch", "np", "numpy", "jnp", "jax", "nn", "F", "linalg", "functional",
                     "math", "optax", "random"}  # fmt: skip


def _indexes_one(body: Sequence[ast.stmt], names: set[str]) -> bool:
    """Whether data are indexed by the loop's number: x[i], or x[i : i + 1]."""
    found = False
    for node in (n for s in body for n in ast.walk(s) if isinstance(n, ast.Subscript)):
        if dotted(node.value).lower() not in DATA:
            continue
        index = node.slice
        if isinstance(index, ast.Slice):
            low, high = index.lower, index.upper
            one = (
                low is not None
                and high is not None
                and ast.unparse(high) == f"{ast.unparse(low)} + 1"
            )
            index = low if one and low is not None else index
        if not (isinstance(index, ast.Name) and index.id.lower() in names):
            return False
        found = True
    return found


def _model(node: ast.expr) -> str:
    """Whose parameters: ``model.named_parameters()`` and ``model.parameters()`` are the same."""
    return ast.unparse(node).replace("named_parameters", "parameters")
