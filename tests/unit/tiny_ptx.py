# SPDX-License-Identifier: Apache-2.0
"""A kernel small enough to assemble in a test."""

PARAMS = ".param .u64 q, .param .u32 n, .param .u64 stride, .param .f32 scale"


def tiny_ptx(params: str = PARAMS, block: str = ".reqntid 128, 1, 1", body: str = "", target: str = "sm_80", symbol: str = "tiny", more: str = "") -> bytes:
    """PTX of one kernel that stores a number to its first parameter."""
    return f""".version 8.8
.target {target}
.address_size 64
{more}
.visible .entry {symbol}({params})
{block}
{{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [q];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, 7;
    {body}
    st.global.u32 [%rd2], %r1;
    ret;
}}
""".encode()
