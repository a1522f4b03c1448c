# SPDX-License-Identifier: Apache-2.0
"""Device code in CuTe DSL. Importing a module of this package imports cutlass, except `registry` until it traces."""
