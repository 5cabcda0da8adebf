"""Lists the flags of `vllm serve` from an unpacked wheel, without importing it: python vllm-flags.py FOLDER/vllm.

One line a flag: its kind, its name, then its other names. Kinds: switch (no value), bool (--x and --no-x, of --enable-x also
--disable-x and the other way round), value, list (one value or more), optional (none or one)."""

import ast
import pathlib
import sys

root = pathlib.Path(sys.argv[1])
fields = {}
for path in [*root.glob("config/*.py"), root / "engine/arg_utils.py", root / "entrypoints/common/cli_args.py"]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            of_class = fields.setdefault(node.name, {})
            for item in node.body:
                if isinstance(item, ast.AnnAssign):
                    of_class[item.target.id] = ast.unparse(item.annotation)


def kind_of(annotation):
    parts = {part.strip() for part in annotation.split("|")}
    if parts == {"bool", "str", "None"}:
        return "optional"
    if "bool" in parts:
        return "bool"
    return "list" if any(part.startswith(("list[", "tuple[", "set[")) for part in parts) else "value"


found = {}


def add(names, kind):
    names = sorted(names, key=lambda name: not name.startswith("--"))
    inverse = {"--enable-": "--disable-", "--disable-": "--enable-"}
    if kind == "bool":
        longs = [name for name in names if name.startswith("--")]
        names += ["--no-" + name[2:] for name in longs]
        names += [other + name[len(own):] for name in longs for own, other in inverse.items() if name.startswith(own)]
    found[names[0]] = (kind, names)


def keyword(call, name):
    return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), None)


def read(function, owner):
    sources = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if getattr(node.value.func, "id", "") == "get_kwargs":
                sources[node.targets[0].id] = ast.unparse(node.value.args[0])
    for node in ast.walk(function):
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"):
            continue
        names = [a.value for a in node.args if isinstance(a, ast.Constant) and str(a.value).startswith("-")]
        if not names:
            continue
        action, nargs = keyword(node, "action"), keyword(node, "nargs")
        if action == "'store_true'":
            kind = "switch"
        elif action and "BooleanOptionalAction" in action:
            kind = "bool"
        elif nargs in ("'+'", "'*'"):
            kind = "list"
        else:
            kind = "value"
            for sub in ast.walk(node):
                if isinstance(sub, ast.Subscript) and isinstance(sub.value, ast.Name) and sub.value.id in sources:
                    kind = kind_of(fields[sources[sub.value.id]][sub.slice.value])
        add(names, kind)


tree = ast.parse((root / "engine/arg_utils.py").read_text())
for node in ast.walk(tree):
    if isinstance(node, ast.FunctionDef) and node.name == "add_cli_args":
        read(node, None)
tree = ast.parse((root / "entrypoints/common/cli_args.py").read_text())
for node in ast.walk(tree):
    if isinstance(node, ast.FunctionDef) and node.name == "make_arg_parser":
        read(node, None)
no_list = {"allowed_origins", "allowed_methods", "allowed_headers", "middleware"}
for name in ("BaseFrontendArgs", "FrontendArgs"):
    for field, annotation in fields[name].items():
        kind = "value" if field in no_list else kind_of(annotation)
        add(["--" + field.replace("_", "-")], kind)
for name in sorted(found):
    kind, names = found[name]
    print(kind, *names)
