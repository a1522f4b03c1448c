# SPDX-License-Identifier: Apache-2.0
"""The C side of a bundle: headers, one generated C source that embeds the cubins, and the libraries compiled from it.

`render` writes headers and sources from the metadata of a bundle and its cubins; `compile_libraries` compiles them for a host.
"""

from generator.cabi.compile import (
    HOSTS, SHARED_NAME, SONAME, STATIC_NAME, CompileError, Host, Libraries, Zig, compile_libraries, compile_object, make_archive)
from generator.cabi.render import RenderError, Sources, render

__all__ = ["HOSTS", "SHARED_NAME", "SONAME", "STATIC_NAME", "CompileError", "Host", "Libraries", "RenderError", "Sources", "Zig",
           "compile_libraries", "compile_object", "make_archive", "render"]
