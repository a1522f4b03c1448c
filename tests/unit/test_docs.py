# SPDX-License-Identifier: Apache-2.0
"""README.md and docs/: links, options, tables, masks and examples, compared with the code or run."""

import importlib.util
import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import fmhaforge
import numpy
import pytest
from fake_gpu import FakeGpu
from fake_torch import FakeTorch
from fmhaforge import cli
from fmhaforge.driver import Driver
from generator.operations import OPERATIONS
from generator.options import OPTIONS
from naive_kernel import keys_of
from runtime_fixtures import bundle_path  # noqa: F401
from test_docs_runtime import run_console_example

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [ROOT / "README.md", *(ROOT / "docs" / "operations" / f"{name}.md" for name in OPERATIONS)]
RUN = "<!-- real output: fmhaforge run -->\n"


def name(page):
    """A page's path, for the names of tests."""
    return str(page.relative_to(ROOT))


def text_of(page):
    return page.read_text(encoding="utf-8")


def fenced(text):
    """(language, content) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def blocks(page, language):
    return [content for found, content in fenced(text_of(page)) if found == language]


def console(page):
    """(command, output) of every console example."""
    for block in blocks(page, "console"):
        for example in block.removeprefix("$ ").split("\n$ "):
            command, _, output = example.partition("\n")
            yield command, output if output.endswith("\n") or not output else output + "\n"


def generated(page):
    """(words, lines) of every generated part."""
    for words, body in re.findall(r"<!-- generated: ([^>]+) -->\n(.*?)\n<!-- end -->", text_of(page), re.DOTALL):
        yield words.split(), body.splitlines()


# -- links and options --------------------------------------------------------------------------------------------------------


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    outside = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", outside, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page):
    outside = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", outside):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name(page)} links to {target}, which does not exist"
        assert not anchor or anchor in anchors(found), f"{name(page)} links to {target}; its headings are {sorted(anchors(found))}"


def test_every_page_is_in_an_index():
    for folder in (ROOT / "docs", ROOT / "docs" / "operations"):
        index = text_of(folder / "README.md")
        missing = [page.name for page in folder.glob("*.md") if page.name != "README.md" and f"({page.name})" not in index]
        assert not missing, f"{name(folder)}/README.md does not link to {missing}"


def command_lines(page):
    """Every call of the command line, in a block or in a line."""
    text = re.sub(r"<!--.*?-->", "", text_of(page))
    return re.findall(r"(?<![\w./-])(?:\$ )?(?:\.venv/bin/)?fmhaforge ((?:[a-z]+)(?: [^`\n|]*)?)", text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_exist(page):
    commands = next(action.choices for action in cli._parser()._actions if hasattr(action, "choices") and isinstance(action.choices, dict))
    for line in command_lines(page):
        command, *words = line.split()
        options = [word for word in words if word.startswith("--")]
        if command not in commands:
            assert not options, f"{name(page)}: fmhaforge has no command {command!r}"
            continue
        for option in options:
            assert option in commands[command]._option_string_actions, f"{name(page)}: fmhaforge {command} has no option {option}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_build_options_exist(page):
    for arguments in re.findall(r'make bundle ARGS="([^"]*)"', text_of(page)):
        for word in arguments.split():
            assert word.split("=")[0] in {option.name for option in OPTIONS}, f"{name(page)}: the build has no option {word}"


# -- tables and masks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def renderer():
    """docs/render.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_render", ROOT / "docs" / "render.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_generated_parts_are_up_to_date(page, renderer):
    assert renderer.render(text_of(page)) == text_of(page), f"{name(page)} is out of date: run .venv/bin/python docs/render.py"


@pytest.mark.parametrize("words", ["nothing", "mask diagonal q_len=1 kv_len=1"])
def test_what_cannot_be_generated_is_an_error(words, renderer):
    with pytest.raises(ValueError, match=words.split()[-3] if " " in words else words):
        renderer.render(f"<!-- generated: {words} -->\n<!-- end -->")


def shown_variants(lines):
    return [variant for line in lines[2:] for variant in re.findall(r"`(\w+)`", line)]


def test_readme_lists_every_variant(manifest):
    parts = {words[0]: lines for words, lines in generated(ROOT / "README.md")}
    wanted = [variant.name for variant in manifest.variants if not variant.checked]
    assert sorted(shown_variants(parts["overview"])) == sorted(wanted)
    assert f"{len(wanted)} variants x {len(manifest.targets)} SMs" in parts["counts"][0]
    assert f"= {len(manifest.rows())} rows" in parts["counts"][0]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_pages_show_the_manifest(operation, manifest):
    page = ROOT / "docs" / "operations" / f"{operation}.md"
    parts = {(words[0], words[1]): lines for words, lines in generated(page)}
    cells = {line.split("`")[1]: [cell.strip() for cell in line.strip("|").split("|")] for line in parts["variants", operation][2:]}
    wanted = {variant.name: variant for variant in manifest.variants if variant.operation == operation and not variant.checked}
    assert list(cells) == list(wanted)
    for variant_name, (_, mask, head_dim, selected, kernel) in cells.items():
        variant = wanted[variant_name]
        assert (mask, head_dim) == (variant.mask, str(variant.head_dim))
        assert (str(variant.select.seqlen_q_at_most) in selected) if variant.select else selected in ("always", "otherwise")
        for row in manifest.rows(variants=[variant_name]):
            assert f"{row.family.name} {row.tile.m} x {row.tile.n}" in kernel
    checked = [variant.name for variant in manifest.variants if variant.operation == operation and variant.checked]
    assert re.findall(r"`(\w+)`", "".join(parts.get(("checked", operation), []))) == checked
    for table in ("tensors", "scalars"):
        assert any(line.startswith("|--") for line in parts[table, operation])
    shown = set(re.findall(r"`(\w+)`", "\n".join(parts["tensors", operation] + parts["scalars", operation])))
    assert {argument.name for argument in OPERATIONS[operation].arguments} <= shown


def drawings():
    return [pytest.param(words, lines, id=" ".join(words)) for page in PAGES for words, lines in generated(page) if words[0] in ("mask", "packed", "varlen")]


def options_of(words):
    return dict(word.split("=") for word in words if "=" in word)


def interval(options, query):
    for block in filter(None, options.get("blocks", "").split(",")):
        first, last, begin, end = map(int, block.split(":"))
        if first <= query <= last:
            return begin, end
    return -1, -1


@pytest.mark.parametrize("words, lines", drawings())
def test_masks_are_drawn_as_defined(words, lines):
    """Every cell, compared with a statement of the masks that lists keys one by one."""
    options = options_of(words)
    keys = lines[1].split("output row")[0].split()[1:]
    assert keys == [str(key) for key in range(len(keys))]
    drawn = [line.rpartition("   ")[::2] for line in lines[2:-1]]
    cells = [re.findall(r"(?<= )[#.-](?= |$)", before) for before, _ in drawn]
    assert {len(row) for row in cells} == {len(keys)}
    for (label, note), row in zip(drawn, cells):
        seen = [key for key, cell in enumerate(row) if cell == "#"]
        if words[0] == "varlen":
            starts = numpy.cumsum([0, *map(int, options["lens"].split(","))])
            packed = int(label.split()[1].rstrip(":"))
            inside = [range(first, last) for first, last in zip(starts, starts[1:]) if first <= packed < last]
            assert (seen, note) == ((list(inside[0]), "attention") if inside else ([], "not written"))
            assert [cell for cell in row[starts[-1]:]] == ["-"] * (len(keys) - starts[-1])
            continue
        sequence = int(label.split("sequence ")[1].split(",")[0]) if words[0] == "packed" else 0
        q_len, kv_len = (int(options.get(f"{side}_lens", options.get(f"{side}_len")).split(",")[sequence]) for side in ("q", "kv"))
        query = int(re.search(r"\bq (\d+)", label)[1])
        case = SimpleNamespace(subject=SimpleNamespace(mask=words[1]), window=int(options.get("window", 10**9)))
        wanted = keys_of(case, query, q_len, kv_len, *interval(options, query))
        assert seen == wanted
        assert note == ("zeros: past q_len" if query >= q_len else "attention" if wanted else "zeros: sees no key")
        assert row[kv_len:] == ["-"] * (len(keys) - kv_len)
        if " at " in label:
            assert int(label.split(" at ")[1].split()[0]) == query + kv_len - q_len
    if words[0] != "varlen":
        assert len(cells) == (sum(map(int, options["q_lens"].split(","))) if words[0] == "packed" else int(options.get("rows", options["q_len"])))


# -- examples -------------------------------------------------------------------------------------------------------------------


def test_pages_of_all_operations_have_their_examples():
    for page in EXAMPLES:
        assert len(blocks(page, "python")) == len(blocks(page, "c")) == 1 and list(console(page)), name(page)


@pytest.mark.parametrize("command, expected", [pytest.param(*example, id=f"{name(page)}-{index}") for page in EXAMPLES
                                               for index, example in enumerate(console(page)) if " run " not in example[0]])
def test_console_examples(command, expected, bundle_path, monkeypatch):
    run_console_example(command, expected, bundle_path, monkeypatch)


def test_readme_shows_one_run(manifest):
    """The output of a run is real, so it can't be made again here; it must be that of the command, and of kernels that exist."""
    text = text_of(ROOT / "README.md")
    assert text.count(RUN) == 1 and len(text.splitlines()) <= 150
    block = re.match(r"```console\n\$ (\.venv/bin/)?(fmhaforge run [^\n]*)\n(.*?)```\n", text.split(RUN)[1], re.DOTALL)
    cli._parser().parse_args(shlex.split(block[2])[1:])
    shown = block[3].splitlines()
    if not shown:
        return
    variants = [line.split()[0] for line in shown[1:-1]]
    assert variants and set(variants) <= {variant.name for variant in manifest.variants}
    assert all(line.split()[-1] == "passed" for line in shown[1:-1])
    assert shown[-1].startswith(f"{len(variants)} of {len(variants)} passed ")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_compiles(page):
    for index, source in enumerate(blocks(page, "python")):
        compile(source, f"{name(page)}, block {index}", "exec")


@pytest.mark.parametrize("sm", (80, 90))
@pytest.mark.parametrize("page", EXAMPLES, ids=name)
def test_python_examples_run(page, sm, bundle_path, tmp_path, monkeypatch):
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / f"fmhaforge-{fmhaforge.version.__version__}").symlink_to(bundle_path)
    gpu = FakeGpu([row for row in fmhaforge.open(bundle_path).metadata.rows if row.sm == sm], sm)
    gpu.current = 100
    torch = FakeTorch(gpu)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(fmhaforge.driver, "default", lambda: Driver(gpu))
    monkeypatch.chdir(tmp_path)
    source, = blocks(page, "python")
    with redirect_stdout(io.StringIO()) as printed:
        exec(source, {})
    launched = {gpu.rows[launch.symbol].operation for launch in gpu.launches}
    assert {gpu.rows[launch.symbol].family for launch in gpu.launches} == {{80: "ampere", 90: "hopper"}[sm]}
    assert launched == {"llm" if page.name == "README.md" else page.stem}
    assert len(gpu.launches) == len(re.findall(r"^runner\.run", source, re.MULTILINE))
    output, = torch.outputs
    assert numpy.isfinite(output.values).all()
    assert numpy.abs(output.values).max() > 0.1
    assert printed.getvalue() == ("True ('fmha_v2_d128',)\n" if "print" in source else "")
