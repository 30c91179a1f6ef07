"""Checks who includes whom: runtime <- kernels <- layers <- parallel, and nothing looks up.

usage: layering_test.py SOURCE_ROOT [PUBLIC_HEADER...]

Product files spell includes of the project "packrnn/<folder>/<file>". tests/, bench/ and
docs/examples/ stand above the product and nothing includes them, except that bench/ shares
tests/, tests/bench/ tests bench/, tests/examples/ tests the whole programs, the folders of
docs/examples, and those read data and show progress as bench/ does and share
docs/examples/training/. tests/reference/ includes nothing of the product. A public header includes
only public headers and the standard library, so that a user needs neither fmt nor the CUDA toolkit.
Before the real tree is read, each rule is shown to fail on a small planted tree.
"""

import pathlib
import re
import sys
import tempfile

ORDER = ["runtime", "kernels", "layers", "parallel"]
SUFFIXES = {".hpp", ".cpp", ".h", ".inc", ".cu", ".cuh"}
# A name given to Highway is included too: #define HWY_TARGET_INCLUDE "packrnn/kernels/cpu/x.cpp"
INCLUDE = re.compile(
    r'^\s*#\s*(?:include|define\s+HWY_TARGET_INCLUDE)\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def includes(path):
    text = path.read_text(encoding="utf-8")
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start(2)) + 1, match[1], match[2]


def product_target(root, name):
    """The file of this project that "packrnn/..." names, relative to the root, or None."""
    target = name.removeprefix("packrnn/")
    known = target == "packrnn.hpp" or target.split("/")[0] in ORDER
    return target if known and (root / target).is_file() else None


def fault(root, file, quote, name, public):
    """What is wrong with one include, or None."""
    folder = file.split("/")[0]
    in_product = folder in ORDER or file == "packrnn.hpp"
    ours = name.startswith("packrnn/")
    if ".." in name.split("/"):
        return "climbs out of its folder"
    if file.startswith("tests/reference/") and (ours or name.split("/")[0] in ORDER):
        return "the reference shares no code with the product"
    if name.split("/")[0] in ORDER:
        return f'is spelled "packrnn/{name}"'
    if ours:
        target = product_target(root, name)
        if target is None:
            return "names no file of the product"
        if not in_product:
            return None
        if quote != '"':
            return "is spelled with quotes inside the product"
        if file in public and target not in public:
            return "a public header includes a private one"
        if file == "packrnn.hpp":
            return None
        if target == "packrnn.hpp":
            return "the umbrella header is for users"
        if ORDER.index(target.split("/")[0]) > ORDER.index(folder):
            return f"{folder}/ may not include {target.split('/')[0]}/"
        return None
    if file in public and (quote == '"' or not re.fullmatch(r"[a-z_0-9]+", name)):
        return "a public header includes only the standard library and public headers"
    if quote == "<":
        return None if name.split("/")[0] not in ("tests", "bench", "docs") else "is no library"
    if in_product:
        return "is not spelled from packrnn/"
    both = ("bench/", "tests/")
    allowed = {"tests": ("tests/",), "bench": both}.get(folder, ())
    if file.startswith("tests/bench/"):
        allowed = both
    if file.startswith("tests/examples/"):
        allowed = (*both, "docs/examples/")
    if file.startswith("docs/examples/") and file.count("/") > 2:
        allowed = ("bench/", "docs/examples/training/", file.rsplit("/", 1)[0] + "/")
    if not name.startswith(allowed) or not (root / name).is_file():
        return f"is nothing that {folder}/ may include"
    return None


def faults(root, public):
    found = []
    count = 0
    folders = [*ORDER, "tests", "bench", "docs/examples"]
    files = [p for folder in folders for p in sorted((root / folder).rglob("*"))]
    for path in [root / "packrnn.hpp", *files]:
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        count += 1
        file = path.relative_to(root).as_posix()
        for line, quote, name in includes(path):
            what = fault(root, file, quote, name, public)
            if what:
                found.append(f"{file}:{line}: {name}: {what}")
    return found, count


GOOD = {
    "packrnn.hpp": '#include "packrnn/layers/lstm.hpp"\n',
    "runtime/tensor.hpp": "#include <vector>\n",
    "runtime/secret.hpp": "#include <fmt/format.h>\n",
    "runtime/tensor.cpp": '#include "packrnn/runtime/secret.hpp"\n',
    "kernels/lstm.hpp": '#include "packrnn/runtime/tensor.hpp"\n',
    "kernels/cpu/lstm.cpp": '#define HWY_TARGET_INCLUDE "packrnn/kernels/cpu/lstm.cpp"\n',
    "layers/lstm.hpp": '#include "packrnn/kernels/lstm.hpp"\n',
    "tests/catch.hpp": "",
    "tests/reference/lstm.hpp": "#include <cmath>\n",
    "tests/layers/lstm_test.cpp": '#include "packrnn/layers/lstm.hpp"\n#include "tests/catch.hpp"\n',
    "tests/bench/main_test.cpp": '#include "bench/main.cpp"\n#include "tests/catch.hpp"\n',
    "tests/examples/b_test.cpp": '#include "docs/examples/training/run.hpp"\n#include "bench/main.cpp"\n',
    "bench/main.cpp": '#include <packrnn/packrnn.hpp>\n#include "tests/reference/lstm.hpp"\n',
    "docs/examples/a.cpp": "#include <packrnn/packrnn.hpp>\n",
    "docs/examples/b/main.cpp": '#include <packrnn/packrnn.hpp>\n#include "bench/main.cpp"\n'
                                '#include "docs/examples/training/run.hpp"\n',
    "docs/examples/training/run.hpp": '#include "bench/main.cpp"\n',
}
PUBLIC = ["runtime/tensor.hpp", "kernels/lstm.hpp", "layers/lstm.hpp"]
BAD = [
    ("runtime/tensor.cpp", '#include "packrnn/kernels/lstm.hpp"', "may not include kernels/"),
    ("kernels/cpu/lstm.cpp", '#include "packrnn/layers/lstm.hpp"', "may not include layers/"),
    ("layers/lstm.hpp", '#include "tests/catch.hpp"', "a public header includes only"),
    ("runtime/tensor.cpp", '#include "tests/catch.hpp"', "not spelled from packrnn/"),
    ("runtime/tensor.cpp", "#include <tests/catch.hpp>", "is no library"),
    ("runtime/tensor.cpp", '  #  include "runtime/tensor.hpp"', 'is spelled "packrnn/'),
    ("runtime/tensor.cpp", "#include <packrnn/runtime/tensor.hpp>", "with quotes"),
    ("runtime/tensor.cpp", '#include "tensor.hpp"', "not spelled from packrnn/"),
    ("runtime/tensor.cpp", '#include "packrnn/runtime/../kernels/lstm.hpp"', "climbs"),
    ("runtime/tensor.cpp", '#include "packrnn/packrnn.hpp"', "is for users"),
    ("runtime/tensor.cpp", '#include "packrnn/runtime/gone.hpp"', "names no file"),
    ("runtime/tensor.cpp", '#define HWY_TARGET_INCLUDE "packrnn/layers/lstm.hpp"', "may not"),
    ("runtime/tensor.hpp", '#include "packrnn/runtime/secret.hpp"', "includes a private one"),
    ("runtime/tensor.hpp", "#include <fmt/format.h>", "only the standard library"),
    ("tests/reference/lstm.hpp", '#include "packrnn/kernels/lstm.hpp"', "shares no code"),
    ("tests/catch.hpp", '#include "bench/main.cpp"', "nothing that tests/ may include"),
    ("tests/bench/main_test.cpp", '#include "docs/examples/a.cpp"', "nothing that tests/ may include"),
    ("docs/examples/a.cpp", '#include "tests/catch.hpp"', "nothing that docs/ may include"),
    ("docs/examples/a.cpp", '#include "bench/main.cpp"', "nothing that docs/ may include"),
    ("docs/examples/a.cpp", '#include "docs/examples/training/run.hpp"', "nothing that docs/ may"),
    ("docs/examples/b/main.cpp", '#include "docs/examples/a.cpp"', "nothing that docs/ may"),
    ("docs/examples/training/run.hpp", '#include "docs/examples/b/main.cpp"', "nothing that docs/"),
]


def self_test():
    for file, line, expected in [(None, None, None), *BAD]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in GOOD.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            if file:
                with (root / file).open("a", encoding="utf-8") as stream:
                    stream.write(line + "\n")
            found, _ = faults(root, PUBLIC)
            if file is None and found:
                sys.exit(f"self-test: a good tree is refused: {found}")
            if file and not (len(found) == 1 and found[0].startswith(file) and expected in found[0]):
                sys.exit(f"self-test: planted {line!r} in {file}, found {found}")


def main():
    self_test()
    found, count = faults(pathlib.Path(sys.argv[1]), sys.argv[2:])
    print("\n".join(found))
    print(f"{count} files read, {len(found)} bad includes; {len(BAD)} planted ones were found")
    if count == 0 or found:
        sys.exit(1)


if __name__ == "__main__":
    main()
