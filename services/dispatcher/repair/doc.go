// Package repair decides when all workspaces are applied again, and which failures of these repairs are published.
//
// A [Scheduler] starts a repair on a resync request of the control plane and at the configured interval.
// [ShouldPublish] is pure: the workspace was applied before, so a temporary failure is published only if it lasts.
package repair
