# SPDX-License-Identifier: Apache-2.0
"""One module per kernel family, each with `plan(spec: KernelSpec) -> LaunchPlan`; see `generator.plan.plan_for`."""
