# SPDX-License-Identifier: Apache-2.0
"""Family `hopper`: TMA, WGMMA, mbarriers and warp specialisation, one sm_90a PTX for SM 90."""
