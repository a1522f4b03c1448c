# SPDX-License-Identifier: Apache-2.0
"""The build as SCons nodes: PTX from fingerprints, cubins from PTX, the bundle from all of them. The work itself is `generator.session`'s.

The one module that imports SCons, besides SConstruct.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping

import SCons.Action
import SCons.CacheDir
import SCons.Errors
import SCons.Node
import SCons.Script
import SCons.SConsign

from generator import buildplan, farm, manifest, options, report, sources, toolchain, unchanged
from generator.bundle import BundlePlace
from generator.buildplan import BuildPlan
from generator.options import Options
from generator.product import BundleProduct
from generator.progress import Progress
from generator.session import Session
from generator.sources import SourceError
from generator.tasks import TaskFailure
from generator.toolchain import ToolchainError


class SessionCache(SCons.CacheDir.CacheDir):
    """SCons's cache interface over the session's store, whose keys and checks are its own."""

    session: Session

    def __init__(self, path: str | None) -> None:
        self.requests = 0
        self.hits = 0
        self.path = path
        self.current_cache_debug = None
        self.debugFP = None
        self.config = {"prefix_len": 2}

    def is_enabled(self) -> bool:
        """Whether this build reads or writes a cache."""
        return SCons.CacheDir.cache_enabled and bool(self.session.store or self.session.parts)

    def cachepath(self, node: Any) -> tuple[str | None, str | None]:
        """Nothing but this class opens an entry."""
        return None, None

    def retrieve(self, node: Any) -> bool:
        """Restores a product, if the build folder or a cache holds it whole. Writes nothing in a dry run."""
        if not SCons.Action.execute_actions:
            return False
        product = product_of(self.session, node)
        if self.session.is_whole(product):
            return True
        if not self.is_enabled():
            return False
        self.requests += 1
        found = self.session.restore(product)
        self.hits += found
        return found

    def push(self, node: Any) -> None:
        """Keeps a product that was built."""
        if self.is_enabled() and not self.is_readonly():
            self.session.keep(product_of(self.session, node))

    def push_if_forced(self, node: Any) -> None:
        """Keeps a product that was up to date, when --cache-populate asks for it."""
        if SCons.CacheDir.cache_force:
            self.push(node)


def product_of(session: Session, node: Any) -> str:
    """A node's path relative to the build folder."""
    return os.path.relpath(node.get_abspath(), session.build_dir)


def _session(env: Mapping[str, Any]) -> Session:
    return env["SESSION"]


def _guarded(work, target: list, action: str, session: Session, *arguments: Any) -> None:
    """Does a node's work; turns what went wrong into SCons's error for the node, entered in the table of failures."""
    try:
        work(*arguments)
    except TaskFailure as failure:
        raise SCons.Errors.BuildError(node=target[0], errstr=failure.reason, status=1) from None
    except Exception as error:  # whatever stops a node (a full disk, a missing tool) must name the node and stand in the table
        session.broken(action, str(target[0]), error)
        raise SCons.Errors.BuildError(node=target[0], errstr=str(error) or type(error).__name__, status=1) from None


def trace_action(target: list, source: list, env: Mapping[str, Any]) -> None:
    """Builder action: traces the kernel of a PTX node."""
    session = _session(env)
    product = product_of(session, target[0])
    explain(session, product)
    _guarded(session.trace, target, "trace", session, session.products[product][1])


def assemble_action(target: list, source: list, env: Mapping[str, Any]) -> None:
    """Builder action: assembles the cubin of a node."""
    session = _session(env)
    product = product_of(session, target[0])
    explain(session, product)
    _guarded(session.assemble, target, "assemble", session, session.products[product][1])


def render_action(target: list, source: list, env: Mapping[str, Any]) -> None:
    """Builder action: renders the headers and the C source of the code."""
    _guarded(env["PRODUCT"].render, target, "render", _session(env))


def code_action(target: list, source: list, env: Mapping[str, Any]) -> None:
    """Builder action: compiles the code of the libraries for a host."""
    _guarded(env["PRODUCT"].compile_code, target, "compile", _session(env), env["HOST"])


def libraries_action(target: list, source: list, env: Mapping[str, Any]) -> None:
    """Builder action: makes the libraries of a host out of its code and the cubins."""
    _guarded(env["PRODUCT"].compile, target, "compile", _session(env), env["HOST"])


def bundle_action(target: list, source: list, env: Mapping[str, Any]) -> None:
    """Builder action: puts the bundle and its archive in place."""
    _guarded(env["PRODUCT"].put, target, "bundle", _session(env))


def edge_llm_action(target: list, source: list, env: Mapping[str, Any]) -> None:
    """Builder action: makes the Edge-LLM artifacts of the bundle."""
    _guarded(env["PRODUCT"].make_edge_llm, target, "edge-llm", _session(env))


def describe_trace(target: list, source: list, env: Mapping[str, Any]) -> str | None:
    """What a dry run says of a PTX node; the session says it when the work is done."""
    return _described(target, env, "trace")


def describe_assemble(target: list, source: list, env: Mapping[str, Any]) -> str | None:
    """What a dry run says of a cubin node."""
    return _described(target, env, "assemble")


def describe_product(target: list, source: list, env: Mapping[str, Any]) -> str | None:
    """What a dry run says of libraries and the bundle."""
    return None if SCons.Action.execute_actions else f"would make {target[0]}"


def _described(target: list, env: Mapping[str, Any], action: str) -> str | None:
    if SCons.Action.execute_actions:
        return None
    session = _session(env)
    product = product_of(session, target[0])
    made_from = session.products[product][1]
    held = " (only to be taken up)" if session.is_whole(product) else " (in the cache)" if session.cached(product) is not None else ""
    lines = [f"would {action} {made_from.name}{held}"]
    if session.options.explain:
        lines += [f"  because {reason}" for reason in session.why(product)]
    return "\n".join(lines)


def explain(session: Session, product: str) -> None:
    """Says why a product is built, when asked to."""
    if session.options.explain:
        for reason in session.why(product):
            session.progress.say(f"{product}: {reason}")


def read_options(arguments: Mapping[str, str], explain_flag: bool) -> Options:
    """The options, or SCons's error for a user's mistake."""
    try:
        return options.parse({**arguments, **({"explain": "1"} if explain_flag else {})})
    except options.OptionError as error:
        stop(error)


def stop(error: Exception) -> None:
    """Ends SCons before anything is built, with one clear line and status 2."""
    sys.stdout.flush()
    print(f"scons: {error}", file=sys.stderr, flush=True)
    SCons.Script.Exit(2)


def plan_build(opts: Options) -> BuildPlan:
    """The build plan that the options ask for, or SCons's error for a user's mistake."""
    sources.memory.load(Path(opts.build_dir) / sources.MEMORY_NAME)
    try:
        loaded = manifest.load(opts.manifest)
        plan = buildplan.make(loaded, loaded.rows(opts.sm, opts.variants, opts.checked), opts.allow_spills)
    except (manifest.ManifestError, ValueError, OSError, ToolchainError, SourceError, buildplan.BuildPlanError) as error:
        stop(error)
    targets = SCons.Script.COMMAND_LINE_TARGETS
    linked = not targets or not {"libraries", "bundle", "edge-llm"}.isdisjoint(targets)
    if linked and not opts.shard and not SCons.Script.GetOption("clean") and all(row.variant.checked for row in plan.rows):
        named = ", ".join(dict.fromkeys(row.variant.name for row in plan.rows))
        stop(ValueError(f"a bundle of checked variants only ({named}) would have libraries without a kernel: add a variant that is not checked to "
                        "variants=, or build the target cubins"))
    return plan.shard(*opts.shard) if opts.shard else plan


def declare(env: Any, session: Session, product: BundleProduct) -> dict[str, list]:
    """Declares every node of the build; returns the nodes by group: ptx, cubins, libraries, bundle, edge-llm."""
    build = session.options.build_dir
    trace = SCons.Action.Action(trace_action, describe_trace)
    assemble = SCons.Action.Action(assemble_action, describe_assemble)
    ptx, cubins = {}, []
    for kernel in session.plan.kernels:
        ptx[kernel.name] = env.Command(f"{build}/{kernel.ptx_path}", env.Value(kernel.key), trace)
    for cubin in session.plan.cubins:
        cubins += env.Command([f"{build}/{cubin.path}", f"{build}/{cubin.report_path}"],
                              [ptx[cubin.kernel.name], env.Value(cubin.key)], assemble)
    traced = [node for nodes in ptx.values() for node in nodes]
    if session.options.shard:
        return {"ptx": traced, "cubins": cubins, "libraries": [], "bundle": [], "edge-llm": []}
    render = SCons.Action.Action(render_action, describe_product)
    compile_code = SCons.Action.Action(code_action, describe_product)
    compile_ = SCons.Action.Action(libraries_action, describe_product)
    put = SCons.Action.Action(bundle_action, describe_product)
    rendered = env.Command([str(product.rendered_list), str(product.c_source)], env.Value(product.render_key()), render, PRODUCT=product)
    codes, libraries = [], []
    for host in session.options.hosts:
        key = env.Value(product.library_key(host))
        code = env.Command(str(product.code_object(host)), [*rendered, key], compile_code, PRODUCT=product, HOST=host)
        codes += code
        libraries += env.Command(list(map(str, product.library_paths(host))), [*code, *rendered, *cubins, key], compile_, PRODUCT=product, HOST=host)
    place = product.place
    bundle = env.Command([str(place.archive), str(place.folder / "SHA256SUMS")],
                         [*traced, *codes, *cubins, *rendered, *libraries, env.Value(product.key())], put, PRODUCT=product)
    edge_llm = env.Command(str(product.edge_llm_sums), [*bundle, env.Value(product.edge_llm_key())],
                           SCons.Action.Action(edge_llm_action, describe_product), PRODUCT=product)
    env.NoCache(rendered, bundle, edge_llm)
    env.Precious(traced, cubins, bundle)
    env.Clean(bundle, product.leftovers())
    env.Clean(edge_llm, str(product.edge_llm_sums.parent))
    if not product.is_intact():
        env.AlwaysBuild(bundle)
    if product.is_touched(product.c_folder, product.rendered_list):
        env.AlwaysBuild(rendered)
    for node in (*traced, *cubins, *codes, *libraries):
        know_content(node, product)
    env.AlwaysBuild([node for node in codes + libraries if product.is_touched(Path(node.get_abspath()))])
    return {"ptx": traced, "cubins": cubins, "libraries": rendered + codes + libraries, "bundle": bundle, "edge-llm": edge_llm}


def know_content(node: Any, product: BundleProduct) -> None:
    """Lets SCons take its own record of a product's content when nobody touched the file since the last whole build: it need not be read."""
    if product.is_kept(Path(node.get_abspath())):
        digest = getattr(node.disambiguate().get_stored_info().ninfo, "csig", None)
        if digest:
            node.get_ninfo().csig = digest


def build(env: Any, arguments: Mapping[str, str], explain_flag: bool, seen: unchanged.Seen | None) -> dict[str, list]:
    """The whole of SConstruct's work: options, plan, nodes, and what happens at the end.

    `seen` is how the inputs looked before anything was read, when this is a build of the whole bundle: for the next one, that may find it unchanged.
    """
    opts = read_options(arguments, explain_flag)
    plan = plan_build(opts)
    progress = Progress(opts.progress)
    session = Session(opts, plan, progress, farm.maker(opts.farm))
    product = BundleProduct(session, BundlePlace(Path(opts.dist), report.version()))
    env["SESSION"] = session
    if opts.farm != "local":
        env.SetOption("num_jobs", farm.CLUSTER_JOBS)
    SCons.SConsign.File(os.path.join(session.build_dir, "sconsign"))
    cache = type("BoundSessionCache", (SessionCache,), {"session": session})
    env.CacheDir(opts.cache or opts.build_dir, cache)
    if not env.GetOption("no_exec"):
        begin(session)
    nodes = declare(env, session, product)
    progress.total = expected(nodes, SCons.Script.COMMAND_LINE_TARGETS)
    SCons.Script.Progress(visited(session))
    atexit.register(finish, session, product, nodes["bundle"], seen)
    return nodes


def expected(nodes: dict[str, list], targets: list[str]) -> int:
    """How many files a build of `targets` (default: the bundle) looks at. The groups stand in the order in which they need each other."""
    groups = list(nodes)
    wanted = [groups.index(target) if target in groups else len(groups) - 1 for target in targets] or [groups.index("bundle")]
    return sum(len(nodes[group]) for group in groups[: max(wanted) + 1])


def visited(session: Session):
    """What SCons calls for each node that it looks at."""
    def count(node: Any) -> None:
        if node.is_derived():
            session.progress.visit()

    return count


def begin(session: Session) -> None:
    """Takes the build folder, or stops with the reason."""
    try:
        session.begin()
        unchanged.forget(session.build_dir, session.options.dist)
    except OSError as error:
        stop(OSError(f"the build folder {session.build_dir} cannot be written ({error.strerror}); choose another with build_dir=DIR"))


def finish(session: Session, product: BundleProduct, bundle: list, seen: unchanged.Seen | None) -> None:
    """Runs at the end, however the build went: the tables, the reports, and the farm's end."""
    made = bool(bundle) and all(node.get_state() in (SCons.Node.executed, SCons.Node.up_to_date) for node in bundle)
    cleans = SCons.Script.GetOption("clean")
    acted = SCons.Action.execute_actions and not cleans
    if acted and made and seen is not None and not session.progress.failures:
        with suppress(OSError):  # it only saves time
            unchanged.remember(seen, unchanged.Place(product.place.folder, product.place.archive), toolchain.witnesses())
    session.end()
    gc.freeze()  # what is left needs no look at every node when Python ends
    if acted:
        report.conclude(session, product, made)
    elif SCons.Action.execute_actions and cleans:
        product.remove_empty_folders()
