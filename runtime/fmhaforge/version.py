# SPDX-License-Identifier: Apache-2.0
"""The version of the project: of this package and of the bundles that the build makes."""

__version__ = "0.1.0"
