"""Keeps the guides true: code in them is cut from docs/examples, and their links lead somewhere.

usage: snippets.py --check | --write

A source marks a region by lines `// [name]` and `// [/name]`. A guide shows it by the line
`<!-- docs/examples/file.cpp#name -->` and a fenced code block after it.
  --check   fails when a block differs from its region, a ```cpp block has no such line before it,
            a region is shown nowhere, or a relative link names no file or no heading
  --write   puts the regions into the blocks
"""

import pathlib
import re
import sys
import tempfile
import textwrap

BLOCK = re.compile(
    r"^(?:<!-- (?P<file>\S+\.cpp)#(?P<name>\w+) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL)
MARK = re.compile(r"^<!-- (\S+\.cpp)#(\w+) -->$", re.MULTILINE)
REGION = re.compile(r"^[ \t]*// \[(/?)(\w+)\]\n", re.MULTILINE)
LINK = re.compile(r'\]\(([^)\s]+)\)|<img[^>]*\ssrc="([^"]+)"')
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def regions(source):
    """The regions of a source file by name, without common indentation."""
    text = source.read_text(encoding="utf-8")
    marks = list(REGION.finditer(text))
    found = {}
    for opening, closing in zip(marks[::2], marks[1::2]):
        if opening[1] or not closing[1] or opening[2] != closing[2] or opening[2] in found:
            raise ValueError(f"{source.name}: the region {opening[2]} is not well formed")
        found[opening[2]] = textwrap.dedent(text[opening.end():closing.start()])
    if len(marks) % 2:
        raise ValueError(f"{source.name}: the region {marks[-1][2]} has no end")
    return found


def slug(heading):
    """What GitHub makes of a heading in links."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def prose(text):
    """The text without code, where brackets are not links."""
    return re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))


def bad_links(root, guide, text):
    for match in LINK.finditer(prose(text)):
        link = match[1] or match[2]
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (guide.parent / path) if path else guide
        if not target.exists() or not target.resolve().is_relative_to(root.resolve()):
            yield f"the link {link} leads nowhere"
        elif anchor and target.suffix == ".md":
            headings = HEADING.findall(BLOCK.sub("", target.read_text(encoding="utf-8")))
            if anchor not in map(slug, headings):
                yield f"the link {link} names no heading"


def run(root, write=False):
    """The faults that are left; with `write`, after the code blocks were replaced."""
    faults = []
    known = {}
    for source in sorted((root / "docs/examples").rglob("*.cpp")):
        for name, code in regions(source).items():
            known[source.relative_to(root).as_posix(), name] = code
    shown = set()
    guides = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    for guide in guides:
        text = guide.read_text(encoding="utf-8")
        name_of_guide = guide.relative_to(root).as_posix()

        def replaced(block):
            key = block["file"], block["name"]
            if key[0] is None:
                if block["language"] == "cpp":
                    faults.append(f"{name_of_guide}: a cpp block is cut from no example")
                return block[0]
            shown.add(key)
            if key not in known:
                faults.append(f"{name_of_guide}: there is no region {key[0]}#{key[1]}")
                return block[0]
            if not write and block["code"] != known[key]:
                faults.append(f"{name_of_guide}: {key[0]}#{key[1]} differs; run snippets.py --write")
            return f"<!-- {key[0]}#{key[1]} -->\n```{block['language']}\n{known[key]}```"

        new = BLOCK.sub(replaced, text)
        if len(MARK.findall(text)) != sum(b["file"] is not None for b in BLOCK.finditer(text)):
            faults.append(f"{name_of_guide}: a region is named without a code block after it")
        if write and new != text:
            guide.write_text(new, encoding="utf-8")
    for file, name in sorted(known.keys() - shown):
        faults.append(f"{file}: the region {name} is shown nowhere")
    for guide in [*guides, *sorted((root / "tests").rglob("*.md")),
                  *sorted((root / "bench").rglob("*.md"))]:
        text = guide.read_text(encoding="utf-8")
        faults += (f"{guide.relative_to(root).as_posix()}: {fault}"
                   for fault in bad_links(root, guide, text))
    return faults, len(shown), len(guides)


SOURCE = "// [a]\nint a;\n// [/a]\nint main() {\n  // [b]\n  if (a)\n    return 1;\n  // [/b]\n}\n"
GUIDE = ("# One two\n[here](#one-two), [there](docs/x.md#y), [out](https://example.org/)\n"
         "<!-- docs/examples/e.cpp#a -->\n```cpp\nint a;\n```\n"
         "<!-- docs/examples/e.cpp#b -->\n```cpp\nif (a)\n  return 1;\n```\n")
PLANTED = [
    ("", "", None),
    ("int a;", "int  a;", "differs"),
    ("e.cpp#a", "e.cpp#c", "there is no region"),
    ("<!-- docs/examples/e.cpp#a -->\n", "", "cut from no example"),
    ("```cpp\nint a;\n```\n", "", "without a code block"),
    ("(docs/x.md#y)", "(docs/z.md)", "leads nowhere"),
    ("(docs/x.md#y)", "(docs/x.md#z)", "names no heading"),
    ("(docs/x.md#y)", "(../x.md)", "leads nowhere"),
]


def self_test():
    """Each planted fault must be found, and --write must mend what it can."""
    for old, new, expected in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/examples").mkdir(parents=True)
            (root / "docs/examples/e.cpp").write_text(SOURCE, encoding="utf-8")
            (root / "docs/x.md").write_text("## y\n", encoding="utf-8")
            guide = root / "README.md"
            guide.write_text(GUIDE.replace(old, new, 1), encoding="utf-8")
            faults = run(root)[0]
            if not (any(expected in f for f in faults) if expected else not faults):
                sys.exit(f"self-test: planted {new!r} for {old!r}, found {faults}")
            if expected == "differs" and (run(root, write=True)[0] or guide.read_text() != GUIDE):
                sys.exit("self-test: --write did not mend a block")


def main():
    if sys.argv[1:] not in (["--check"], ["--write"]):
        sys.exit(__doc__)
    write = sys.argv[1] == "--write"
    self_test()
    if write:
        run(pathlib.Path(__file__).parent.parent, write)
    faults, shown, guides = run(pathlib.Path(__file__).parent.parent)
    print("\n".join(faults))
    print(f"{guides} guides, {shown} code blocks cut from examples, {len(faults)} faults")
    if faults or shown == 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
