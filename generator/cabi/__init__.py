# SPDX-License-Identifier: Apache-2.0
"""The C side of a bundle: headers, generated C sources, one of which embeds the cubins, and the libraries compiled from them.

`render` writes headers and sources from the metadata of a bundle and its cubins; `compile_libraries` compiles them for a host.
The build does the same in steps, so that the code is compiled while kernels are traced: `render_code`, `compile_object`, `render_rows`,
`compile_rows`, `make_object`, `link_libraries`.
"""

from generator.cabi.compile import (
    HOSTS, SHARED_NAME, SONAME, STATIC_NAME, CompileError, Host, Libraries, Zig, compile_libraries, compile_library_object, compile_object,
    compile_rows, link_libraries, make_archive, make_object)
from generator.cabi.render import RenderError, Sources, render, render_code
from generator.cabi.rows import Embedded, render_rows

__all__ = ["HOSTS", "SHARED_NAME", "SONAME", "STATIC_NAME", "CompileError", "Embedded", "Host", "Libraries", "RenderError", "Sources", "Zig",
           "compile_libraries", "compile_library_object", "compile_object", "compile_rows", "link_libraries", "make_archive", "make_object",
           "render", "render_code", "render_rows"]
