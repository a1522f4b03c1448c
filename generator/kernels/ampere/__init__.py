# SPDX-License-Identifier: Apache-2.0
"""Family `ampere`: mma.sync and cp.async, one sm_80 PTX for every SM."""
